"""ε from below: what an attack that was carried out rules out."""

from sottovoce.privacy.lower_bound.errors_to_epsilon import (
    EpsilonBounds,
    Errors,
    Sampled,
    epsilon_bounds,
)
from sottovoce.privacy.lower_bound.many_runs import CanarySettings, LowerBound, epsilon_from_below
from sottovoce.privacy.lower_bound.one_run import OneRun, one_run_bound, throw_coins
from sottovoce.privacy.lower_bound.statistics import STATISTICS, Statistic

__all__ = [
    "STATISTICS",
    "CanarySettings",
    "EpsilonBounds",
    "Errors",
    "LowerBound",
    "OneRun",
    "Sampled",
    "Statistic",
    "epsilon_bounds",
    "epsilon_from_below",
    "one_run_bound",
    "throw_coins",
]
