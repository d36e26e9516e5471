"""Stepsizes: moments against closed forms and samples, and the text that names them."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.errors import StepsizeError
from sottovoce.randomness import private_streams
from sottovoce.stepsizes import (
    LAWS,
    Custom,
    Deterministic,
    Experiment,
    Falling,
    Power,
    PrivateDeviation,
    Stepsize,
    Uniform,
    parse_stepsize,
)
from sottovoce.storage.identity import digest

LAW_LIST = list(LAWS.values())


def drawn(
    stepsize: Stepsize, round: int, *, runs: int = 2000, agents: int = 2, d: int = 3
) -> torch.Tensor:
    """Stepsizes that `scale_` applied: (runs, agents, d)."""
    ones = torch.ones(runs, agents, d, dtype=torch.float64)
    stepsize.scale_(ones, private_streams(runs, agents, insecure_seed=5), round)
    return ones


@pytest.mark.parametrize("k", [1, 2, 10])
def test_moments_of_the_laws_follow_their_formulas(k: int) -> None:
    schedule = Power(0.3, 0.75, 2.0)
    base = 0.3 / (k + 2) ** 0.75
    expected = {
        "deterministic": (base, 0.0, (base, base)),
        "experiment": (base * (1 - 0.5 / k), base / k / math.sqrt(12), (base * (1 - 1 / k), base)),
        "uniform": (base, base / math.sqrt(3), (0.0, 2 * base)),
    }
    for law in LAW_LIST:
        stepsize = Stepsize(schedule, law)
        mean, std, interval = expected[law.name]
        assert stepsize.mean(k) == pytest.approx(mean, rel=1e-14)
        assert stepsize.std(k) == pytest.approx(std, rel=1e-14, abs=1e-300)
        assert stepsize.interval(k) == pytest.approx(interval, rel=1e-14)


@pytest.mark.parametrize("per", ["agent", "coordinate"])
@pytest.mark.parametrize("law", LAW_LIST, ids=lambda law: law.name)
def test_samples_have_the_stated_moments(law: object, per: str) -> None:
    stepsize = Stepsize(Power(0.5, 0.6), law, per)  # type: ignore[arg-type]
    k = 3
    sample = drawn(stepsize, k)[..., 0].numpy().ravel()
    low, high = stepsize.interval(k)
    assert sample.min() >= low * (1 - 1e-15)
    assert sample.max() <= high * (1 + 1e-15)
    error = 4 * stepsize.std(k) / math.sqrt(sample.size) + 1e-15
    assert abs(sample.mean() - stepsize.mean(k)) < error
    assert sample.std() == pytest.approx(stepsize.std(k), rel=0.05, abs=1e-15)


def test_one_draw_an_agent_or_one_a_coordinate() -> None:
    scalar = drawn(Stepsize(law=Uniform(), per="agent"), 1, runs=5)
    assert torch.equal(scalar, scalar[..., :1].expand_as(scalar))
    assert len(scalar[..., 0].unique()) == 10
    diagonal = drawn(Stepsize(law=Uniform(), per="coordinate"), 1, runs=5)
    assert len(diagonal.unique()) == 30


@pytest.mark.parametrize("per", ["agent", "coordinate"])
def test_scaling_multiplies_the_gradient_it_is_given(per: str) -> None:
    gradient = torch.randn(4, 2, 3, dtype=torch.float64)
    stepsize = Stepsize(law=Uniform(), per=per)  # type: ignore[arg-type]
    step = gradient.clone()
    stepsize.scale_(step, private_streams(4, 2, insecure_seed=5), 2)
    assert torch.allclose(step, gradient * drawn(stepsize, 2, runs=4), rtol=1e-15, atol=0)


def test_the_first_stepsize_of_the_experiment_is_anything_up_to_one() -> None:
    assert Stepsize(law=Experiment()).interval(1) == (0.0, 1.0)


@pytest.mark.parametrize("law", LAW_LIST, ids=lambda law: law.name)
def test_blocks_hold_the_count_for_so_many_rounds(law: object) -> None:
    plain = Stepsize(Power(0.3, 0.75), law)  # type: ignore[arg-type]
    blocked = Stepsize(Power(0.3, 0.75, block=187), law)  # type: ignore[arg-type]
    for round, k in ((1, 1), (187, 1), (188, 2), (374, 2), (375, 3)):
        assert blocked.schedule.count(round) == k
        assert blocked.interval(round) == plain.interval(k)


def test_draws_differ_between_the_rounds_of_a_block() -> None:
    stepsize = Stepsize(Power(block=10), Uniform())
    assert not torch.isin(drawn(stepsize, 1, runs=3), drawn(stepsize, 2, runs=3)).any()


def test_every_agent_may_have_its_own_scale() -> None:
    stepsize = Stepsize(Power((0.1, 0.4), 1.0), Deterministic())
    assert drawn(stepsize, 2, runs=1, d=1).flatten().tolist() == pytest.approx([0.05, 0.2])
    assert [stepsize.mean(2, agent) for agent in (0, 1)] == pytest.approx([0.05, 0.2])
    random = Stepsize(Power((0.1, 0.4), 1.0), Uniform())
    sample = drawn(random, 1)
    assert float(sample[:, 0].max()) == pytest.approx(0.2, rel=0.01)
    assert float(sample[:, 1].max()) == pytest.approx(0.8, rel=0.01)
    with pytest.raises(StepsizeError, match="scales for 2 agents, but there is an agent 2"):
        drawn(stepsize, 1, runs=1, agents=3)


def test_a_lone_agent_uses_its_own_scale() -> None:
    ones = torch.ones(1, 1, 1, dtype=torch.float64)
    streams = private_streams(range(1), [1], insecure_seed=5)
    Stepsize(Power((0.1, 0.4)), Deterministic()).scale_(ones, streams, 1)
    assert ones.item() == pytest.approx(0.4)


def test_a_schedule_of_your_own_is_followed_and_checked() -> None:
    stepsize = Stepsize(Custom(lambda k: 1 / math.log(k + 1), block=2), Deterministic())
    assert stepsize.mean(3) == pytest.approx(1 / math.log(3))
    bad = Stepsize(Custom(lambda k: 1 - k, name="mine"), Deterministic())
    with pytest.raises(StepsizeError, match=r"'mine' gave -1\.0 at k = 2"):
        bad.mean(2)


def test_private_deviations_touch_the_first_rounds_only() -> None:
    deviation = PrivateDeviation(rounds=5, probability=0.3, spread=0.5)
    stepsize = Stepsize(Power(), Deterministic(), deviation=deviation)
    plain = Stepsize(Power(), Deterministic())
    for round in (1, 5):
        factor = drawn(stepsize, round) / plain.mean(round)
        assert torch.allclose(factor, factor[..., :1].expand_as(factor))
        deviates = (factor[..., 0] - 1).abs() > 1e-12
        assert float(deviates.double().mean()) == pytest.approx(0.3, abs=0.03)
        assert 0.5 <= float(factor.min()) < 0.52
        assert 1.48 < float(factor.max()) <= 1.5
    assert torch.equal(drawn(stepsize, 6), drawn(plain, 6))


def test_private_deviations_keep_the_other_draws() -> None:
    """Deviating multiplies the public law's draw; it does not replace it."""
    plain = Stepsize(law=Uniform())
    private = Stepsize(law=Uniform(), deviation=PrivateDeviation(1, 1.0, 0.5))
    ratio = drawn(private, 1) / drawn(plain, 1)
    assert torch.allclose(ratio, ratio[..., :1].expand_as(ratio), rtol=1e-12)
    assert float(ratio.std()) > 0.2


