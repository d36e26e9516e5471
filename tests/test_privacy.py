import json
import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import exp1, gammainc

from sottovoce.errors import PrivacyError
from sottovoce.privacy import entropy as privacy
from sottovoce.privacy.entropy import (
    GaussianPrior,
    GradientPrior,
    LaplacePrior,
    UniformPrior,
    bound,
    conditional_entropy,
    monte_carlo_entropy,
    mse_lower_bound,
    uniform_closed_form,
)


@dataclass(frozen=True)
class Interval:
    low: float
    high: float
    name: str = "interval"

    def interval(self, k: int) -> tuple[float, float]:
        return self.low, self.high


class Experiment:
    name = "experiment"

    def interval(self, k: int) -> tuple[float, float]:
        return 1 - 1 / k, 1.0


UNIFORM = Interval(0.0, 2.0, "uniform")
DETERMINISTIC = Interval(1.0, 1.0, "deterministic")
EXPERIMENT = Experiment()


def product_density(prior, x, low, high):
    """Density of u g at x, u uniform on [low, high]."""
    unit = prior.spread * high
    y = np.abs(np.asarray(x, dtype=np.float64)) / unit
    return prior._product(y, (high - low) / high) / (2 * unit)


def mean_log_abs(prior):
    return prior.unit_mean_log_abs + math.log(prior.spread)


PRIORS = [UniformPrior(5.0), GaussianPrior(2.0), LaplacePrior(0.7)]


def density(prior: GradientPrior, g: float) -> float:
    """The textbook density, written independently of the module under test."""
    if isinstance(prior, UniformPrior):
        return 0.5 / prior.kappa if abs(g) <= prior.kappa else 0.0
    if isinstance(prior, GaussianPrior):
        return math.exp(-0.5 * (g / prior.sigma) ** 2) / math.sqrt(2 * math.pi) / prior.sigma
    assert isinstance(prior, LaplacePrior)
    return 0.5 * math.exp(-abs(g) / prior.scale) / prior.scale


def integral(function, start, end):
    return quad(function, start, end, epsabs=1e-11, epsrel=1e-11, limit=300)[0]


def brute_force(prior: GradientPrior, low: float, high: float) -> float:
    """h(g, y) - h(y), where the density of y = u g is itself an integral over u."""
    top = 45.0 * prior.spread

    def plogp(p: float) -> float:
        return p * math.log(p) if p > 0 else 0.0

    def joint(log_g: float) -> float:
        g = math.exp(log_g)
        p = density(prior, g)
        return 2 * g * p * (math.log((high - low) * g) - math.log(p)) if p > 0 else 0.0

    def observed(y: float) -> float:
        # Below y / top the density underflows: starting there keeps the integrand resolved.
        start = max(low, y / top)
        if start >= high:
            return 0.0
        inner = integral(
            lambda s: density(prior, y * math.exp(-s)), math.log(start), math.log(high)
        )
        return inner / (high - low)

    scale = math.log(prior.spread)
    joint_entropy = integral(joint, scale - 45, scale - 5) + integral(joint, scale - 5, scale + 4)
    ends = [scale - 45, scale - 5, scale - 1, scale + 1, scale + 4]
    seen = sum(
        integral(lambda z: -2 * math.exp(z) * plogp(observed(math.exp(z))), a, b)
        for a, b in pairwise(ends)
    )
    return joint_entropy - seen


def test_paper_value_at_kappa_5():
    assert conditional_entropy(UNIFORM, UniformPrior(5)) == pytest.approx(1.0322, abs=5e-5)
    assert mse_lower_bound(uniform_closed_form(5)) == pytest.approx(0.4614, abs=5e-5)


@pytest.mark.parametrize("kappa", [1e-6, 0.3, 1, 5, 1e9])
def test_quadrature_meets_the_closed_form(kappa):
    exact = math.log(kappa) - 0.5772156649015329
    assert uniform_closed_form(kappa) == pytest.approx(exact, abs=1e-12)
    assert conditional_entropy(UNIFORM, UniformPrior(kappa)) == pytest.approx(exact, abs=1e-8)


@pytest.mark.parametrize(
    ("k", "nats"), [(1, 1.03222), (2, 0.06418), (10, -1.66742), (100, -3.99323)]
)
def test_experiment_law_loses_entropy_round_by_round(k, nats):
    assert conditional_entropy(EXPERIMENT, UniformPrior(5), k) == pytest.approx(nats, abs=1e-4)


