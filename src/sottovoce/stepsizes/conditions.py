"""What the paper's theorems ask of graph and stepsize, decided exactly where it can be."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import GraphError, StepsizeError
from sottovoce.graphs import Graph
from sottovoce.stepsizes import LAWS, Power, Stepsize

_TERMS = 100_000
_STATEMENTS = {
    "mean not summable": "Σ λ̄ = ∞",
    "mean square summable": "Σ λ̄² < ∞",
    "deviation square summable": "Σ σ² < ∞",
    "heterogeneity summable": "Σ_k Σ_{i≠j} |λ̄_i - λ̄_j| < ∞",
}
_SPREAD_DECAY = {"deterministic": math.inf, "experiment": 1.0, "uniform": 0.0}
_Verdict = tuple[bool | None, float | None, str]


@dataclass(frozen=True)
class Condition:
    """One condition of the theorems, the number that decides it, and `met`: None if undecidable."""

    name: str
    statement: str
    met: bool | None
    value: float | None
    reason: str


def theorem_conditions(stepsize: Stepsize, agents: int = 1) -> list[Condition]:
    """Decide the stepsize conditions of the paper's convergence theorems, one by one.

    For c/(k+k0)^p the answer is exact: Σ mean diverges iff p <= 1, Σ mean² converges iff p > 1/2,
    Σ σ² by the decay of the law's spread, and Σ |λ̄_i - λ̄_j| converges iff all scales agree or
    p > 1. For a schedule or law of your own nothing can be decided from finitely many values: the
    partial sums over 10⁵ counts are given instead.
    """
    if isinstance(stepsize.schedule, Power) and stepsize.law in LAWS.values():
        verdicts = _decided(stepsize, stepsize.schedule, agents)
    else:
        verdicts = _undecided(stepsize)
    each = zip(_STATEMENTS.items(), verdicts, strict=True)
    return [Condition(name, statement, *verdict) for (name, statement), verdict in each]


def mixing_conditions(graph: Graph | GraphError) -> list[Condition]:
    """What the theorems ask of W: one condition where it is met, else one for each fault."""
    name, statement = "mixing matrix", "W doubly stochastic, w_ii > 0, ρ = ||W - 11ᵀ/m|| < 1"
    if isinstance(graph, GraphError):
        return [Condition(name, statement, False, None, fault) for fault in graph.faults]
    reason = f"ρ of {graph.name} with {graph.weights} weights (must be below 1)"
    return [Condition(name, statement, graph.rho < 1, graph.rho, reason)]


def _decided(stepsize: Stepsize, schedule: Power, agents: int) -> list[_Verdict]:
    scales, p = schedule.scales, schedule.exponent
    if len(scales) not in (1, agents):
        raise StepsizeError(f"the schedule has {len(scales)} scales, but there are {agents} agents")
    counts = np.arange(1.0, _TERMS + 1)
    base = scales[0] / (counts + schedule.offset) ** p
    low, high = stepsize.law.interval(counts)  # type: ignore[arg-type]
    mean, std = base * (low + high) / 2, base * (high - low) / math.sqrt(12)
    std_decay = p + _SPREAD_DECAY[stepsize.law.name]
    means = _series(mean, p, schedule)
    mean_squares = _series(mean**2, 2 * p, schedule)
    variances = _series(std**2, 2 * std_decay, schedule)
    alike = len({*scales}) == 1
    shared = "all agents share one mean"
    if stepsize.deviation:
        shared += f"; private deviations end after round {stepsize.deviation.rounds}"
    values = [means, mean_squares, variances, 0.0 if alike and not stepsize.deviation else None]
    met = [means is None, mean_squares is not None, variances is not None, alike or p > 1]
    reasons = [
        f"Σ mean {_goes(means)} for mean {schedule} (exponent {p:g}, must be at most 1)",
        f"Σ mean² {_goes(mean_squares)} for mean {schedule} (exponent {p:g}, must be above 0.5)",
        f"σ decays like k^-{std_decay:g} (exponent must be above 0.5)"
        if math.isfinite(std_decay)
        else "the law is deterministic",
        shared
        if alike
        else f"agents have different scales and exponent {p:g} (must be above 1 then)",
    ]
    return list(zip(met, values, reasons, strict=True))


def _goes(total: float | None) -> str:
    return "diverges" if total is None else "converges"


def _series(terms: NDArray[np.float64], decay: float, schedule: Power) -> float | None:
    """The sum over rounds: many terms plus the integral of the tail; None where it diverges.

    The tail falls like (k + k0)^-decay, and Σ_{k>n} of it is the integral from n + 1/2 up to a
    relative error of order n^-2.
    """
    if decay <= 1:
        return None
    last = _TERMS + schedule.offset
    tail = terms[-1] * last * (1 + 0.5 / last) ** (1 - decay) / (decay - 1)
    return float((terms.sum() + tail) * schedule.block)


def _undecided(stepsize: Stepsize) -> list[_Verdict]:
    block = stepsize.schedule.block
    intervals = np.array([stepsize.interval(k * block + 1) for k in range(_TERMS)])
    mean, std = intervals.mean(axis=1), (intervals[:, 1] - intervals[:, 0]) / math.sqrt(12)
    reason = f"not decidable for a schedule or law of your own; the sum over k <= {_TERMS:,} is"
    sums = [float(terms.sum() * block) for terms in (mean, mean**2, std**2)]
    undecided: list[_Verdict] = [(None, total, f"{reason} {total:.6g}") for total in sums]
    return [*undecided, (True, 0.0, "all agents share one mean")]