def test_private_deviations_are_not_described() -> None:
    shown = Stepsize(deviation=PrivateDeviation(12, 0.3, 0.4)).describe()
    assert shown["private_deviation"] is True
    assert not {12, 0.3, 0.4} & {value for value in shown.values() if not isinstance(value, bool)}


numbers = st.floats(1e-6, 1e6, allow_nan=False)
exponents = st.floats(0, 3) | st.sampled_from([0.0, 0.5, 1.0, 0.75])


@given(
    numbers,
    exponents,
    st.floats(-0.99, 1e6) | st.just(0.0),
    st.integers(1, 10_000),
    st.sampled_from(LAW_LIST),
    st.sampled_from(["agent", "coordinate"]),
)
def test_text_reads_back_as_the_same_stepsize(
    scale: float, exponent: float, offset: float, block: int, law: object, per: str
) -> None:
    offset = offset if exponent else 0.0
    given = Stepsize(Power(scale, exponent, offset, block), law, per)  # type: ignore[arg-type]
    assert parse_stepsize(str(given)) == given


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("experiment", Stepsize(Power(), Experiment())),
        ("1/k", Stepsize(Power(), Deterministic())),
        ("uniform:1/k^0.75", Stepsize(Power(1.0, 0.75), Uniform())),
        ("0.3/(k+5)^0.75", Stepsize(Power(0.3, 0.75, 5.0), Deterministic())),
        ("0.1", Stepsize(Power(0.1, 0.0), Deterministic())),
        ("2:falling=940", Stepsize(Falling(2.0, 940), Deterministic())),
        ("agent:uniform", Stepsize(Power(), Uniform(), "agent")),
        ("experiment : 2 / k : block=187", Stepsize(Power(2.0, block=187), Experiment())),
    ],
)
def test_text_means_what_it_says(text: str, expected: Stepsize) -> None:
    assert parse_stepsize(text) == expected