@pytest.mark.parametrize("k", [2, 7, 100, 10**4, 10**6])
def test_uniform_prior_with_the_experiment_law_has_an_independent_one_dimensional_form(k):
    """In s = ln(κ / y): the flat part exactly, the rest ∫ s e^-s ln(s) ds over [0, ln(1/low)]."""
    width = 1 / k
    top = -math.log1p(-width)
    flat = (1 - width) * top / width
    # ∫_0^top s e^-s ds is the lower incomplete gamma function; s = top x keeps thin laws exact.
    sloped = float(gammainc(2, top)) / width
    logs = top**2 / width * integral(lambda x: x * math.exp(-top * x) * math.log(x or 1), 0, 1)
    observed = -(flat + sloped) * math.log(top / width) - logs
    exact = math.log(5) - 1 + math.log(width) - observed
    assert conditional_entropy(EXPERIMENT, UniformPrior(5), k) == pytest.approx(exact, abs=1e-8)


@pytest.mark.parametrize("prior", PRIORS[1:], ids=lambda prior: prior.name)
@pytest.mark.parametrize(("low", "high"), [(0.0, 2.0), (0.5, 1.0), (0.93, 1.0)])
def test_quadrature_meets_two_dimensional_integration(prior, low, high):
    expected = brute_force(prior, low, high)
    assert conditional_entropy(Interval(low, high), prior) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: prior.name)
@pytest.mark.parametrize("k", [10**3, 10**6])
def test_thin_laws_approach_the_first_order_limit(prior, k):
    """h(g | λ g) -> E ln|g| - ln k, the product hiding nothing but the law's own width."""
    limit = mean_log_abs(prior) - math.log(k)
    assert conditional_entropy(EXPERIMENT, prior, k) == pytest.approx(limit, abs=2 / k + 1e-8)


@pytest.mark.parametrize("prior", PRIORS[1:], ids=lambda prior: prior.name)
@pytest.mark.parametrize("k", [11, 1000])
def test_both_forms_of_the_product_density_agree(prior, k, monkeypatch):
    x = np.geomspace(1e-6, 6, 50)
    thin = product_density(prior, x, 1 - 1 / k, 1.0)
    monkeypatch.setattr(privacy, "_THIN", 0.0)
    np.testing.assert_allclose(product_density(prior, x, 1 - 1 / k, 1.0), thin, rtol=1e-11 * k)


@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: prior.name)
@pytest.mark.parametrize(("low", "high"), [(0.0, 2.0), (0.5, 1.0), (0.99, 1.0)])
def test_product_density_integrates_to_one_and_to_the_product_of_moments(prior, low, high):
    def moment(power: int) -> float:
        scale = math.log(prior.spread * high)

        def weighted(z: float) -> float:
            y = math.exp(z)
            return 2 * y ** (power + 1) * float(product_density(prior, y, low, high))

        ends = [scale - 45, scale + math.log(max(low / high, 1e-3)), scale, scale + 4]
        return sum(integral(weighted, a, b) for a, b in pairwise(ends))

    second = {"uniform": 1 / 3, "gaussian": 1.0, "laplace": 2.0}[prior.name] * prior.spread**2
    assert moment(0) == pytest.approx(1, abs=1e-9)
    factor = (high**3 - low**3) / (3 * (high - low))
    assert moment(2) == pytest.approx(second * factor, rel=1e-9)


def test_product_density_of_a_closed_form():
    """|g| standard exponential and u uniform on [0, 1]: the density of u|g| is E1."""
    assert product_density(LaplacePrior(1), [[-2.0, 2.0]], 0.0, 1.0) == pytest.approx(exp1(2) / 2)


@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: prior.name)
def test_prior_moments_match_integration(prior):
    ends = [math.log(prior.spread) + offset for offset in (-45, -5, 0, 4)]

    def mean(function):
        def weighted(z: float) -> float:
            g = math.exp(z)
            p = density(prior, g)
            return 2 * g * p * function(z, p) if p > 0 else 0.0

        return sum(integral(weighted, a, b) for a, b in pairwise(ends))

    assert prior.entropy() == pytest.approx(mean(lambda z, p: -math.log(p)), abs=1e-9)
    assert mean_log_abs(prior) == pytest.approx(mean(lambda z, p: z), abs=1e-9)


