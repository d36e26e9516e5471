"""What an observer of the messages learns: train, record, attack, and say it in words."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from sottovoce.graphs import Graph
from sottovoce.mechanisms import Algorithm
from sottovoce.privacy.adversaries import Adversary, Eavesdropper
from sottovoce.privacy.advice import advice
from sottovoce.privacy.attacks import ATTACKS, Attack
from sottovoce.privacy.auditor.scores import Effort, Row
from sottovoce.privacy.auditor.targets import Recorded
from sottovoce.privacy.auditor.work import CONTROL, Plan, Report, Store, Work
from sottovoce.privacy.readers.matching import Inputs
from sottovoce.problems import ModuleProblem
from sottovoce.randomness import require_jitter
from sottovoce.stepsizes import Stepsize
from sottovoce.storage.progress import progress_bar
from sottovoce.storage.tensors import load_pair, save_pair


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
        ran = [
            row
            for row in self.rows
            if (row.algorithm, row.adversary, row.round) == (algorithm, adversary, round)
            and row.attacked
        ]
        worst = math.inf
        return min(
            ran,
            key=lambda row: (-row.recovered, row.median_error or worst),
            default=None,
        )

    @property
    def verdicts(self) -> list[str]:
        """One sentence for each adversary, algorithm and round, and what the controls say."""
        said = []
        cases = dict.fromkeys(
            (r.adversary, f"{r.algorithm}", r.round) for r in self.rows if r.adversary != CONTROL
        )
        for adversary, algorithm, round in cases:
            best = self.best(algorithm, adversary, round)
            found = "no attack could be run"
            if best:
                found = f"{best.verdict} by {best.attack} and {best.inversion}"
            said.append(f"{adversary} on {algorithm}, round {round}: {found}.")
        for row in self.rows:
            if row.adversary == CONTROL:
                said.append(f"Control, {row.attack} and {row.inversion}: {row.verdict}.")
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
            return {
                int(name.partition(".")[2]): tensor
                for name, tensor in tensors.items()
                if name.startswith(kind + ".")
            }

        return cls(
            [Row.from_json(row) for row in found["rows"]],
            {int(k): error for k, error in found["blind"].items()},
            found["facts"],
            dict(sorted(numbered("truth").items())),
            dict(sorted(numbered("images").items())),
            tensors.get("mean_image"),
        )


def audit(
    problem: ModuleProblem,
    algorithm: Algorithm | Sequence[Algorithm],
    graph: Graph,
    inputs: Inputs,
    *,
    stepsize: Stepsize | None = None,
    adversary: Adversary | Sequence[Adversary] | None = None,
    agents: Collection[int] | None = None,
    rounds: Iterable[int] = (50,),
    targets: int = 8,
    attacks: Iterable[Attack] | None = None,
    effort: Effort | None = None,
    private_start: float = 0.0,
    folder: str | Path | None = None,
    recorded: Recorded | None = None,
    save: str | Path | None = None,
    insecure_seed: int | None = None,
    progress: bool = False,
    report: Report | None = None,
) -> Audit:
    """Attack a model's training with everything the adversaries can do, and score it.

    problem: a classifier trained by cross entropy; its batch is what one gradient covers. inputs:
    shape, range and scaling of the images. stepsize: its schedule serves all algorithms, its law
    those that draw private stepsizes. agents: which agents to attack, all unless given. rounds:
    which rounds to attack. targets: how many (run, agent) pairs. attacks: all of `ATTACKS` unless
    given. private_start: as for `simulate`. folder: finished rows are kept there, and a call with
    the same arguments continues an interrupted one. recorded: a recording to attack instead of
    training one; save: where to keep the recording made. report: is called with every finished row.
    """
    require_jitter(private_start)
    algorithms = list(algorithm) if isinstance(algorithm, Sequence) else [algorithm]
    chosen = list(adversary) if isinstance(adversary, Sequence) else [adversary or Eavesdropper()]
    effort = effort or Effort()
    plan = Plan(
        problem,
        graph,
        replace(inputs, batch_size=problem.batch),
        sorted(set(rounds)),
        targets,
        list(ATTACKS.values() if attacks is None else attacks),
        effort,
        None if agents is None else frozenset(agents),
        private_start,
    )
    store = Store(folder, plan, stepsize, [str(who) for who in chosen], insecure_seed)
    total = (
        len(algorithms) * len(chosen) * len(plan.rounds) * len(plan.attacks) + 2 * effort.controls
    )
    with progress_bar("attacks", total, progress, "attacks") as advance:
        work = Work(plan, store, advance, report)
        for number, one in enumerate(algorithms):
            made = recorded or plan.record(one, stepsize, chosen, store.seed)
            if save is not None:
                made.save(save)
            work.truth_of(made)
            if effort.controls and number == 0:
                work.controls(made)
            for who in chosen:
                work.attack(made, who)
    facts = {
        "problem": problem.describe(),
        "graph": graph.describe(),
        "algorithms": [str(one) for one in algorithms],
        "adversaries": [str(who) for who in chosen],
        "rounds": plan.rounds,
        "targets": targets,
        "threshold": effort.threshold,
        "iterations": effort.search.iterations,
        "restarts": effort.search.restarts,
        "trace": list(effort.search.trace),
        "accuracy": work.accuracy,
        "advice": {str(one): advice(graph, one) for one in algorithms},
    }
    return Audit(work.rows, work.blind, facts, work.truth, work.images, work.mean_image)
