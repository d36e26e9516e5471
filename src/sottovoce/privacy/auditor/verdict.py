"""What an audit found: rows, the records behind them, and what they amount to, in words."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from sottovoce.privacy.auditor.controls import Control, Doubts, failed, name_of
from sottovoce.privacy.auditor.findings import Case, Finding, Yardstick, best_of, find
from sottovoce.privacy.auditor.rows import Lined, Row
from sottovoce.privacy.auditor.supports import Supported
from sottovoce.storage.tensors import load_pair, save_pair

CAVEAT = "Surviving these attacks is not a proof: a stronger one may exist."


@dataclass(frozen=True, eq=False)
class Audit:
    """The rows of an audit, its controls among them, and the records that were recovered.

    blind: by round, the median error of the best guess that saw nothing. lined: where attacks put
    the true records among candidates. yardsticks: what the findings of each case stand beside.
    images: for each row by its number, (targets, batch, *shape); truth: by round, likewise.
    """

    rows: Sequence[Row]
    blind: Mapping[int, float]
    facts: Mapping[str, Any]
    truth: Mapping[int, Tensor] = field(default_factory=dict)
    images: Mapping[int, Tensor] = field(default_factory=dict)
    mean_image: Tensor | None = None
    lined: Sequence[Lined] = ()
    yardsticks: Mapping[Case, Yardstick] = field(default_factory=dict)
    supports: Sequence[Supported] = ()

    def best(self, algorithm: str, adversary: str, round: int) -> Row | None:
        """The row that recovered most, the lower median error deciding between equals.

        Of readers whose controls failed, rows count as `Doubts` says.
        """
        case, doubts = (algorithm, adversary, round), Doubts.of(self._controls)
        ran = [
            row
            for row in self.rows
            if (row.algorithm, row.adversary, row.round) == case
            and row.attacked
            and doubts.permit(row)
        ]
        return best_of(ran) if ran else None

    @property
    def failed_controls(self) -> dict[str, str]:
        """Readers and identifiers whose controls failed, and what that means."""
        found: dict[str, str] = {}
        for control in self._controls:
            if said := failed(control):
                found.setdefault(name_of(control), said)
        return found

    @property
    def controls_passed(self) -> bool | None:
        """Whether every control came out as it must; None where none was run."""
        told = [one["controls_passed"] for one in self.facts.get("training_membership", [])]
        if not self._controls and not told:
            return None
        return not self.failed_controls and all(told)

    @property
    def readers(self) -> list[dict[str, Any]]:
        """Every reader and identifier with controls, and whether these came out as they must."""
        doubtful = self.failed_controls
        names = [name_of(control) for control in self._controls]
        told = [one["controls_passed"] for one in self.facts.get("training_membership", [])]
        if told and not all(told):
            doubtful["shadow models"] = "what shadow models tell is not evidence"
        names += ["shadow models"] * bool(told)
        return [
            {"name": name, "controls_passed": name not in doubtful, "doubt": doubtful.get(name, "")}
            for name in dict.fromkeys(names)
        ]

    @property
    def _controls(self) -> list[Control]:
        every: list[Control] = [*self.rows, *self.lined, *self.supports]
        return [one for one in every if one.is_control]

    @property
    def findings(self) -> list[Finding]:
        """What each adversary got from each algorithm in each round."""
        doubts = Doubts.of(self._controls)
        found = []
        for case, beside in self.yardsticks.items():
            rows = [row for row in self.rows if _case(row) == case]
            lined = [one for one in self.lined if _case(one) == case]
            supports = [one for one in self.supports if _case(one) == case]
            found.append(find(case, rows, lined, supports, beside, doubts))
        return found

    @property
    def strongest(self) -> Finding | None:
        """The finding that gives away most: by identification, then recovered, then the error."""

        def strength(one: Finding) -> tuple[float, ...]:
            first, rebuilt = one.identification, one.reconstruction
            error = rebuilt.median_error if rebuilt else None
            return (
                first.top1 if first else -1.0,
                rebuilt.recovered if rebuilt else -1.0,
                -error if error is not None else float("-inf"),
            )

        return max(self.findings, key=strength, default=None)

    @property
    def verdicts(self) -> list[str]:
        """One sentence for each adversary, algorithm and round, and what the controls say."""
        said = [one.sentence for one in self.findings] or self._plain_verdicts()
        said += [one["sentence"] for one in self.facts.get("training_membership", [])]
        said += [f"{why[0].upper()}{why[1:]}: its control failed." for why in self._doubts()]
        if self.controls_passed:
            names = ", ".join(one["name"] for one in self.readers)
            said.append(f"Controls passed in the mode used, for {names}.")
        elif self.controls_passed is None:
            said.append("No controls were run: what fails here may be the readers' own failure.")
        if part := self.facts.get("threshold"):
            said.append(
                f"Recovered means an error below {part:.2g} of the error of the best guess that "
                "knows the label, record by record."
            )
        return [*said, CAVEAT]

    def _doubts(self) -> list[str]:
        return list(dict.fromkeys(self.failed_controls.values()))

    def _plain_verdicts(self) -> list[str]:
        """For audits that were saved before findings were."""
        cases = dict.fromkeys(
            (r.algorithm, r.adversary, r.round) for r in self.rows if not r.is_control
        )
        said = []
        for algorithm, adversary, round in cases:
            best = self.best(algorithm, adversary, round)
            found = "no attack could be run"
            if best:
                found = f"{best.verdict} by {best.attack} and {best.inversion}"
            said.append(f"{adversary} on {algorithm}, round {round}: {found}.")
        return said

    @property
    def advice(self) -> list[str]:
        """What each algorithm gives away by its nature, and what to use instead."""
        lines = [line for said in self.facts.get("advice", {}).values() for line in said]
        return list(dict.fromkeys(lines))

    def save(self, stem: str | Path) -> None:
        """Write `stem.json` (rows and facts) and `stem.safetensors` (records)."""
        tensors = {f"truth.{k}": value for k, value in self.truth.items()}
        tensors |= {f"images.{at}": value for at, value in self.images.items()}
        if self.mean_image is not None:
            tensors["mean_image"] = self.mean_image
        facts = {
            "kind": "audit",
            "rows": [row.to_json() for row in self.rows],
            "lined": [one.to_json() for one in self.lined],
            "supports": [one.to_json() for one in self.supports],
            "yardsticks": [
                {"case": list(case), **asdict(one)} for case, one in self.yardsticks.items()
            ],
            "blind": {str(k): error for k, error in self.blind.items()},
            "facts": dict(self.facts),
        }
        save_pair(stem, tensors, facts)

    @classmethod
    def load(cls, stem: str | Path) -> "Audit":
        """Read what `save` wrote, of this version or an earlier one."""
        tensors, found = load_pair(stem, "audit")

        def numbered(kind: str) -> dict[int, Tensor]:
            named = {name.partition(".")[::2]: tensor for name, tensor in tensors.items()}
            return dict(sorted((int(at), one) for (part, at), one in named.items() if part == kind))

        yardsticks: dict[Case, Yardstick] = {}
        for one in found.get("yardsticks", []):
            algorithm, stepsize, adversary, round = one.pop("case")
            yardsticks[algorithm, stepsize, adversary, round] = Yardstick.from_json(one)
        facts = found["facts"]
        if "yardsticks" not in found:  # Their threshold was a summed squared error.
            facts = {key: value for key, value in facts.items() if key != "threshold"}
        return cls(
            [Row.from_json(row) for row in found["rows"]],
            {int(k): error for k, error in found["blind"].items()},
            facts,
            numbered("truth"),
            numbered("images"),
            tensors.get("mean_image"),
            [Lined.from_json(one) for one in found.get("lined", [])],
            yardsticks,
            [Supported.from_json(one) for one in found.get("supports", [])],
        )


def _case(one: Control) -> Case:
    return one.algorithm, one.stepsize, one.adversary, one.round
