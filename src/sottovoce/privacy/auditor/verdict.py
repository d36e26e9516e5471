"""What an audit found: rows, the images behind them, and what they amount to, in words."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from sottovoce.storage.tensors import load_pair, save_pair

CONTROL = "control"
"""Who appears as the adversary of a control."""

MEASURES = ("cosine", "relative error", "error", "PSNR", "SSIM", "labels", "recovered")
"""Headings of `Row.cells`: the third is the summed squared error."""


@dataclass(frozen=True)
class Row:
    """One line of an audit: what one adversary got by one attack from one algorithm.

    errors, cosines, labels: of every target, the summed squared error (mean over its batch), the
    absolute cosine with its gradient and the labels of its batch; None where the attack was refused
    or found nothing finite. cosine, relative_error: medians against the true gradient, the second
    after the best scaling where the attack leaves the scale open. Medians are over the attacked
    targets. refused: why no target, or only `attacked` of them, could be attacked.
    """

    algorithm: str
    stepsize: str
    adversary: str
    round: int
    attack: str
    inversion: str
    targets: int
    refused: str = ""
    attacked: int = 0
    scale_known: bool = False
    cosine: float | None = None
    relative_error: float | None = None
    state_error: float | None = None
    errors: tuple[float | None, ...] = ()
    median_error: float | None = None
    mse: float | None = None
    psnr: float | None = None
    ssim: float | None = None
    labels_correct: int | None = None
    diverged: int = 0
    recovered: int = 0
    low: float = 0.0
    high: float = 1.0
    threshold: float = 0.0
    trace: tuple[tuple[float, ...], ...] = ()
    """Lower quartile, median and upper quartile of the errors at the iterations of the search."""
    seconds: float = 0.0
    cosines: tuple[float | None, ...] = ()
    labels: tuple[tuple[int, ...] | None, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Row":
        lists = {
            key: tuple(tuple(one) if isinstance(one, list) else one for one in value)
            for key, value in found.items()
            if isinstance(value, list)
        }
        return cls(**{**found, **lists})

    @property
    def verdict(self) -> str:
        """What happened, in words."""
        if not self.attacked:
            return f"refused: {self.refused}"
        missed = self.targets - self.attacked
        beyond = f", {missed} beyond its reach" if missed else ""
        return (
            f"recovered {self.recovered} of {self.targets} images{beyond} (error below "
            f"{self.threshold:g}; 95 % interval {self.low:.0%} to {self.high:.0%})"
        )

    @property
    def is_control(self) -> bool:
        return self.adversary == CONTROL

    @property
    def doubt(self) -> str:
        """What a control that failed says about its reader; nothing where it came out as it must.

        An exact gradient must give half of the images away, and noise none.
        """
        if self.is_control and self.attack == "noise" and self.recovered:
            return f"what {self.inversion} recovers is not evidence"
        if self.is_control and self.attack != "noise" and 2 * self.recovered < self.targets:
            return f"what {self.inversion} does not recover is not evidence"
        return ""

    @property
    def name(self) -> str:
        """How a row is called in tables and charts."""
        how = f"{self.attack} + {self.inversion}"
        if self.is_control:
            return f"control: {how}"
        law = self.stepsize.partition(":")[0]
        private = "" if law == "deterministic" else f" ({law} law)"
        return f"{self.algorithm.partition(':')[0].upper()}{private}: {how}"

    @property
    def share(self) -> str:
        """How many images were recovered, with the interval and how many were attacked."""
        fewer = "" if self.attacked == self.targets else f", {self.attacked} attacked"
        return f"{self.recovered} of {self.targets} ({self.low:.0%} to {self.high:.0%}){fewer}"

    @property
    def cells(self) -> tuple[str, ...]:
        """What was measured, as text for a table under `MEASURES`."""
        values = (
            (self.cosine, ".4f"),
            (self.relative_error, ".2g"),
            (self.median_error, ".3g"),
            (self.psnr, ".1f"),
            (self.ssim, ".2f"),
        )
        shown = ["not finite" if value is None else format(value, form) for value, form in values]
        shown[1] += "" if self.scale_known else " (scaled)"
        return (*shown, f"{self.labels_correct}/{self.attacked}", self.share)

    def __str__(self) -> str:
        """One line for people who wait."""
        error = self.median_error
        shown = "nothing finite" if error is None else f"median error {error:.3g}"
        return (
            f"{self.name}, round {self.round}: {shown}, recovered {self.recovered} of "
            f"{self.targets}, {self.seconds:.0f} s"
        )


@dataclass(frozen=True, eq=False)
class Audit:
    """The rows of an audit, its controls among them, and the images that were recovered.

    blind: by round, the median error of the best guess that saw nothing. images: for each row by
    its number, (targets, batch, *shape); truth: by round, likewise.
    """

    rows: Sequence[Row]
    blind: Mapping[int, float]
    facts: Mapping[str, Any]
    truth: Mapping[int, Tensor] = field(default_factory=dict)
    images: Mapping[int, Tensor] = field(default_factory=dict)
    mean_image: Tensor | None = None

    def best(self, algorithm: str, adversary: str, round: int) -> Row | None:
        """The row that recovered most, the lower median error deciding between equals."""
        case = (algorithm, adversary, round)
        ran = [r for r in self.rows if (r.algorithm, r.adversary, r.round) == case and r.attacked]
        return min(
            ran, key=lambda row: (-row.recovered, row.median_error or math.inf), default=None
        )

    @property
    def controls_passed(self) -> bool | None:
        """Whether every control came out as it must; None where none was run."""
        controls = [row for row in self.rows if row.is_control]
        return not any(row.doubt for row in controls) if controls else None

    @property
    def verdicts(self) -> list[str]:
        """One sentence for each adversary, algorithm and round, and what the controls say."""
        said = []
        controls = [row for row in self.rows if row.is_control]
        doubt = {row.inversion: f" (control failed: {row.doubt})" for row in controls if row.doubt}
        cases = dict.fromkeys(
            (r.algorithm, r.adversary, r.round) for r in self.rows if not r.is_control
        )
        for algorithm, adversary, round in cases:
            best = self.best(algorithm, adversary, round)
            found = "no attack could be run"
            if best:
                found = f"{best.verdict} by {best.attack} and {best.inversion}"
                found += doubt.get(best.inversion, "")
            said.append(f"{adversary} on {algorithm}, round {round}: {found}.")
        for row in controls:
            told = f"{row.attack} and {row.inversion}: {row.verdict}"
            said.append(
                f"Control failed: {told}; {row.doubt}." if row.doubt else f"Control, {told}."
            )
        if self.blind:
            shown = ", ".join(f"{error:.1f} in round {k}" for k, error in self.blind.items())
            said.append(f"A blind guess has the median error {shown}.")
        said.append("Surviving these attacks is not a proof: a stronger one may exist.")
        return said

    @property
    def advice(self) -> list[str]:
        """What each algorithm gives away by its nature, and what to use instead."""
        lines = [line for said in self.facts.get("advice", {}).values() for line in said]
        return list(dict.fromkeys(lines))

    def save(self, stem: str | Path) -> None:
        """Write `stem.json` (rows and facts) and `stem.safetensors` (images)."""
        tensors = {f"truth.{k}": value for k, value in self.truth.items()}
        tensors |= {f"images.{at}": value for at, value in self.images.items()}
        if self.mean_image is not None:
            tensors["mean_image"] = self.mean_image
        facts = {
            "kind": "audit",
            "rows": [row.to_json() for row in self.rows],
            "blind": {str(k): error for k, error in self.blind.items()},
            "facts": dict(self.facts),
        }
        save_pair(stem, tensors, facts)

    @classmethod
    def load(cls, stem: str | Path) -> "Audit":
        """Read what `save` wrote."""
        tensors, found = load_pair(stem, "audit")

        def numbered(kind: str) -> dict[int, Tensor]:
            named = {name.partition(".")[::2]: tensor for name, tensor in tensors.items()}
            return dict(sorted((int(at), one) for (part, at), one in named.items() if part == kind))

        return cls(
            [Row.from_json(row) for row in found["rows"]],
            {int(k): error for k, error in found["blind"].items()},
            found["facts"],
            numbered("truth"),
            numbered("images"),
            tensors.get("mean_image"),
        )
