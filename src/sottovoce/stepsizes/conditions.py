"""What the paper's theorems ask of graph and stepsize, decided exactly where it can be."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import GraphError, StepsizeError
from sottovoce.graphs import Graph
from sottovoce.stepsizes import LAWS, Custom, Power, Stepsize


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
    if isinstance(stepsize.schedule, Custom) or stepsize.law not in LAWS.values():
        return _undecided(stepsize)
    schedule, p = stepsize.schedule, stepsize.schedule.exponent
    mean = f"mean {schedule}"
    spread_decay = 1.0 if stepsize.law.name == "experiment" else 0.0
    deterministic = stepsize.law.name == "deterministic"
    sigma_met = deterministic or 2 * (p + spread_decay) > 1
    scales = schedule.scale if isinstance(schedule.scale, tuple) else (schedule.scale,)
    if len(scales) not in (1, agents):
        raise StepsizeError(f"the schedule has {len(scales)} scales, but there are {agents} agents")
    gap = sum(abs(a - b) for a in scales for b in scales)
    shared = "all agents share one mean"
    if stepsize.deviation:
        shared += f"; private deviations end after round {stepsize.deviation.rounds}"
    return [
        Condition(
            "mean not summable",
            "Σ λ̄ = ∞",
            p <= 1,
            None if p <= 1 else _series(stepsize, lambda m, s: m, p),
            f"Σ mean {'diverges' if p <= 1 else 'converges'} for {mean} "
            f"(exponent {p:g}, must be at most 1)",
        ),
        Condition(
            "mean square summable",
            "Σ λ̄² < ∞",
            p > 0.5,
            _series(stepsize, lambda m, s: m**2, 2 * p) if p > 0.5 else None,
            f"Σ mean² {'converges' if p > 0.5 else 'diverges'} for {mean} "
            f"(exponent {p:g}, must be above 0.5)",
        ),
        Condition(
            "deviation square summable",
            "Σ σ² < ∞",
            sigma_met,
            _deviation_sum(stepsize, 2 * (p + spread_decay)) if sigma_met else None,
            "the law is deterministic"
            if deterministic
            else f"σ decays like k^-{p + spread_decay:g} (exponent must be above 0.5)",
        ),
        Condition(
            "heterogeneity summable",
            "Σ_k Σ_{i≠j} |λ̄_i - λ̄_j| < ∞",
            gap == 0 or p > 1,
            0.0 if gap == 0 and not stepsize.deviation else None,
            shared
            if gap == 0
            else f"agents have different scales and exponent {p:g} (must be above 1 then)",
        ),
    ]


def mixing_conditions(graph: Graph | GraphError) -> list[Condition]:
    """What the theorems ask of W: one condition where it is met, else one for each fault."""
    name, statement = "mixing matrix", "W doubly stochastic, w_ii > 0, ρ = ||W - 11ᵀ/m|| < 1"
    if isinstance(graph, GraphError):
        return [Condition(name, statement, False, None, fault) for fault in graph.faults]
    reason = f"ρ of {graph.name} with {graph.weights} weights (must be below 1)"
    return [Condition(name, statement, graph.rho < 1, graph.rho, reason)]


_TERMS = 100_000


def _series(
    stepsize: Stepsize,
    term: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]],
    decay: float,
) -> float:
    """The value of a convergent sum over rounds: many terms plus the integral of the tail.

    The tail falls like (k + k0)^-decay, and Σ_{k>n} of it is the integral from n + 1/2 up to a
    relative error of order n^-2.
    """
    schedule = stepsize.schedule
    assert isinstance(schedule, Power)
    counts = np.arange(1.0, _TERMS + 1)
    first = schedule.scale[0] if isinstance(schedule.scale, tuple) else schedule.scale
    base = first / (counts + schedule.offset) ** schedule.exponent
    low, high = stepsize.law.interval(counts)  # type: ignore[arg-type]
    terms = term(base * (low + high) / 2, base * (high - low) / math.sqrt(12))
    last = _TERMS + schedule.offset
    tail = terms[-1] * last * (1 + 0.5 / last) ** (1 - decay) / (decay - 1)
    return float((terms.sum() + tail) * schedule.block)


def _deviation_sum(stepsize: Stepsize, decay: float) -> float:
    if stepsize.law.name == "deterministic":
        return 0.0
    return _series(stepsize, lambda m, s: s**2, decay)


def _undecided(stepsize: Stepsize) -> list[Condition]:
    block = stepsize.schedule.block
    intervals = np.array([stepsize.interval(k * block + 1) for k in range(_TERMS)])
    mean, std = intervals.mean(axis=1), (intervals[:, 1] - intervals[:, 0]) / math.sqrt(12)
    sums = {
        ("mean not summable", "Σ λ̄ = ∞"): mean.sum(),
        ("mean square summable", "Σ λ̄² < ∞"): (mean**2).sum(),
        ("deviation square summable", "Σ σ² < ∞"): (std**2).sum(),
    }
    undecided = [
        Condition(
            name,
            statement,
            None,
            float(total * block),
            f"not decidable for a schedule or law of your own; the sum over k <= {_TERMS:,} is "
            f"{total * block:.6g}",
        )
        for (name, statement), total in sums.items()
    ]
    shared = Condition(
        "heterogeneity summable",
        "Σ_k Σ_{i≠j} |λ̄_i - λ̄_j| < ∞",
        True,
        0.0,
        "all agents share one mean",
    )
    return [*undecided, shared]
