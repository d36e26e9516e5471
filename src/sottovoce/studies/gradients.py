"""The non-convex theorem's weighted averages of squared gradients, measured on small CNNs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from sottovoce.charts import banded, line_chart, panel
from sottovoce.mechanisms import PDSGD
from sottovoce.problems import ModuleProblem
from sottovoce.problems.data import models, partitions, sets
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Recording
from sottovoce.stepsizes import Stepsize, parse_stepsize
from sottovoce.storage.execution import Execution
from sottovoce.studies.judging import all_hold, judge
from sottovoce.studies.settings import OnGraph, command_line, option
from sottovoce.studies.study import Chart, Data, Kind, Study, Table, register
from sottovoce.studies.training import samples

CLAIM = (
    "With non-convex f_i of bounded gradients the averages of ||∇F(x̄)||² and ||Σ ∇f_i(x_i)/m||², "
    "weighted by the mean stepsizes, tend to zero."
)
_MODELS = {
    "sigmoid CNN, smooth": lambda: models.small_cnn("sigmoid"),
    "tanh CNN, max pooling": lambda: models.tanh_cnn("tanh"),
}
_QUANTITIES = {"mean": "||∇F(x̄)||²", "agents": "||Σ ∇f_i(x_i)/m||²"}
Portions = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class GradientsSettings(OnGraph):
    """How long, how often, with what steps."""

    steps: int = option(3000, "Rounds of the algorithm.", min=100)
    runs: int = option(5, "Independent trainings.", min=2)
    images: int = option(100, "Images of every agent.", min=10)
    stepsize: str = option("experiment:0.5/k^0.6", "Σ λ̄ must diverge and Σ λ̄² converge.")


def gradients_study(
    settings: GradientsSettings | None = None, execution: Execution | None = None
) -> Study:
    """The weighted gradient averages of the non-convex theorem, by round, on two CNNs.

    Gradients are those of all images of the agents, computed in about 60 rounds spaced evenly on a
    logarithmic scale; between them each stands for the rounds up to the next one.
    """
    settings, execution = settings or GradientsSettings(), execution or Execution()
    network, stepsize = settings.network(), parse_stepsize(settings.stepsize)
    spaced = np.geomspace(1, settings.steps, 60).round().astype(int)
    rounds = sorted({int(one) for one in spaced})
    loaded = sets.load("subset").training
    held = samples(loaded, partitions.equal(loaded.labels, network.agents, 0))
    portions: Portions = [(a[: settings.images], b[: settings.images]) for a, b in _pairs(held)]
    found: dict[str, Any] = {}
    for name in _MODELS:
        states, problem = _trained(name, portions, settings, rounds)
        squares, largest = _squares(problem, states, portions)
        found[name] = _averages(squares, rounds, stepsize) | {"largest": largest}
        execution.say(f"{name}: measured")
    cases = [(name, quantity) for name in found for quantity in _QUANTITIES]
    verdict = all_hold(judge(*found[a][b]["fall"][1:], below=1.0) for a, b in cases)
    rate = all_hold(judge(*one["mean"]["slope"][1:], below=-0.95) for one in found.values())
    return Study(
        "gradients",
        "Weighted gradient averages of the non-convex theorem",
        CLAIM,
        verdict,
        _findings(found, settings.steps, verdict, rate),
        {"rounds": rounds, "models": found, "steps": settings.steps, "rate_verdict": rate},
        command_line("reproduce gradients", settings),
        [_table(found, settings)],
    )


def _pairs(held: Any) -> Portions:
    return [(inputs, labels) for inputs, labels in held]


def _trained(
    name: str, portions: Portions, settings: GradientsSettings, rounds: list[int]
) -> tuple[Tensor, ModuleProblem]:
    """All agents' states (rounds, runs, agents, d) when these rounds begin."""
    activation = name.split()[0]

    def start(model: torch.nn.Module, run: int) -> None:
        models.initialise(model, run, activation)

    problem = ModuleProblem(_MODELS[name](), cross_entropy, [*portions], batch=8, initialise=start)
    result = simulate(
        problem,
        PDSGD(),
        settings.network(),
        steps=settings.steps,
        runs=settings.runs,
        stepsize=settings.stepsize,
        insecure_seed=settings.insecure_seed,
        options=Options(measure=[rounds[-1]], record=Recording(rounds, range(settings.runs))),
    )
    assert result.transcript is not None
    return result.transcript.truth.states, problem


