"""How well anybody can estimate a gradient g from the step λ g: the paper's bound on the error.

An observer of y = λ g who knows the law of λ and a prior of g cannot estimate g with a mean squared
error below e^{2h} / (2πe), where h = h(g | λ g) is the conditional differential entropy in nats.
The stepsize is λ = base x factor with the factor uniform on an interval [low, high] that the law
states for round k, so that, with h(y | g) = ln(high - low) + E ln|g|,

    h(g | y) = h(g) + E ln|g| + ln(high - low) - h(y)

The base drops out: multiplying λ by a known constant is a bijection of y and tells an observer
nothing. Only the ratio low / high counts. This contradicts the paper's remark that a larger mean
stepsize protects better; it equally means that a stepsize going to zero costs no protection.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.spatial import cKDTree
from scipy.special import digamma, entr, exp1

from sottovoce.errors import PrivacyError

Array = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
# Below this ln(high / low) a difference of two exponential integrals loses digits.
_THIN = 0.1
# In units of the prior's spread, y below e^-45 carries less than 1e-16 of h(y).
_LOWEST_LOG = -45.0
_LAST_ROUND = 10**8
_NEIGHBOUR = 2
_REPLICATES = 8


class StepsizeLaw(Protocol):
    """Anything that says on which interval the stepsize's random factor is uniform in round k."""

    def interval(self, k: int, /) -> tuple[float, float]: ...


def _positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise PrivacyError(f"{name} must be a number; got {value!r}")
    if not 1e-150 <= value <= 1e150:
        raise PrivacyError(
            f"{name} is {value}; accepted: 1e-150 to 1e150, whose squares are doubles"
        )


def _log_ratio(gap: float) -> float:
    """ln(high / low) from gap = (high - low) / high."""
    return math.inf if gap >= 1 else -math.log1p(-gap)


@dataclass(frozen=True)
class GradientPrior(ABC):
    """What an observer knows of a gradient entry beforehand: a law symmetric about 0.

    Its scale parameter is `spread`, in units of the gradient; a subclass describes g / spread.
    """

    name: ClassVar[str]
    unit_entropy: ClassVar[float]
    unit_mean_log_abs: ClassVar[float]

    def __post_init__(self) -> None:
        ((name, value),) = vars(self).items()
        _positive(name, value)

    @property
    def spread(self) -> float:
        """The one parameter of the law."""
        (value,) = vars(self).values()
        return float(value)

    @abstractmethod
    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw n gradients, shape (n,)."""

    @abstractmethod
    def _panels(self, gap: float) -> list[float]:
        """Ends of the intervals of ln y on which `_product` is smooth."""

    @abstractmethod
    def _product(self, y: Array, gap: float) -> Array:
        """Density of v |g| / spread at y > 0, with v uniform on [1 - gap, 1]."""

    def entropy(self) -> float:
        """Return h(g) in nats."""
        return self.unit_entropy + math.log(self.spread)


@dataclass(frozen=True)
class UniformPrior(GradientPrior):
    """Gradients uniform on [-kappa, kappa], the prior of the paper's estimation-error theorem."""

    kappa: float
    name: ClassVar[str] = "uniform"
    unit_entropy: ClassVar[float] = math.log(2)
    unit_mean_log_abs: ClassVar[float] = -1.0

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        return self.kappa * rng.uniform(-1.0, 1.0, n)

    def _panels(self, gap: float) -> list[float]:
        kink = -_log_ratio(gap)
        return [_LOWEST_LOG, kink, 0.0] if kink > _LOWEST_LOG else [_LOWEST_LOG, 0.0]

    def _product(self, y: Array, gap: float) -> Array:
        return np.minimum(np.maximum(-np.log(y), 0.0), _log_ratio(gap)) / gap


class _SmoothPrior(GradientPrior):
    """A prior given by the density f of |g| / spread and its tail integral ∫_y^∞ f(t)/t dt."""

    @abstractmethod
    def _density(self, y: Array) -> Array: ...

    @abstractmethod
    def _tail(self, y: Array) -> Array: ...

    def _panels(self, gap: float) -> list[float]:
        return [_LOWEST_LOG, -6.0, 0.0, 4.0]

    def _product(self, y: Array, gap: float) -> Array:
        """(1/gap) ∫_y^{y/(1-gap)} f(t)/t dt as a difference of tails.

        For a thin law it is a Gauss-Legendre sum in ln t instead, where nothing cancels.
        """
        log_ratio = _log_ratio(gap)
        if log_ratio < _THIN:
            t = y[..., None] * np.exp(log_ratio * (_NODES + 1) / 2)
            average: Array = self._density(t) @ (_WEIGHTS / 2)
            return (log_ratio / gap) * average
        if gap >= 1:
            return self._tail(y)
        with np.errstate(over="ignore"):
            return (self._tail(y) - self._tail(y / (1 - gap))) / gap


