"""What a guarantee costs on all of MNIST: accuracy beside ε, for agents and for data in one place.

Settings were chosen on 5,000 training images held out (`--select`); the table then trains on all
training images and reads the test images once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from sottovoce.charts import Series, line_chart
from sottovoce.errors import ProblemError
from sottovoce.graphs import parse_graph
from sottovoce.mechanisms import parse_algorithm
from sottovoce.privacy.guarantee import ProofSettings
from sottovoce.privacy.planning import Target, meet
from sottovoce.problems import ModuleProblem
from sottovoce.problems.data import models, partitions, sets
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.storage.execution import Execution
from sottovoce.studies.learning import shown
from sottovoce.studies.settings import command_line, option
from sottovoce.studies.study import Chart, Data, Kind, Study, Table, register

DELTA = 1e-5
HELD_OUT = 5000
"""Training images on which settings are chosen."""
_ONE_PLACE = "complete:1"
_RING, _TWENTY = "ring:5", "random-regular:20:4"


@dataclass(frozen=True)
class Row:
    """One training: by whom, under which ε against whom, and how long.

    algorithm: of a plan where ε is given; otherwise a chain by name. batch: expected, of an agent.
    """

    name: str
    graph: str
    algorithm: str
    epsilon: float | None
    batch: int
    rounds: int
    stepsize: str
    adversary: str = "eavesdropper"


def _row(name: str, graph: str, algorithm: str, epsilon: float | None, *how: Any) -> Row:
    batch, rounds, scale, *adversary = how
    return Row(
        name, graph, algorithm, epsilon, batch, rounds, f"{scale}:falling={rounds}", *adversary
    )


MNIST = (
    _row("decor-3", _RING, "decor", 3.0, 512, 1500, 2),
    _row("decor-1", _RING, "decor", 1.0, 512, 940, 1.5),
    _row("dp-pdsgd-3", _RING, "dp-pdsgd", 3.0, 512, 1500, 2),
    _row("dp-pdsgd-1", _RING, "dp-pdsgd", 1.0, 512, 940, 1.5),
    _row("curious-3", _RING, "decor", 3.0, 512, 1500, 2, "any:1"),
    _row("ldp-dsgd-3", _RING, "ldp-dsgd", 3.0, 512, 940, 2),
    _row("ldp-dsgd-1", _RING, "ldp-dsgd", 1.0, 512, 940, 1),
    _row("twenty-decor-3", _TWENTY, "decor", 3.0, 256, 940, 2.5),
    _row("twenty-dp-pdsgd-3", _TWENTY, "dp-pdsgd", 3.0, 256, 940, 2.5),
    _row("central-3", _ONE_PLACE, "ldp-dsgd", 3.0, 2560, 1500, 2),
    _row("central-1", _ONE_PLACE, "ldp-dsgd", 1.0, 2560, 940, 1.5),
    _row("clipped", _RING, "clip:1.0+shares:weights", None, 512, 1500, 3),
    Row("pdsgd", _RING, "pdsgd", None, 512, 1500, "experiment:0.5:falling=1500"),
)
"""On all of MNIST: five agents with 12,000 images, twenty with 3,000, or all in one place."""
SUBSET = (
    _row("dp-pdsgd-8", _RING, "dp-pdsgd", 8.0, 128, 100, 2),
    _row("decor-8", _RING, "decor", 8.0, 128, 100, 2),
    _row("clipped", _RING, "clip:1.0+shares:weights", None, 128, 100, 2),
    Row("pdsgd", _RING, "pdsgd", None, 128, 100, "experiment:0.5:falling=100"),
)
"""On the shipped subset, 1,000 images an agent: minutes on one core."""


@dataclass(frozen=True, kw_only=True)
class GuaranteeSettings:
    """Which data, which rows, how often, and on which images accuracy is read."""

    data: str = option("subset", "subset (shipped), mnist or fashion-mnist.")
    data_dir: str | None = option(None, "Folder of IDX files (or set SOTTOVOCE_DATA).")
    only: tuple[str, ...] = option((), "A row by name; all unless given; repeatable.")
    runs: int = option(3, "Independent runs to average over.", min=1)
    select: bool = option(
        False,
        f"Hold out {HELD_OUT:,} training images and read accuracy on them.",
        option="--select",
    )
    device: str = option("cpu", "cpu or cuda.")
    insecure_seed: int | None = option(None, "Make the private numbers repeatable (studies only).")

    def rows(self) -> list[Row]:
        """The rows that are asked for."""
        known = {row.name: row for row in (SUBSET if self.data == "subset" else MNIST)}
        if strange := [name for name in self.only if name not in known]:
            raise ProblemError(f"no row is called {strange[0]!r}; accepted: {', '.join(known)}")
        return [known[name] for name in self.only or known]


def guarantee_study(
    settings: GuaranteeSettings | None = None, execution: Execution | None = None
) -> Study:
    """Accuracy with a proved ε beside no guarantee: independent noise, edge noise, random shares.

    Everything is overheard in every row; ε against a curious neighbour and two who collude stands
    beside it. Several processes may work on different rows (--only) in one folder.
    """
    settings, execution = settings or GuaranteeSettings(), execution or Execution()
    images = _Images(settings)
    found = [_trained(row, images, settings, execution) for row in settings.rows()]
    return as_study(settings, images.read_on, found)


def as_study(settings: GuaranteeSettings, read_on: str, found: Sequence[Data]) -> Study:
    """The study of rows that were trained, together or apart."""
    data = {
        "data": settings.data,
        "delta": DELTA,
        "runs": settings.runs,
        "read_on": read_on,
        "rows": list(found),
    }
    table = Table(
        f"Accuracy of the agents' models on {read_on}, mean of {settings.runs} runs ± 95 %; "
        f"ε at δ = {DELTA:g} for one record, everything overheard",
        ("row", "agents", "algorithm", "accuracy", "ε", "and one curious", "and two", "batch"),
        [_cells(row) for row in found],
        optional=("batch", "algorithm", "agents"),
    )
    findings = [
        f"{row['name']}: {row['shown']} at ε = {row['epsilon']:.3g} against {row['adversary']}."
        for row in found
        if row["epsilon"] is not None
    ]
    title = "What a guarantee costs"
    command = command_line("reproduce guarantee", settings)
    return Study("guarantee", title, "", None, findings, data, command, [table])


class _Images:
    """The data, and which of it is trained on and read."""

    def __init__(self, settings: GuaranteeSettings) -> None:
        loaded = sets.load(settings.data, settings.data_dir)
        training, read = loaded.training, loaded.validation
        self.read_on = f"the {len(read):,} test images"
        if settings.select:
            order = torch.randperm(len(training), generator=torch.Generator().manual_seed(0))
            held = training.subset(order[:HELD_OUT])
            training, read = training.subset(order[HELD_OUT:]), held
            self.read_on = f"{HELD_OUT:,} training images held out"
        self.labels = training.labels
        self.inputs, self.targets, *self.read = (
            one.to(settings.device)
            for one in (training.standardised(), training.labels, read.standardised(), read.labels)
        )
        self.device = settings.device

    def problem(self, agents: int, batch: int, poisson: bool) -> ModuleProblem:
        """The CNN on the images, divided equally among the agents."""
        held = partitions.equal(self.labels, agents, 0)
        return ModuleProblem(
            models.tanh_cnn().to(self.device),
            cross_entropy,
            [(self.inputs[part], self.targets[part]) for part in held.indices],
            (self.read[0], self.read[1]),
            batch=batch,
            poisson=poisson,
            initialise=partial(models.initialise, activation="tanh"),
        )


def _trained(
    row: Row, images: _Images, settings: GuaranteeSettings, execution: Execution
) -> dict[str, Any]:
    graph = parse_graph(row.graph)
    chain = None if row.epsilon is not None else parse_algorithm(row.algorithm)
    problem = images.problem(graph.agents, row.batch, chain is None or chain.bound is not None)
    facts: dict[str, Any] = {"epsilon": None, "against": {}, "adversary": row.adversary}
    if row.epsilon is not None:
        sampling = problem.sampling
        training = ProofSettings.of(sampling, row.rounds, delta=DELTA, stepsize=row.stepsize)
        plan = meet(
            Target(
                epsilon=row.epsilon,
                training=training,
                graph=graph,
                algorithm=row.algorithm,
                adversary=row.adversary,
            )
        )
        chain, facts = plan.mechanism, plan.to_json()
    assert chain is not None
    result = simulate(
        problem,
        chain,
        graph,
        steps=row.rounds,
        runs=settings.runs,
        stepsize=row.stepsize,
        insecure_seed=settings.insecure_seed,
        options=Options(
            measure={row.rounds},
            checkpoint=execution.store(),
            keep_final=False,
            progress=execution.progress,
        ),
    )
    accuracy = result.metric("validation_accuracy")[-1]
    sizes = {"agents": graph.agents, "batch_size": row.batch, "rounds": row.rounds}
    return {
        **facts,
        **sizes,
        "name": row.name,
        "algorithm": str(chain),
        "kind": row.algorithm,
        "stepsize": row.stepsize,
        "accuracy": float(accuracy.mean()),
        "accuracies": accuracy.tolist(),
        "shown": shown(accuracy),
    }


def _cells(row: Data) -> tuple[Any, ...]:
    against = [_epsilon(row["against"].get(who)) for who in ("eavesdropper", "any:1", "any:2")]
    return row["name"], row["agents"], row["algorithm"], row["shown"], *against, row["batch_size"]


def _epsilon(against: Data | None) -> str:
    return "none" if not against or against["epsilon"] is None else f"{against['epsilon']:.3g}"


def _chart(data: Data) -> Chart:
    groups: dict[str, list[tuple[float, float]]] = {}
    for row in data["rows"]:
        if row["epsilon"] is not None and row["adversary"] == "eavesdropper":
            place = "in one place" if row["agents"] == 1 else f"{row['agents']} agents"
            name = f"{row['kind']}, {place}"
            groups.setdefault(name, []).append((row["epsilon"], row["accuracy"]))
    series = []
    for name, points in groups.items():
        epsilons, accuracies = zip(*sorted(points), strict=True)
        series.append(Series(name, epsilons, accuracies))
    rules = [(row["accuracy"], row["name"]) for row in data["rows"] if row["epsilon"] is None]
    return line_chart(
        series,
        title="Accuracy against ε",
        subtitle=f"δ = {data['delta']:g}, everything overheard, {data['read_on']}",
        x_title="ε",
        y_title="accuracy of the agents' models",
        log="x",
        rules=rules,
    )


register(Kind("guarantee", {"guarantee": _chart}, GuaranteeSettings, guarantee_study, False, True))
