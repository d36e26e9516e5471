"""From the errors of a test to ε: what privacy a test that succeeds so often rules out.

A test guesses from what is seen whether a record was used. (ε, δ) bounds its errors, so errors that
are too small refute it. Counts of errors become upper bounds on their rates (Clopper and Pearson
1934), and these become three lower bounds on ε, each for what it presumes:

- *plain*: nothing. TPR <= e^ε FPR + δ and the same with the roles exchanged.
- *gaussian*: that the mechanism's trade-off of errors is that of two Gaussians (Nasr et al. 2023),
  which many rounds of little effect each come near to. One point then fixes μ, hence all of it.
- *sampled*: that the mechanism is some number of rounds of Gaussian noise over Poisson samples of a
  known rate. One point bounds the noise multiplier from above, hence ε from below.
"""

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtri
from scipy.stats import beta

from sottovoce.errors import PrivacyError
from sottovoce.privacy.composition import gaussian_epsilon, require_delta

_LEAST, _MOST = 0.25, 1e3
"""Noise multipliers between which the family is searched; above, nothing is told apart."""
_WIDTH = 4e-3
_INTERVAL = 1e-3
"""Discretisation of the privacy loss."""
_LEVELS = np.concatenate([np.linspace(0.0, 12.0, 121), np.linspace(12.5, 40.0, 56)])


@dataclass(frozen=True)
class Errors:
    """How often a test was wrong.

    false_positives of `negatives` trials without the record, false_negatives of `positives` with.
    """

    false_positives: int
    negatives: int
    false_negatives: int
    positives: int

    def __post_init__(self) -> None:
        pairs = (
            (self.false_positives, self.negatives),
            (self.false_negatives, self.positives),
        )
        if any(not 0 <= wrong <= trials or not trials for wrong, trials in pairs):
            raise PrivacyError(f"errors {pairs} are not counts of at least one trial each")

    def at_most(self, confidence: float) -> tuple[float, float]:
        """Upper bounds on both rates that hold together with this confidence."""
        level = 1 - (1 - confidence) / 2
        return (
            upper_rate(self.false_positives, self.negatives, level),
            upper_rate(self.false_negatives, self.positives, level),
        )

    @property
    def perfect(self) -> "Errors":
        """As many trials without any error: what the ceiling of a bound is made of."""
        return Errors(0, self.negatives, 0, self.positives)


@dataclass(frozen=True)
class Sampled:
    """The family of `count` rounds of Gaussian noise over Poisson samples of a rate."""

    rate: float
    count: int


@dataclass(frozen=True)
class EpsilonBounds:
    """Lower bounds on ε at one δ; `sampled` is None where no family was named."""

    plain: float
    gaussian: float
    sampled: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def upper_rate(count: int, trials: int, level: float) -> float:
    """The largest rate that `count` of `trials` leaves possible (Clopper and Pearson 1934)."""
    return 1.0 if count >= trials else float(beta.ppf(level, count + 1, trials - count))


def epsilon_bounds(
    errors: Errors, delta: float, confidence: float = 0.95, family: Sampled | None = None
) -> EpsilonBounds:
    """What the errors of one test with a threshold fixed beforehand say of ε."""
    require_delta(delta)
    fpr, fnr = errors.at_most(confidence)
    sampled = None if family is None else sampled_epsilon(fpr, fnr, delta, family)
    return EpsilonBounds(plain_epsilon(fpr, fnr, delta), _gaussian(fpr, fnr, delta), sampled)


def plain_epsilon(fpr: float, fnr: float, delta: float) -> float:
    """The smallest ε that permits these error rates at δ, with nothing presumed."""
    pairs = ((1 - fnr - delta, fpr), (1 - fpr - delta, fnr))
    return max([0.0] + [math.log(right / wrong) for right, wrong in pairs if right > wrong])


def gaussian_mu(fpr: float, fnr: float) -> float:
    """The μ of the two Gaussians that a test with these error rates tells apart."""
    if fpr + fnr >= 1:
        return 0.0
    return float(ndtri(1 - fpr) - ndtri(fnr))


def _gaussian(fpr: float, fnr: float, delta: float) -> float:
    mu = gaussian_mu(fpr, fnr)
    return gaussian_epsilon(mu, delta) if mu > 0 else 0.0


@lru_cache(maxsize=256)
def sampled_epsilon(fpr: float, fnr: float, delta: float, family: Sampled) -> float:
    """The smallest ε of the family's members that permit these error rates.

    Members with a noise multiplier below 0.25 are not computed: where none of the others permits
    them, the ε of that one is returned, which is smaller.
    """
    if family.rate == 1:
        return _gaussian(fpr, fnr, delta)
    if fpr + fnr >= 1:
        return 0.0
    low, high = math.log(_LEAST), math.log(_MOST)
    if not _permits(_LEAST, fpr, fnr, family):
        high = low
    elif _permits(_MOST, fpr, fnr, family):
        return 0.0
    while high - low > _WIDTH:
        middle = (low + high) / 2
        permitted = _permits(math.exp(middle), fpr, fnr, family)
        low, high = (middle, high) if permitted else (low, middle)
    # Neither rounded up here nor at the smaller multiplier, where more is permitted.
    least = _losses(math.exp(high), family, pessimistic=False).get_epsilon_for_delta(delta)
    return max(0.0, float(least))


def _permits(multiplier: float, fpr: float, fnr: float, family: Sampled) -> bool:
    """Whether the member with this noise multiplier permits the error rates; in doubt, yes."""
    delta = np.array(_losses(multiplier, family).get_delta_for_epsilon(_LEVELS.tolist()))
    grown = np.exp(_LEVELS)
    least = np.maximum(1 - delta - grown * fpr, (1 - delta - fpr) / grown)
    return bool(fnr >= least.max())


def _losses(multiplier: float, family: Sampled, *, pessimistic: bool = True) -> Any:
    """The distribution of the privacy loss, its δ rounded up, or down if not pessimistic."""
    from dp_accounting.pld import privacy_loss_distribution as distributions

    one = distributions.from_gaussian_mechanism(
        multiplier,
        pessimistic_estimate=pessimistic,
        value_discretization_interval=_INTERVAL,
        sampling_prob=family.rate,
        use_connect_dots=pessimistic,
    )
    return one.self_compose(family.count)