@dataclass(frozen=True)
class GaussianPrior(_SmoothPrior):
    """Gradients normal with mean 0 and standard deviation sigma."""

    sigma: float
    name: ClassVar[str] = "gaussian"
    unit_entropy: ClassVar[float] = 0.5 * math.log(2 * math.pi * math.e)
    unit_mean_log_abs: ClassVar[float] = -(np.euler_gamma + math.log(2)) / 2

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        return self.sigma * rng.standard_normal(n)

    def _density(self, y: Array) -> Array:
        return np.asarray(math.sqrt(2 / math.pi) * np.exp(-y * y / 2))

    def _tail(self, y: Array) -> Array:
        return np.asarray(exp1(y * y / 2) / math.sqrt(2 * math.pi))


@dataclass(frozen=True)
class LaplacePrior(_SmoothPrior):
    """Gradients with density e^{-|g|/scale} / (2 scale)."""

    scale: float
    name: ClassVar[str] = "laplace"
    unit_entropy: ClassVar[float] = 1 + math.log(2)
    unit_mean_log_abs: ClassVar[float] = -np.euler_gamma

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        return self.scale * rng.laplace(0.0, 1.0, n)

    def _density(self, y: Array) -> Array:
        return np.exp(-y)

    def _tail(self, y: Array) -> Array:
        return np.asarray(exp1(y))


