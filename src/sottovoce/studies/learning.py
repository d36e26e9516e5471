"""What the studies that train a network share: settings, the training itself and its numbers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scipy import stats
from torch import Tensor

from sottovoce.mechanisms import Mechanism
from sottovoce.simulation.options import Options
from sottovoce.simulation.pieces import pieces_of, simulate_in_pieces
from sottovoce.simulation.result import Result
from sottovoce.simulation.runner import simulate
from sottovoce.stepsizes import Law
from sottovoce.storage.execution import Execution
from sottovoce.studies.settings import OnGraph, option
from sottovoce.studies.study import Table, curves
from sottovoce.studies.training import Training

METRICS = ("training_accuracy", "validation_accuracy")
Case = tuple[str, Mechanism, Law]
"""What is trained: its name in the study, the algorithm and the law of its stepsizes."""


@dataclass(frozen=True, kw_only=True)
class LearningSettings(OnGraph):
    """What is trained, how often, and how much of it is kept at a time."""

    training: Training = field(default_factory=Training)
    runs: int = option(5, "Independent runs to average over.", min=1)
    piece: int | None = option(
        None, "Finish and keep this many runs at a time, for very many runs.", min=1
    )


@dataclass(frozen=True)
class Trained:
    """Every case's measurements, what the study keeps of them, and what each agent holds."""

    results: dict[str, Result]
    data: dict[str, Any]
    held: Table

    def row(self, name: str) -> tuple[str, ...]:
        """A case's name and its final accuracies, mean ± 95 %."""
        return name, *(shown(self.last(name, metric)) for metric in METRICS)

    def last(self, name: str, metric: str = "validation_accuracy") -> Tensor:
        """A metric after the last round, one number a run."""
        return self.results[name].metric(metric)[-1]


def train(settings: LearningSettings, cases: Sequence[Case], execution: Execution) -> Trained:
    """Train with each algorithm in turn; what the execution's folder holds is not trained again."""
    training, graph = settings.training, settings.network()
    data, validation, held = training.portions(graph.agents)
    problem = training.problem(data, validation)
    epoch = problem.rounds_an_epoch
    steps = training.epochs * epoch
    measured = {0, epoch // 4, epoch // 2, 3 * epoch // 4, *range(epoch, steps + 1, epoch)}
    asked: dict[str, Any] = {
        "steps": steps,
        "runs": settings.runs,
        "insecure_seed": settings.insecure_seed,
        "options": Options(
            measure=measured,
            private_start=training.private_start,
            checkpoint=execution.store(),
            progress=execution.progress,
        ),
    }
    run: Callable[..., Result] = simulate
    if settings.piece is not None:
        run, asked["runs"] = simulate_in_pieces, pieces_of(settings.runs, settings.piece)
    found = {}
    for name, algorithm, law in cases:
        asked["stepsize"] = training.stepsize(law, epoch)
        found[name] = run(problem, algorithm, graph, **asked)
    facts = {
        "training": {key: value for key, value in vars(training).items() if key != "data_dir"},
        "graph": graph.describe(),
        "problem": problem.describe(),
        "rounds_an_epoch": epoch,
        "runs": settings.runs,
        "insecure_seed": settings.insecure_seed,
        "results": {name: curves(result) for name, result in found.items()},
    }
    return Trained(found, facts, held)


def difference(ours: Tensor, theirs: Tensor) -> tuple[float, float]:
    """Welch's 95 % interval of the mean of `ours` minus that of `theirs`; infinite for one run."""
    if min(len(ours), len(theirs)) < 2:
        return -math.inf, math.inf
    ours, theirs = ours.double(), theirs.double()
    if not ours.var() + theirs.var():
        gap = float(ours.mean() - theirs.mean())
        return gap, gap
    test = stats.ttest_ind(ours.numpy(), theirs.numpy(), equal_var=False)
    low, high = test.confidence_interval(0.95)
    return float(low), float(high)


def shown(values: Tensor) -> str:
    """Mean ± 95 %, the mean alone for one run."""
    mean = f"{float(values.mean()):.4f}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {1.96 * float(values.std()) / len(values) ** 0.5:.4f}"