@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: prior.name)
def test_samples_follow_the_prior(prior):
    g = prior.sample(200_000, np.random.default_rng(3))
    assert g.shape == (200_000,)
    logs = np.log(np.abs(g))
    error = logs.std() / math.sqrt(g.size)
    assert abs(logs.mean() - mean_log_abs(prior)) < 4 * error
    assert abs(g.mean()) < 4 * g.std() / math.sqrt(g.size)


@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: prior.name)
@pytest.mark.parametrize(("law", "k"), [(UNIFORM, 1), (EXPERIMENT, 10)], ids=["uniform", "k10"])
def test_monte_carlo_agrees(law, k, prior):
    estimate, error = monte_carlo_entropy(law, prior, k, samples=100_000, seed=1)
    assert 0 < error < 0.02
    assert abs(estimate - conditional_entropy(law, prior, k)) < 4 * error


def test_monte_carlo_follows_a_very_thin_law():
    estimate, error = monte_carlo_entropy(EXPERIMENT, PRIORS[1], 10**5, samples=40_000)
    assert abs(estimate - conditional_entropy(EXPERIMENT, PRIORS[1], 10**5)) < 4 * error


def test_monte_carlo_repeats_with_its_seed():
    first = monte_carlo_entropy(UNIFORM, PRIORS[0], samples=2000, seed=4)
    assert first == monte_carlo_entropy(UNIFORM, PRIORS[0], samples=2000, seed=4)
    assert first != monte_carlo_entropy(UNIFORM, PRIORS[0], samples=2000, seed=5)


@pytest.mark.parametrize("factor", [1e-3, 7.0])
@pytest.mark.parametrize("k", [1, 3, 50])
def test_scaling_the_gradient_adds_its_logarithm(factor, k):
    pairs = [
        (UniformPrior(2.0), UniformPrior(2.0 * factor)),
        (GaussianPrior(2.0), GaussianPrior(2.0 * factor)),
        (LaplacePrior(2.0), LaplacePrior(2.0 * factor)),
    ]
    for small, large in pairs:
        shift = conditional_entropy(EXPERIMENT, large, k) - conditional_entropy(
            EXPERIMENT, small, k
        )
        assert shift == pytest.approx(math.log(factor), abs=1e-9)


@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: prior.name)
def test_mean_stepsize_changes_nothing(prior):
    reference = conditional_entropy(Interval(0.5, 1.5), prior)
    for mean in (1e-8, 0.01, 300.0):
        scaled = conditional_entropy(Interval(0.5 * mean, 1.5 * mean), prior)
        assert scaled == pytest.approx(reference, abs=1e-9)


@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: prior.name)
def test_entropy_falls_with_k_and_never_exceeds_the_prior(prior):
    rounds = [1, 2, 3, 9, 10, 11, 12, 100, 10**4, 10**6]
    entropies = [conditional_entropy(EXPERIMENT, prior, k) for k in rounds]
    assert entropies == sorted(entropies, reverse=True)
    assert len(set(entropies)) == len(entropies)
    assert entropies[0] < prior.entropy()


def test_best_estimator_stays_above_the_bound():
    """The conditional mean under the uniform law errs by κ² (1/3 - ln(4/3)), derived by hand."""
    kappa = 5.0
    rng = np.random.default_rng(0)
    g = UniformPrior(kappa).sample(400_000, rng)
    y = rng.uniform(0, 2, g.size) * g
    smallest = np.abs(y) / 2
    guess = np.sign(y) * (kappa - smallest) / np.log(kappa / smallest)
    squared = (guess - g) ** 2
    error = squared.std() / math.sqrt(g.size)
    assert abs(squared.mean() - kappa**2 * (1 / 3 - math.log(4 / 3))) < 4 * error
    assert squared.mean() - 4 * error > bound(UNIFORM, UniformPrior(kappa)).mse_lower_bound