def _whole(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise PrivacyError(f"{name} is {value!r}; it must be a whole number from {least}")
    return int(value)


def _round_gap(law: StepsizeLaw, k: int) -> float:
    """(high - low) / high: the relative width, all that the bound sees of a law."""
    low, high = map(float, law.interval(_whole("round k", k, 1)))
    if not (math.isfinite(high) and 0 <= low <= high and high > 0):
        raise PrivacyError(
            f"a stepsize law gave the interval [{low}, {high}]; "
            "accepted are finite 0 <= low <= high with high > 0"
        )
    if low > 0 and k > _LAST_ROUND:
        raise PrivacyError(
            f"round k is {k}; accepted for this law: 1 to {_LAST_ROUND:,}, because its interval "
            "is too thin for double precision beyond"
        )
    return (high - low) / high


def _product_entropy(prior: GradientPrior, gap: float) -> float:
    """h(v g / spread) for v uniform on [1 - gap, 1], by quadrature in ln y."""

    def integrand(log_y: float) -> float:
        y = math.exp(log_y)
        return y * float(entr(prior._product(np.array(y), gap)))

    entropy = math.log(2)
    for start, end in pairwise(prior._panels(gap)):
        value, error = quad(integrand, start, end, epsabs=1e-10, epsrel=0.0, limit=200)
        if not error < 1e-9:
            raise PrivacyError(f"the quadrature reached {error:.1e} only; 1e-9 is needed")
        entropy += value
    return entropy


def conditional_entropy(law: StepsizeLaw, prior: GradientPrior, k: int = 1) -> float:
    """Return h(g | λ g) in nats for round k, by quadrature to 1e-8.

    It is -inf for a law of zero width: λ is public, hence g is known exactly (the paper calls this
    entropy zero; it is the error bound that is zero). The law states its interval in double
    precision, which holds 1e-8 up to k = 10^8 where the relative width is 1/k.
    """
    gap = _round_gap(law, k)
    if gap == 0:
        return -math.inf
    joint = prior.unit_entropy + prior.unit_mean_log_abs + math.log(gap)
    return math.log(prior.spread) + joint - _product_entropy(prior, gap)


def uniform_closed_form(kappa: float) -> float:
    """Return ln κ - γ, which is the paper's ϑ(λ̄, κ) for every λ̄.

    That is h(g | λ g) for λ uniform on [0, 2λ̄] and g uniform on [-κ, κ].
    """
    _positive("kappa", kappa)
    return math.log(kappa) - np.euler_gamma


def mse_lower_bound(entropy: float) -> float:
    """Return e^{2h} / (2πe), below which no estimator's mean squared error can fall."""
    if math.isnan(entropy):
        raise PrivacyError("the entropy is nan; a number of nats or -inf is needed")
    try:
        return math.exp(2 * entropy - 1) / (2 * math.pi)
    except OverflowError:
        return math.inf


class MonteCarlo(NamedTuple):
    """A sampled entropy in nats and the standard error of its mean over replicates."""

    estimate: float
    standard_error: float


def _nearest_neighbour_entropy(points: Array) -> float:
    """Kozachenko-Leonenko estimate of h in nats from points of shape (n, dimension).

    Each column is divided by its standard deviation, because the estimate is biased where the
    density changes within the distance to a neighbour.
    """
    n, dimension = points.shape
    deviations = points.std(axis=0)
    scaled = points / deviations
    distance, _ = cKDTree(scaled).query(scaled, k=[_NEIGHBOUR + 1], p=math.inf)
    logs = np.log(2 * distance).mean()
    return float(digamma(n) - digamma(_NEIGHBOUR) + dimension * logs + np.log(deviations).sum())


def monte_carlo_entropy(
    law: StepsizeLaw, prior: GradientPrior, k: int = 1, samples: int = 200_000, seed: int = 0
) -> MonteCarlo:
    """Estimate h(g | λ g) from samples alone, as an independent check of `conditional_entropy`.

    With v = 1 - gap (1 - q), q uniform on [0, 1], w = ln(q / (1 - q)) and z = ln|v g|, observing
    v g is observing z and a sign that v cannot hide, and a change of variables gives exactly

        h(g | v g) = h(w, z) - h(z) + E ln(gap q (1 - q) |g| / v)

    Both entropies are nearest-neighbour estimates. The logarithms remove the singularity of the
    product's density at 0, the logit removes the edges of the stepsize's law and its thinness.
    The samples are divided into 8 independent replicates, whose scatter gives the standard error;
    the bias, which that error does not contain, is at most about as large for the default samples.
    """
    gap = _round_gap(law, k)
    samples = _whole("samples", samples, 100 * _REPLICATES)
    seed = _whole("seed", seed, 0)
    if gap == 0:
        return MonteCarlo(-math.inf, 0.0)
    rng = np.random.default_rng(seed)
    n = samples // _REPLICATES
    estimates = np.empty(_REPLICATES)
    for replicate in range(_REPLICATES):
        q = np.clip(rng.random(n), 1e-300, None)
        magnitude = np.abs(prior.sample(n, rng))
        v = 1 - gap * (1 - q) if gap < 1 else q
        w = np.log(q) - np.log1p(-q)
        z = np.log(v * magnitude)
        jacobian = np.log(gap * magnitude / v).mean() + (np.log(q) + np.log1p(-q)).mean()
        estimates[replicate] = (
            _nearest_neighbour_entropy(np.stack([w, z], axis=1))
            - _nearest_neighbour_entropy(z[:, None])
            + jacobian
        )
    error = estimates.std(ddof=1) / math.sqrt(_REPLICATES)
    return MonteCarlo(float(estimates.mean()), float(error))


@dataclass(frozen=True)
class Bound:
    """What one round's stepsize law leaves unknown about one gradient entry.

    An entropy of -inf means that the step gives the gradient away exactly.
    """

    law: str
    prior: GradientPrior
    k: int
    entropy_nats: float
    mse_lower_bound: float
    prior_entropy_nats: float

    @property
    def leaks_exactly(self) -> bool:
        """Whether an observer of λ g knows g."""
        return self.entropy_nats == -math.inf

    def to_json(self) -> dict[str, object]:
        """Return a dictionary that JSON can hold: no entropy where it is -inf."""
        return {
            **asdict(self),
            "prior": {"name": self.prior.name, **asdict(self.prior)},
            "entropy_nats": None if self.leaks_exactly else self.entropy_nats,
            "leaks_exactly": self.leaks_exactly,
        }


def bound(law: StepsizeLaw, prior: GradientPrior, k: int = 1) -> Bound:
    """Return the entropy and the error bound that a law leaves in round k."""
    entropy = conditional_entropy(law, prior, k)
    name = str(getattr(law, "name", type(law).__name__))
    return Bound(name, prior, int(k), entropy, mse_lower_bound(entropy), prior.entropy())


PRIORS: dict[str, Callable[[float], GradientPrior]] = {
    one.name: one for one in (UniformPrior, GaussianPrior, LaplacePrior)
}
