"""95 % intervals over targets of which some share a run, and with it the weights attacked.

Targets of different runs are independent; targets of one run are not. The design effect
1 + (m - 1) ρ says how many times more targets are needed than if they were, m being the targets of
a run and ρ the correlation within runs (Kish 1965), estimated by an analysis of variance and never
taken below 0. Intervals use the effective number of targets, n / design effect (Korn and Graubard
1998). Where all targets agree, ρ cannot be estimated: every run then counts as one target.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import beta, norm
from scipy.stats import t as student

LEVEL = 0.95


class Interval(NamedTuple):
    """The ends of a 95 % interval."""

    low: float
    high: float


def effective_number(values: Sequence[float], runs: Sequence[int]) -> float:
    """How many independent targets tell as much as these; runs: the run of each."""
    given, count = np.asarray(values, dtype=float), len(values)
    groups = [given[np.asarray(runs) == run] for run in dict.fromkeys(runs)]
    if len(groups) == count:
        return float(count)
    if len(groups) == 1 or float(np.ptp(given)) == 0:
        return float(len(groups))
    sizes = np.array([len(one) for one in groups], dtype=float)
    means = np.array([one.mean() for one in groups])
    between = float((sizes * (means - given.mean()) ** 2).sum()) / (len(groups) - 1)
    within = sum(float(((one - one.mean()) ** 2).sum()) for one in groups) / (count - len(groups))
    typical = (count - float((sizes**2).sum()) / count) / (len(groups) - 1)
    spread = between + (typical - 1) * within
    correlation = min(1.0, max(0.0, (between - within) / spread)) if spread > 0 else 1.0
    largest = float((sizes**2).sum()) / count
    return count / (1 + (largest - 1) * correlation)


def rate(hits: Sequence[float], runs: Sequence[int], tried: int = 1) -> Interval:
    """Of a share of targets: Clopper and Pearson (1934) at the effective number of targets.

    tried: how many attacks the best was chosen from; the interval holds for all of them together
    (Bonferroni).
    """
    number = effective_number(hits, runs)
    found = float(np.mean(hits)) * number
    tail = (1 - LEVEL) / tried / 2
    low = float(beta.ppf(tail, found, number - found + 1)) if found > 0 else 0.0
    high = float(beta.ppf(1 - tail, found + 1, number - found)) if found < number else 1.0
    return Interval(low, high)


def mean(values: Sequence[float], runs: Sequence[int], tried: int = 1) -> Interval:
    """Of the mean of numbers in [0, 1]: Student's t over the means of runs.

    Where all are equal and extreme, the interval of a sure event over this number of runs.
    """
    given, number = np.asarray(values, dtype=float), effective_number(values, runs)
    middle, tail = float(given.mean()), (1 - LEVEL) / tried / 2
    if number < 2:
        return Interval(0.0, 1.0)
    half = float(student.ppf(1 - tail, number - 1)) * float(given.std(ddof=1)) / math.sqrt(number)
    unseen = 1 - tail ** (1 / number)
    low = min(middle - half, 1 - unseen)
    high = max(middle + half, unseen)
    return Interval(max(0.0, low), min(1.0, high))


def median(values: Sequence[float], runs: Sequence[int], tried: int = 1) -> Interval:
    """Of a median: the order statistics that enclose it, at the effective number of targets."""
    number = effective_number(values, runs)
    reach = float(norm.ppf(1 - (1 - LEVEL) / tried / 2)) / (2 * math.sqrt(number))
    ordered = np.sort(np.nan_to_num(np.asarray(values, dtype=float), nan=np.inf))
    places = [
        math.floor((0.5 - reach) * len(ordered)),
        math.ceil((0.5 + reach) * len(ordered)) - 1,
    ]
    low, high = (float(ordered[min(max(at, 0), len(ordered) - 1)]) for at in places)
    return Interval(low, high)