@pytest.mark.parametrize("k", [2, 10, 100])
def test_conditional_mean_against_the_experiment_law_stays_above_the_bound(k):
    kappa = 5.0
    rng = np.random.default_rng(k)
    g = UniformPrior(kappa).sample(100_000, rng)
    y = np.abs(rng.uniform(1 - 1 / k, 1, g.size) * g)
    largest = np.minimum(kappa, y / (1 - 1 / k))
    squared = ((largest - y) / np.log(largest / y) - np.abs(g)) ** 2
    floor = bound(EXPERIMENT, UniformPrior(kappa), k).mse_lower_bound
    assert floor < squared.mean() < 10 * floor


@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: prior.name)
def test_deterministic_stepsize_leaks_exactly(prior):
    found = bound(DETERMINISTIC, prior, 3)
    assert found.entropy_nats == -math.inf
    assert found.mse_lower_bound == 0
    assert found.leaks_exactly
    assert monte_carlo_entropy(DETERMINISTIC, prior) == (-math.inf, 0.0)
    stored = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert stored["entropy_nats"] is None
    assert stored["leaks_exactly"] is True


def test_bound_survives_json():
    found = bound(EXPERIMENT, UniformPrior(5.0), 10)
    stored = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert stored == {
        "law": "experiment",
        "prior": {"name": "uniform", "kappa": 5.0},
        "k": 10,
        "entropy_nats": found.entropy_nats,
        "mse_lower_bound": found.mse_lower_bound,
        "prior_entropy_nats": pytest.approx(math.log(10)),
        "leaks_exactly": False,
    }


def test_mse_lower_bound_is_met_by_a_gaussian():
    """A normal variable of variance 4 has exactly that error about its mean."""
    assert mse_lower_bound(GaussianPrior(2.0).entropy()) == pytest.approx(4, rel=1e-12)
    assert mse_lower_bound(1e6) == math.inf


@pytest.mark.parametrize("prior", [UniformPrior, GaussianPrior, LaplacePrior])
@pytest.mark.parametrize("value", [0, -1.0, 1e-300, 1e300, math.inf, math.nan, "5", True])
def test_bad_prior_parameters_are_refused(prior, value):
    with pytest.raises(PrivacyError, match=r"(kappa|sigma|scale) (is|must be)"):
        prior(value)


@pytest.mark.parametrize("spread", [1e-150, 1e150])
@pytest.mark.parametrize("prior", privacy.PRIORS.values())
def test_the_bound_scales_with_the_prior(prior, spread):
    """g in other units: the error is that of the unit prior times the squared unit."""
    found, unit = bound(UNIFORM, prior(spread)), bound(UNIFORM, prior(1.0))
    assert found.mse_lower_bound == pytest.approx(spread**2 * unit.mse_lower_bound, rel=1e-9)


def test_rounds_whose_interval_is_too_thin_are_refused():
    assert bound(EXPERIMENT, UniformPrior(5), 10**8).entropy_nats < -15
    with pytest.raises(PrivacyError, match="accepted for this law: 1 to 100,000,000"):
        bound(EXPERIMENT, UniformPrior(5), 10**17)
    assert bound(UNIFORM, UniformPrior(5), 10**17).entropy_nats == pytest.approx(1.0322, abs=1e-4)


@pytest.mark.parametrize("k", [0, -3, 1.5, "2", True])
def test_bad_rounds_are_refused(k):
    with pytest.raises(PrivacyError, match=r"round k is .* whole number from 1"):
        conditional_entropy(UNIFORM, UniformPrior(5), k)


@pytest.mark.parametrize(
    ("low", "high"), [(-0.1, 1.0), (1.0, 0.5), (0.0, 0.0), (0.0, math.inf), (math.nan, 1.0)]
)
def test_bad_intervals_are_refused(low, high):
    with pytest.raises(PrivacyError, match="0 <= low <= high"):
        conditional_entropy(Interval(low, high), UniformPrior(5))


def test_other_bad_arguments_are_refused():
    with pytest.raises(PrivacyError, match="samples is 10; it must be a whole number from 800"):
        monte_carlo_entropy(UNIFORM, UniformPrior(5), samples=10)
    with pytest.raises(PrivacyError, match="seed is -1"):
        monte_carlo_entropy(UNIFORM, UniformPrior(5), seed=-1)
    with pytest.raises(PrivacyError, match="entropy is nan"):
        mse_lower_bound(math.nan)
    with pytest.raises(PrivacyError, match="kappa is 0"):
        uniform_closed_form(0)
