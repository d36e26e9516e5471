"""The theorems' stepsize conditions: verdicts at the boundaries, values against zeta functions."""

import math
from dataclasses import dataclass

import pytest
from scipy.special import zeta

from sottovoce.errors import StepsizeError
from sottovoce.stepsizes import (
    Custom,
    Deterministic,
    Experiment,
    Law,
    Power,
    PrivateDeviation,
    Stepsize,
    Uniform,
)
from sottovoce.stepsizes.conditions import Condition, theorem_conditions

JUST = 1e-9


def decided(stepsize: Stepsize, agents: int = 1) -> dict[str, Condition]:
    return {condition.name: condition for condition in theorem_conditions(stepsize, agents)}


@pytest.mark.parametrize(
    ("p", "mean", "square"),
    [
        (0.0, True, False),
        (0.4, True, False),
        (0.5, True, False),
        (0.5 + JUST, True, True),
        (0.75, True, True),
        (1.0, True, True),
        (1.0 + JUST, False, True),
    ],
)
@pytest.mark.parametrize("law", [Deterministic(), Experiment(), Uniform()], ids=lambda x: x.name)
def test_verdicts_at_boundary_exponents(law: Law, p: float, mean: bool, square: bool) -> None:
    found = decided(Stepsize(Power(0.7, p), law))
    assert found["mean not summable"].met is mean
    assert found["mean square summable"].met is square
    assert found["heterogeneity summable"].met is True


@pytest.mark.parametrize(
    ("law", "p", "met"),
    [
        (Deterministic(), 0.0, True),
        (Uniform(), 0.5, False),
        (Uniform(), 0.5 + JUST, True),
        (Experiment(), 0.0, True),
        (Experiment(), 0.4, True),
    ],
)
def test_verdicts_on_the_deviation(law: Law, p: float, met: bool) -> None:
    """The experiments' law has a spread of its own decay 1/k, so Σσ² converges for every p."""
    assert decided(Stepsize(Power(1.0, p), law))["deviation square summable"].met is met


@pytest.mark.parametrize("p", [0.51, 0.6, 0.75, 1.0, 2.0])
@pytest.mark.parametrize("offset", [0.0, 3.5])
def test_sum_of_squares_is_a_zeta_function(p: float, offset: float) -> None:
    found = decided(Stepsize(Power(0.5, p, offset), Deterministic()))
    expected = 0.25 * zeta(2 * p, 1 + offset)
    assert found["mean square summable"].value == pytest.approx(expected, rel=1e-9)
    assert found["deviation square summable"].value == 0


def test_sum_of_inverse_squares() -> None:
    found = decided(Stepsize(Power(), Deterministic()))
    assert found["mean square summable"].value == pytest.approx(math.pi**2 / 6, rel=1e-12)


@pytest.mark.parametrize("p", [0.6, 1.0])
def test_sums_of_the_experiments_law(p: float) -> None:
    """λ̄ = (1 - 1/2k)/k^p and σ = k^-(p+1)/√12; the issue's case has Σσ² = ζ(4)/12."""
    found = decided(Stepsize(Power(1.0, p), Experiment()))
    squares = zeta(2 * p) - zeta(2 * p + 1) + zeta(2 * p + 2) / 4
    assert found["mean square summable"].value == pytest.approx(squares, rel=1e-5)
    spread = zeta(2 * p + 2) / 12
    assert found["deviation square summable"].value == pytest.approx(spread, rel=1e-9)


def test_sums_of_the_uniform_law() -> None:
    found = decided(Stepsize(Power(), Uniform()))
    assert found["deviation square summable"].value == pytest.approx(math.pi**2 / 18, rel=1e-12)


def test_value_of_a_summable_mean() -> None:
    found = decided(Stepsize(Power(2.0, 1.5), Deterministic()))
    assert found["mean not summable"].value == pytest.approx(2 * zeta(1.5), rel=1e-9)


def test_blocks_multiply_every_sum() -> None:
    plain, blocked = (decided(Stepsize(Power(block=block), Experiment())) for block in (1, 187))
    for name in ("mean square summable", "deviation square summable"):
        assert blocked[name].met is True
        assert blocked[name].value == pytest.approx(187 * plain[name].value, rel=1e-12)  # type: ignore[operator]


@pytest.mark.parametrize(("p", "met"), [(0.75, False), (1.0, False), (1.0 + JUST, True)])
def test_unequal_scales_are_heterogeneous(p: float, met: bool) -> None:
    unequal = Stepsize(Power((1.0, 1.1), p), Deterministic())
    assert decided(unequal, agents=2)["heterogeneity summable"].met is met
    equal = Stepsize(Power((1.1, 1.1), p), Deterministic())
    assert decided(equal, agents=2)["heterogeneity summable"].met is True


def test_scales_must_be_those_of_the_agents() -> None:
    with pytest.raises(StepsizeError, match="2 scales, but there are 3 agents"):
        theorem_conditions(Stepsize(Power((1.0, 2.0))), agents=3)


def test_private_deviations_end_and_keep_heterogeneity_summable() -> None:
    found = decided(Stepsize(deviation=PrivateDeviation(50)))["heterogeneity summable"]
    assert found.met is True
    assert found.value is None
    assert "end after round 50" in found.reason


def test_a_schedule_of_your_own_is_undecidable_with_partial_sums() -> None:
    found = decided(Stepsize(Custom(lambda k: 1 / k), Deterministic()))
    for name in ("mean not summable", "mean square summable", "deviation square summable"):
        assert found[name].met is None
        assert "not decidable" in found[name].reason
    harmonic = sum(1 / k for k in range(1, 100_001))
    assert found["mean not summable"].value == pytest.approx(harmonic, rel=1e-12)
    assert found["mean square summable"].value == pytest.approx(math.pi**2 / 6, rel=1e-4)


def test_a_law_of_your_own_is_undecidable_too() -> None:
    @dataclass(frozen=True)
    class Widening:
        name: str = "widening"

        def interval(self, k: int) -> tuple[float, float]:
            return 0.0, math.sqrt(k)

    found = decided(Stepsize(Power(), Widening()))
    assert found["deviation square summable"].met is None


def test_what_is_violated_is_said_in_words() -> None:
    def violated(stepsize: Stepsize, agents: int = 1) -> list[str]:
        found = theorem_conditions(stepsize, agents)
        return [condition.reason for condition in found if condition.met is False]

    assert violated(Stepsize()) == []
    assert violated(Stepsize(Power(1.0, 0.4), Deterministic())) == [
        "Σ mean² diverges for mean 1/k^0.4 (exponent 0.4, must be above 0.5)"
    ]
    assert len(violated(Stepsize(Power((1.0, 2.0), 0.4), Uniform()), agents=2)) == 3
