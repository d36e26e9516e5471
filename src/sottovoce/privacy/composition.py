"""What releases cost together: Gaussian releases over Poisson samples, composed by dp-accounting.

The unit is one record, added or removed; `records` counts those of one person. A release adds
noise of z times the most that one record contributes (z, the noise multiplier) to a sum over a
Poisson sample of rate q. Rate 1 is a release that every record takes part in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from scipy.stats import binom

from sottovoce.errors import PrivacyError
from sottovoce.problems.sampling import CUT, ROOM

_COARSE, _FINE = 1e-3, 1e-4
"""Discretisation of the privacy loss: a coarser one only raises ε, by about 0.02 % at ε = 3."""
_SMALL = 1.0
"""ε above which the coarse discretisation is as good as the fine one."""
_MOST_BINS = 4e6
_FACTOR = 0.7
_EXCESS = 5e-5


@dataclass(frozen=True, order=True)
class Release:
    """`count` rounds, each a Gaussian release over a Poisson sample.

    multiplier: z, above 0. rate: q, in (0, 1].
    """

    multiplier: float
    rate: float = 1.0
    count: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.multiplier < math.inf and 0 < self.rate <= 1 and self.count >= 1):
            raise PrivacyError(
                f"a release has noise multiplier {self.multiplier}, rate {self.rate} and count "
                f"{self.count}; accepted: a positive multiplier, a rate in (0, 1] and a count of 1 "
                "or more"
            )


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The smallest δ of a Gaussian mechanism whose sensitivity is μ standard deviations."""
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    low, high = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return float(ndtr(low) - math.exp(epsilon + log_ndtr(high)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε >= 0 with δ(ε) <= `delta` for a sensitivity of μ standard deviations."""
    require_delta(delta)
    if math.isnan(mu) or mu < 0:
        raise PrivacyError(f"mu is {mu}; it must not be negative")
    if math.isinf(mu):
        return math.inf
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    enough = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    return float(brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0.0, enough))


def require_delta(delta: float) -> None:
    """Raise unless δ is between 0 and 1."""
    if not 0 < delta < 1:
        raise PrivacyError(f"delta is {delta}; accepted: a number between 0 and 1")


def epsilon_of(releases: Iterable[Release], delta: float, records: int = 1) -> float:
    """The smallest ε at this δ for all releases together, for a person with `records` records.

    A Poisson sample that has no room for the records is not covered: the probability of that,
    which does not depend on them, is added to δ in every round. For a person with more records
    than there is room for, sampling is not credited.
    """
    require_delta(delta)
    if records < 1:
        raise PrivacyError(f"a person has {records} records; accepted: 1 or more")
    counts: dict[tuple[float, float], int] = {}
    for one in releases:
        key = one.multiplier, one.rate
        counts[key] = counts.get(key, 0) + one.count
    events = tuple(sorted(Release(z, q, count) for (z, q), count in counts.items()))
    return _epsilon(events, delta, records, _FINE)


def multiplier_for(
    epsilon: float, delta: float, rate: float, count: int, records: int = 1
) -> float:
    """The least noise multiplier with which `count` releases of this rate cost at most ε at δ."""
    require_delta(delta)
    if not 0 < epsilon < math.inf:
        raise PrivacyError(f"epsilon is {epsilon}; accepted: a positive number")
    return _multiplier(epsilon, delta, Release(1.0, rate, count), records)


@lru_cache(maxsize=256)
def _multiplier(epsilon: float, delta: float, like: Release, records: int) -> float:
    interval = _COARSE if epsilon >= 1 else _FINE

    def excess(log_z: float) -> float:
        events = (Release(math.exp(log_z), like.rate, like.count),)
        return _epsilon(events, delta, records, interval) - epsilon

    low = high = 0.0
    while excess(high) > 0:
        low, high = high, high + _FACTOR
    while excess(low) <= 0:
        low, high = low - _FACTOR, low
    found = float(brentq(excess, low, high, xtol=_EXCESS / 4))
    # The promise is "at most", and the root is known to a fraction.
    while excess(found) > 0:
        found += _EXCESS / 2
    return math.exp(found)


@lru_cache(maxsize=512)
def _epsilon(events: tuple[Release, ...], delta: float, records: int, interval: float) -> float:
    if not events:
        return 0.0
    mu = records * math.sqrt(sum(one.count / one.multiplier**2 for one in events))
    full = gaussian_epsilon(mu, delta)
    losses = ((records / one.multiplier) for one in events)
    if all(one.rate == 1 for one in events) or not full or records > ROOM:
        return full
    if sum(loss**2 / 2 + 8 * loss for loss in losses) / _COARSE > _MOST_BINS:
        # So little noise that a distribution of losses would not fit: sampling is not credited.
        return full
    account = _accountant(events, records, _COARSE)
    found = float(account.get_epsilon(delta))
    if interval < _COARSE and found < _SMALL:
        account = _accountant(events, records, interval)
        found = float(account.get_epsilon(delta))
    left = delta - CUT * sum(one.count for one in events)
    return min(full, float(account.get_epsilon(left))) if left > 0 else full


def _accountant(events: tuple[Release, ...], records: int, interval: float) -> Any:
    import dp_accounting
    from dp_accounting import pld

    found = pld.PLDAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        value_discretization_interval=interval,
    )
    for one in events:
        found.compose(_event(one, records), one.count)
    return found


def _event(one: Release, records: int) -> Any:
    import dp_accounting
    from dp_accounting.dp_event import MixtureOfGaussiansDpEvent

    if records > 1:
        # How many of a person's records are in the sample is binomial; the sum moves by as many.
        moved = range(records + 1)
        chances = [float(binom.pmf(k, records, one.rate)) for k in moved]
        return MixtureOfGaussiansDpEvent(one.multiplier, list(map(float, moved)), chances)
    plain = dp_accounting.GaussianDpEvent(one.multiplier)
    return plain if one.rate == 1 else dp_accounting.PoissonSampledDpEvent(one.rate, plain)