def _squares(
    problem: ModuleProblem, states: Tensor, portions: Portions
) -> tuple[dict[str, Tensor], float]:
    """||∇F(x̄)||² and ||Σ ∇f_i(x_i)/m||², (rounds, runs) each, and the largest ||∇f_i(x_i)||."""

    def gradient(state: Tensor, own: tuple[Tensor, Tensor]) -> Tensor:
        point = state.clone().requires_grad_()
        outputs = functional_call(problem.model, problem.layout.views(point), (own[0],))
        (found,) = torch.autograd.grad(cross_entropy(outputs, own[1]), point)
        return found.double()

    squares = {name: torch.zeros(states.shape[:2]).double() for name in _QUANTITIES}
    everyone = torch.cat([a for a, _ in portions]), torch.cat([b for _, b in portions])
    largest = 0.0
    for at in np.ndindex(*states.shape[:2]):
        each = [gradient(x, own) for x, own in zip(states[at], portions, strict=True)]
        squares["mean"][at] = gradient(states[at].mean(0), everyone).square().sum()
        squares["agents"][at] = torch.stack(each).mean(0).square().sum()
        largest = max(largest, *(float(one.norm()) for one in each))
    return squares, largest


def _averages(squares: dict[str, Tensor], rounds: list[int], stepsize: Stepsize) -> dict[str, Any]:
    """Of both quantities: weighted averages by round, their fall over the last decade, a slope."""
    steps = [stepsize.mean(k) for k in range(1, rounds[-1] + 1)]
    ends = [*rounds[1:], rounds[-1] + 1]
    sums = [sum(steps[a - 1 : b - 1]) for a, b in zip(rounds, ends, strict=True)]
    weights = torch.tensor(sums, dtype=torch.float64)
    decade = next(at for at, k in enumerate(rounds) if k >= rounds[-1] / 10)
    times = np.log(rounds[decade:])
    found = {}
    for name, values in squares.items():
        average = (values * weights[:, None]).cumsum(0) / weights.cumsum(0)[:, None]
        slopes = [float(np.polyfit(times, run.log().numpy(), 1)[0]) for run in values[decade:].T]
        found[name] = {
            "average": _spread(average),
            "value": _spread(values),
            "fall": _interval((average[-1] / average[decade]).tolist()),
            "slope": _interval(slopes),
        }
    return found


def _interval(values: list[float]) -> tuple[float, float, float]:
    """Mean and Student's 95 % interval over trainings."""
    middle, spread = float(np.mean(values)), float(np.std(values, ddof=1))
    half = float(stats.t.ppf(0.975, len(values) - 1)) * spread / len(values) ** 0.5
    return middle, middle - half, middle + half


def _spread(values: Tensor) -> dict[str, list[float]]:
    each = [_interval(row.tolist()) for row in values]
    return {key: [one[at] for one in each] for at, key in enumerate(("mean", "low", "high"))}


def _findings(found: dict[str, Any], steps: int, verdict: str, rate: str) -> list[str]:
    said = [
        f"{name}: over the last decade of {steps:,} rounds the average of ||∇F(x̄)||² falls to "
        f"{one['mean']['fall'][0]:.2f} ({one['mean']['fall'][1]:.2f} to "
        f"{one['mean']['fall'][2]:.2f}) of what it was; ||∇F(x̄)||² itself falls like "
        f"k^{one['mean']['slope'][0]:.2f}. The largest gradient of an agent is "
        f"{one['largest']:.2f}."
        for name, one in found.items()
    ]
    return [
        *said,
        f"That both averages fall is {verdict}; a limit of zero cannot be seen in finitely many "
        f"rounds. That ||∇F(x̄)||² falls no slower than 1/k, as the remark says, is {rate} here.",
    ]


def _table(found: dict[str, Any], settings: GradientsSettings) -> Table:
    rows = []
    for name, one in found.items():
        for quantity, text in _QUANTITIES.items():
            fall, slope = one[quantity]["fall"], one[quantity]["slope"]
            rows.append(
                (
                    name,
                    text,
                    f"{one[quantity]['average']['mean'][-1]:.3g}",
                    f"{fall[0]:.3f} ({fall[1]:.3f} to {fall[2]:.3f})",
                    f"{slope[0]:.2f} ({slope[1]:.2f} to {slope[2]:.2f})",
                )
            )
    title = (
        f"Rounds {settings.steps // 10:,} to {settings.steps:,}, {settings.runs} trainings, 95 %"
    )
    return Table(title, ("model", "quantity", "average", "average falls to", "slope"), rows)


def _chart(data: Data) -> Chart:
    charts = []
    for name, one in data["models"].items():
        lines = [
            banded(f"average of {text}", data["rounds"], one[quantity]["average"])
            for quantity, text in _QUANTITIES.items()
        ]
        lines.append(banded("||∇F(x̄)||²", data["rounds"], one["mean"]["value"], dashed=True))
        charts.append(
            line_chart(
                lines,
                title=name,
                subtitle="95 % bands over trainings",
                x_title="round",
                y_title="squared norm",
                log="xy",
                size=(420, 300),
            )
        )
    return panel(charts)


register(Kind("gradients", {"gradients": _chart}, GradientsSettings, gradients_study))
