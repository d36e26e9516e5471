"""The paper's convex problem with a guarantee: how far from the optimum, by round and by ε."""

from dataclasses import dataclass
from typing import Any

from sottovoce.charts import Series, banded, line_chart, panel
from sottovoce.errors import ProblemError
from sottovoce.mechanisms import PDSGD
from sottovoce.privacy.guarantee import ProofSettings
from sottovoce.privacy.planning import FAMILIES, Target, meet
from sottovoce.problems import Estimation
from sottovoce.simulation.options import Options
from sottovoce.simulation.result import Result
from sottovoce.simulation.runner import simulate
from sottovoce.storage.execution import Execution
from sottovoce.studies.settings import OnGraph, command_line, option
from sottovoce.studies.study import Chart, Data, Kind, Study, Table, curves, register

_WITHOUT = "PDSGD, no guarantee"


@dataclass(frozen=True, kw_only=True)
class PrivateConvergenceSettings(OnGraph):
    """How long, how often, under which ε."""

    epsilon: tuple[float, ...] = option((1.0, 3.0, 8.0), "The ε that is to hold; repeatable.")
    delta: float = option(1e-4, "The δ; below 1 / samples.")
    samples: int = option(100, "Measurements of an agent; the paper has 100.", min=1)
    batch: int = option(10, "Expected measurements in a batch.", option="--batch-size", min=1)
    steps: int = option(300, "Rounds of the algorithm.", min=1)
    runs: int = option(200, "Independent runs to average over.", min=2)
    clip: float = option(2.0, "The most that one measurement's gradient may be.")
    stepsize: str = option("2/(k+5)", "The public schedule of all algorithms.")
    data_seed: int = option(0, "Draws M_i, θ and the measurements.")


def private_convergence_study(
    settings: PrivateConvergenceSettings | None = None, execution: Execution | None = None
) -> Study:
    """PDSGD without a guarantee beside independent noise, edge noise and PDSGD with a proof.

    All train on the paper's estimation problem with the same batches and schedule; the noise is
    what `sottovoce plan` finds for each ε against an eavesdropper.
    """
    settings, execution = settings or PrivateConvergenceSettings(), execution or Execution()
    if not settings.epsilon:
        raise ProblemError("no ε is given; accepted: --epsilon 3")
    graph = settings.network()
    plain = Estimation.random(graph.agents, n=settings.samples, seed=settings.data_seed)
    problem = plain.with_batches(settings.batch, poisson=True)
    asked: Any = {
        "steps": settings.steps,
        "runs": settings.runs,
        "stepsize": settings.stepsize,
        "insecure_seed": settings.insecure_seed,
        "options": Options(progress=execution.progress),
    }
    found: dict[str, dict[float, Result]] = {}
    proved: dict[str, dict[float, float | None]] = {}
    training = ProofSettings.of(
        problem.sampling, settings.steps, delta=settings.delta, stepsize=settings.stepsize
    )
    for name in FAMILIES:
        found[name], proved[name] = {}, {}
        for epsilon in sorted(set(settings.epsilon)):
            target = Target(
                epsilon=epsilon, training=training, graph=graph, algorithm=name, clip=settings.clip
            )
            plan = meet(target)
            found[name][epsilon] = simulate(problem, plan.mechanism, graph, **asked)
            proved[name][epsilon] = plan.epsilon
    without = simulate(problem, PDSGD(), graph, **asked)
    ends = {name: {e: _end(one) for e, one in each.items()} for name, each in found.items()}
    middle = sorted(set(settings.epsilon))[len(set(settings.epsilon)) // 2]
    data: dict[str, Any] = {
        "graph": graph.describe(),
        "delta": settings.delta,
        "runs": settings.runs,
        "middle": middle,
        "curves": {
            # In the order of the other panel, so that colours agree.
            **{f"{name}, ε = {middle:g}": curves(each[middle]) for name, each in found.items()},
            _WITHOUT: curves(without),
        },
        "ends": [
            {"name": name, "epsilon": proved[name][epsilon], "target": epsilon, **end}
            for name, each in ends.items()
            for epsilon, end in each.items()
        ],
        "without": _end(without),
    }
    table = Table(
        f"Distance to the optimum after {settings.steps:,} rounds, mean of {settings.runs:,} runs "
        f"± 95 %, by ε at δ = {settings.delta:g} for one record, everything overheard",
        ("algorithm", *(f"ε = {epsilon:g}" for epsilon in sorted(set(settings.epsilon)))),
        [
            *((name, *map(_shown, each.values())) for name, each in ends.items()),
            (_WITHOUT, *[_shown(data["without"])] * len(set(settings.epsilon))),
        ],
    )
    ours = ends["decor"][middle]["mean"]
    findings = [
        f"At ε = {middle:g} edge noise (decor) ends at "
        f"{ours / ends['ldp-dsgd'][middle]['mean']:.2f} times the distance of independent noise "
        f"(ldp-dsgd), and {ours / data['without']['mean']:.2f} times that of PDSGD without a "
        "guarantee.",
        "With a proved ε no chain converges exactly: the noise that protects stays, and the clip "
        "bends the optimum.",
    ]
    command = command_line("reproduce private-convergence", settings)
    title = "The paper's estimation problem with a guarantee"
    return Study("private-convergence", title, "", None, findings, data, command, [table])


def _end(result: Result) -> dict[str, float]:
    last = result.metric("distance")[-1].double()
    return {"mean": float(last.mean()), "half_width": 1.96 * float(last.std()) / len(last) ** 0.5}


def _shown(end: Data) -> str:
    return f"{end['mean']:.3g} ± {end['half_width']:.1g}"


def _chart(data: Data) -> Chart:
    by_round = [
        banded(name, one["rounds"], one["distance"], dashed=name == _WITHOUT)
        for name, one in data["curves"].items()
    ]
    by_epsilon = []
    for name in dict.fromkeys(end["name"] for end in data["ends"]):
        ends = [end for end in data["ends"] if end["name"] == name]
        by_epsilon.append(
            Series(
                name,
                [end["epsilon"] for end in ends],
                [end["mean"] for end in ends],
                [end["mean"] - end["half_width"] for end in ends],
                [end["mean"] + end["half_width"] for end in ends],
            )
        )
    shared: Any = {"y_title": "distance to the optimum", "size": (420, 300)}
    return panel(
        [
            line_chart(
                by_round,
                title="By round",
                subtitle=f"mean of {data['runs']} runs, 95 % band",
                x_title="round",
                log="xy",
                **shared,
            ),
            line_chart(
                by_epsilon,
                title="After the last round, by ε",
                subtitle=f"δ = {data['delta']:g}, one record, everything overheard",
                x_title="ε",
                log="xy",
                rules=[(data["without"]["mean"], "PDSGD")],
                **shared,
            ),
        ]
    )


register(
    Kind(
        "private-convergence",
        {"private-convergence": _chart},
        PrivateConvergenceSettings,
        private_convergence_study,
    )
)