@pytest.mark.parametrize(
    "text", ["falling=9", "1/k:falling=9", "0:falling=9", "1:falling=9:block=2"]
)
def test_a_falling_schedule_starts_at_a_positive_constant(text: str) -> None:
    with pytest.raises(StepsizeError, match="as in 2:falling=940"):
        parse_stepsize(text)


def test_a_falling_schedule_is_constant_for_half_its_rounds_and_ends_at_a_tenth() -> None:
    stepsize = Stepsize(Falling(2.0, 100), Deterministic())
    assert [stepsize.mean(k) for k in (1, 50, 75, 100, 200)] == pytest.approx([2, 2, 1.1, 0.2, 0.2])
    assert Stepsize.from_spec(stepsize.spec) == stepsize
    assert parse_stepsize(str(stepsize)) == stepsize


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1/n",
        "gauss",
        "1/k^",
        "-1/k",
        "1/k^-1",
        "block=x",
        "1/(k)",
    ],
)
def test_text_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(StepsizeError, match=r"is not understood; accepted, joined by ':'"):
        parse_stepsize(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.0}, "must be positive"),
        ({"scale": math.nan}, "must be positive"),
        ({"scale": (1.0, -1.0)}, "must be positive"),
        ({"scale": ()}, "must be positive"),
        ({"exponent": -0.5}, "exponent is -0.5"),
        ({"exponent": math.inf}, "exponent is inf"),
        ({"offset": -1.0}, "offset k0 is -1.0"),
        ({"block": 0}, "block has 0 rounds"),
    ],
)
def test_impossible_schedules_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(StepsizeError, match=message):
        Power(**options)  # type: ignore[arg-type]


def test_impossible_laws_of_drawing_are_refused() -> None:
    with pytest.raises(StepsizeError, match="per 'layer'; accepted: 'coordinate', 'agent'"):
        Stepsize(per="layer")  # type: ignore[arg-type]
    for options in ((0, 0.1, 0.5), (1, 0.0, 0.5), (1, 1.5, 0.5), (1, 0.1, 2.0)):
        with pytest.raises(StepsizeError, match="rounds >= 1"):
            PrivateDeviation(*options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_keep_the_type_of_the_gradient(dtype: torch.dtype) -> None:
    for per in ("agent", "coordinate"):
        gradient = torch.ones(1, 2, 3, dtype=dtype)
        stepsize = Stepsize(law=Uniform(), per=per, deviation=PrivateDeviation(3, 1.0))  # type: ignore[arg-type]
        stepsize.scale_(gradient, private_streams(1, 2), 1)
        assert gradient.dtype == dtype
        assert np.isfinite(gradient.numpy()).all()


class Halved:
    """A law of a user's own."""

    name = "halved"

    def interval(self, k: int) -> tuple[float, float]:
        return 0.0, 1.0


STEPSIZES = [
    Stepsize(),
    Stepsize(Power(2, 0.75, 3, 5), Uniform(), "agent"),
    Stepsize(Power((0.1, 0.2, 0.3)), Deterministic()),
    Stepsize(deviation=PrivateDeviation(5, 0.2, 0.3)),
]
OWN = [Stepsize(Custom(lambda k: 1 / k, name="mine")), Stepsize(law=Halved())]


@pytest.mark.parametrize("stepsize", STEPSIZES, ids=str)
def test_a_stepsize_is_rebuilt_from_its_spec(stepsize: Stepsize) -> None:
    assert Stepsize.from_spec(json.loads(json.dumps(stepsize.spec))) == stepsize


@pytest.mark.parametrize("stepsize", OWN, ids=str)
def test_a_stepsize_of_ones_own_must_be_given(stepsize: Stepsize) -> None:
    spec = json.loads(json.dumps(stepsize.spec))
    assert Stepsize.from_spec(spec, stepsize) is stepsize
    with pytest.raises(StepsizeError, match=r"uses '(mine|halved)', but nothing was given; give"):
        Stepsize.from_spec(spec)
    with pytest.raises(StepsizeError, match="but experiment:1/k:coordinate was given"):
        Stepsize.from_spec(spec, Stepsize())


def test_every_number_of_a_stepsize_is_in_its_spec() -> None:
    every = [*STEPSIZES, *OWN, Stepsize(Custom(lambda k: 2 / k, name="mine"))]
    assert len({digest(stepsize.spec) for stepsize in every}) == len(every)
    assert Stepsize(Power(2)).spec == Stepsize(Power(2.0)).spec
