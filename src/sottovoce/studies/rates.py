"""Measured convergence rates against the O(k^-1/2) of the paper's remarks."""

from typing import Any

import numpy as np
from scipy import stats

from sottovoce.errors import SimulationError
from sottovoce.graphs import Graph, ring
from sottovoce.mechanisms import PDSGD
from sottovoce.problems import Quadratic
from sottovoce.simulation.options import Options
from sottovoce.simulation.result import Result
from sottovoce.simulation.runner import simulate
from sottovoce.stepsizes import Experiment, Power, Stepsize
from sottovoce.studies.study import Study, Table

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
_TOLERANCE = 0.05


def rates(
    *,
    steps: int = 10_000,
    runs: int = 100,
    graph: Graph | None = None,
    data_seed: int = 0,
    insecure_seed: int | None = None,
    progress: bool = False,
) -> Study:
    """Fit slopes over the last decade of rounds, for convex and for indefinite f_i.

    The stepsize is (1 - ϱ/k)/k. In the third case F has curvature 0.2 in one direction, so that
    λ̄ = 1/k is too short for it: the theorems' conditions hold there too.
    """
    if steps < 10 or runs < 2:
        raise SimulationError(
            f"steps is {steps} and runs is {runs}; a slope over the last decade of rounds with its "
            "spread needs at least 10 and 2"
        )
    graph = graph or ring(5)
    stepsize = Stepsize(Power(), Experiment())
    found: dict[str, Result] = {}
    for case, options in _CASES.items():
        problem = Quadratic.random(graph.agents, 10, noise=1.0, seed=data_seed, **options)
        found[case] = simulate(
            problem,
            PDSGD(),
            graph,
            stepsize=stepsize,
            steps=steps,
            runs=runs,
            insecure_seed=insecure_seed,
            options=Options(progress=progress),
        )
    slopes = {
        case: {metric: _slope(result, metric) for metric in _METRICS}
        for case, result in found.items()
    }
    slow = [
        f"{_METRICS[metric]} of {case!r} ({fit['slope']:.2f})"
        for case, fits in slopes.items()
        for metric, fit in fits.items()
        if fit["slope"] - fit["half_width"] > -0.5 + _TOLERANCE
    ]
    findings = [
        f"{case}: "
        + ", ".join(
            f"{_METRICS[metric]} falls like k^{fit['slope']:.2f} (± {fit['half_width']:.2f})"
            for metric, fit in fits.items()
        )
        + "."
        for case, fits in slopes.items()
    ]
    findings.append(
        "Every measured slope is at least as steep as -1/2."
        if not slow
        else f"Slower than k^-1/2: {'; '.join(slow)}. The remarks infer a rate from summability "
        "alone; where the curvature times the stepsize's scale is below 1/2, the distance to the "
        "optimum falls only like k to minus that product, although every condition of the theorem "
        "holds."
    )
    data = {
        "graph": graph.describe(),
        "stepsize": stepsize.describe(),
        "steps": steps,
        "runs": runs,
        "fitted_rounds": [steps // 10, steps],
        "slopes": slopes,
        "curves": {
            case: {
                "rounds": result.rounds,
                **{metric: result.band(metric).to_json() for metric in result.metrics},
            }
            for case, result in found.items()
        },
    }
    rows = [
        (case, _METRICS[metric], f"{fit['slope']:.3f}", f"± {fit['half_width']:.3f}")
        for case, fits in slopes.items()
        for metric, fit in fits.items()
    ]
    return Study(
        "rates",
        "Convergence rates of PDSGD",
        CLAIM,
        None if slow else True,
        findings,
        data,
        f"sottovoce reproduce rates --steps {steps} --runs {runs} --graph {graph.name}",
        [
            Table(
                f"Slopes over rounds {steps // 10:,} to {steps:,}, {runs} runs, 95 %",
                ("problem", "quantity", "slope", "spread"),
                rows,
            )
        ],
    )


def _slope(result: Result, metric: str) -> dict[str, float]:
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
