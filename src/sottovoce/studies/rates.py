"""Measured convergence rates against the O(k^-1/2) of the paper's remarks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from sottovoce.charts import Series, banded, line_chart, panel
from sottovoce.errors import SimulationError
from sottovoce.mechanisms import PDSGD
from sottovoce.problems import Quadratic
from sottovoce.simulation.options import Options
from sottovoce.simulation.result import Result
from sottovoce.simulation.runner import simulate
from sottovoce.stepsizes import Experiment, Power, Stepsize
from sottovoce.storage.execution import Execution
from sottovoce.studies.judging import Verdict, all_hold, judge
from sottovoce.studies.settings import OnGraph, command_line, option
from sottovoce.studies.study import Chart, Data, Kind, Study, Table, curves, register

CLAIM = (
    "x_i converges to x̄, x̄ to an optimal solution, and E||∇F(x̄)|| to zero, each no slower than "
    "O(k^-1/2)."
)
_CASES: dict[str, dict[str, Any]] = {
    "convex f_i": {"indefiniteness": 0.0, "eigenvalues": (1.0, 2.0)},
    "indefinite f_i, convex F": {"indefiniteness": 3.0, "eigenvalues": (1.0, 2.0)},
    "convex f_i, flat direction": {"indefiniteness": 0.0, "eigenvalues": (0.2, 2.0)},
}
_METRICS = {"consensus": "consensus error", "gradient_norm": "gradient norm ||∇F(x̄)||"}
_TITLES = {"consensus": "Consensus error", "gradient_norm": "Gradient norm at the mean"}
_TOLERANCE = 0.05
Slopes = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Of every case and metric: `slope` and `half_width`."""


@dataclass(frozen=True, kw_only=True)
class RatesSettings(OnGraph):
    """How long, how often and on which random problems."""

    steps: int = option(10_000, "Rounds of the algorithm.", min=1)
    runs: int = option(100, "Independent runs to average over.", min=1)
    data_seed: int = option(0, "Draws the quadratic functions.")


def rates_study(settings: RatesSettings | None = None, execution: Execution | None = None) -> Study:
    """Measured convergence rates against the remarks' O(k^-1/2).

    Slopes are fitted over the last decade of rounds, for convex and for indefinite f_i, with
    stepsize (1 - ϱ/k)/k. In the third case F has curvature 0.2 in one direction, so that λ̄ = 1/k
    is too short for it: the theorems' conditions hold there too.
    """
    settings, execution = settings or RatesSettings(), execution or Execution()
    steps, runs, graph = settings.steps, settings.runs, settings.network()
    if steps < 10 or runs < 2:
        raise SimulationError(
            f"steps is {steps} and runs is {runs}; a slope over the last decade of rounds with its "
            "spread needs at least 10 and 2"
        )
    stepsize, options = Stepsize(Power(), Experiment()), Options(progress=execution.progress)
    asked: Any = {"steps": steps, "runs": runs, "insecure_seed": settings.insecure_seed}
    found, slopes = {}, {}
    for case, shape in _CASES.items():
        problem = Quadratic.random(graph.agents, 10, noise=1.0, seed=settings.data_seed, **shape)
        result = simulate(problem, PDSGD(), graph, stepsize=stepsize, options=options, **asked)
        found[case] = result
        slopes[case] = {metric: fit_slope(result, metric) for metric in _METRICS}
    fitted = [
        (case, _METRICS[metric], fit["slope"], fit["half_width"])
        for case, fits in slopes.items()
        for metric, fit in fits.items()
    ]
    findings = [
        f"{case}: "
        + ", ".join(f"{q} falls like k^{s:.2f} (± {h:.2f})" for c, q, s, h in fitted if c == case)
        + "."
        for case in slopes
    ]
    table = Table(
        f"Slopes over rounds {steps // 10:,} to {steps:,}, {runs} runs, 95 %",
        ("problem", "quantity", "slope", "spread"),
        [(c, quantity, f"{s:.3f}", f"± {h:.3f}") for c, quantity, s, h in fitted],
    )
    data = {
        "graph": graph.describe(),
        "stepsize": stepsize.describe(),
        "steps": steps,
        "runs": runs,
        "fitted_rounds": [steps // 10, steps],
        "slopes": slopes,
        "curves": {case: curves(result) for case, result in found.items()},
    }
    verdict = all_hold(verdicts(slopes).values())
    said, command = [*findings, _overall(slopes)], command_line("reproduce rates", settings)
    title = "Convergence rates of PDSGD"
    return Study("rates", title, CLAIM, verdict, said, data, command, [table])


def verdicts(slopes: Slopes) -> dict[tuple[str, str], Verdict]:
    """Of every case and metric, whether it falls like k^-1/2 or faster, to a tolerance."""
    found = {}
    for case, fits in slopes.items():
        for metric, fit in fits.items():
            low, high = fit["slope"] - fit["half_width"], fit["slope"] + fit["half_width"]
            found[case, metric] = judge(low, high, below=-0.5 + _TOLERANCE)
    return found


def _overall(slopes: Slopes) -> str:
    named: dict[Verdict, list[str]] = {"confirmed": [], "refuted": [], "undecided": []}
    for (case, metric), verdict in verdicts(slopes).items():
        slope = slopes[case][metric]["slope"]
        named[verdict].append(f"{_METRICS[metric]} of {case!r} ({slope:.2f})")
    if named["refuted"]:
        return (
            f"Slower than k^-1/2: {'; '.join(named['refuted'])}. The remarks infer a rate from "
            "summability alone; where the curvature times the stepsize's scale is below 1/2, the "
            "distance to the optimum falls only like k to minus that product, although every "
            "condition of the theorem holds."
        )
    if named["undecided"]:
        return f"Too uncertain to compare with k^-1/2: {'; '.join(named['undecided'])}."
    return "Every measured slope is at least as steep as -1/2."


def fit_slope(result: Result, metric: str) -> dict[str, float]:
    """Slope of log mean against log round over the last decade, spread by ten groups of runs."""
    values = result.metric(metric).numpy()
    rounds = np.array(result.rounds)
    last = rounds >= rounds[-1] / 10
    logs = np.log(rounds[last])

    def fit(mean: Any) -> float:
        return float(np.polyfit(logs, np.log(np.maximum(mean, 1e-300)), 1)[0])

    groups = min(10, values.shape[1])
    fits = [fit(values[last][:, g::groups].mean(1)) for g in range(groups)]
    half = float(stats.t.ppf(0.975, groups - 1) * np.std(fits, ddof=1) / groups**0.5)
    return {"slope": fit(values[last].mean(1)), "half_width": half}


def _chart(data: Data) -> Chart:
    charts = []
    for metric, title in _TITLES.items():
        series = [
            banded(case, curves["rounds"][1:], {k: v[1:] for k, v in curves[metric].items()})
            for case, curves in data["curves"].items()
        ]
        rounds, start = series[0].x, series[0].y[0]
        slope = Series("slope -1/2", rounds, [start * k**-0.5 for k in rounds], dashed=True)
        charts.append(
            line_chart(
                [*series, slope],
                title=title,
                subtitle=f"PDSGD, mean of {data['runs']} runs, 95 % band",
                x_title="round k",
                y_title=title.lower(),
                log="xy",
                size=(420, 320),
            )
        )
    return panel(charts)


register(Kind("rates", {"rates": _chart}, RatesSettings, rates_study))
