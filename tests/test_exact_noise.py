"""Noise for a proof: Gaussian to its tails, in float64, and on edges cancelling to the bit."""

import math

import pytest
import torch
from scipy import stats

from sottovoce.errors import AlgorithmError
from sottovoce.graphs import complete, ring, star
from sottovoce.mechanisms import (
    DECOR,
    LDPDSGD,
    Clip,
    Clock,
    EdgeNoise,
    Flow,
    GradientNoise,
    Mechanism,
    PrivatePDSGD,
    Shares,
    StepNoise,
    check,
    shares_edges,
)
from sottovoce.mechanisms.reference import take_step
from sottovoce.randomness import CipherStreams, DeviceStreams, Streams, private_streams
from sottovoce.stepsizes import Custom, Deterministic, Power, Stepsize, Uniform

CPU = torch.device("cpu")
PUBLIC = Stepsize(Power(0.5), Deterministic())
STREAMS = {
    "cipher": lambda runs: CipherStreams(range(runs), range(5), 1),
    "device": lambda runs: DeviceStreams(range(runs), range(5), 1, CPU),
}


def flow_of(graph, d, *, dtype=torch.float64, stepsize=PUBLIC, streams=None, round=1) -> Flow:
    streams = streams or private_streams(3, graph.agents, insecure_seed=1)
    nothing = torch.zeros(len(streams.runs), graph.agents, d, dtype=dtype)
    return Flow(nothing, nothing.clone(), graph.routes(), streams, stepsize, Clock(round))


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS.keys())
def test_exact_numbers_are_standard_normal_to_their_tails(make) -> None:
    streams: Streams = make(10)
    numbers = streams.exact_normal("noise", 1, 10_000).flatten().numpy()
    assert numbers.dtype == "float64"
    assert stats.kstest(numbers, "norm").pvalue > 1e-3
    assert numbers.var() == pytest.approx(1.0, rel=5 * math.sqrt(2 / len(numbers)))
    far = abs(numbers) > 4
    assert far.sum() == pytest.approx(len(numbers) * 2 * stats.norm.sf(4), rel=0.35)
    again, other = (streams.exact_normal("noise", round, 10_000) for round in (1, 2))
    assert torch.equal(again.flatten(), torch.from_numpy(numbers))
    assert not torch.equal(other, again)


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS.keys())
@pytest.mark.parametrize("count", [1, 600, 20_001])
def test_exact_numbers_are_half_the_sum_of_four_draws_however_many_there_are(make, count) -> None:
    streams: Streams = make(2)
    terms = [streams.normal(f"noise, term {term} of 4", 3, count) for term in range(1, 5)]
    found = streams.exact_normal("noise", 3, count)
    assert torch.equal(found, (terms[0] + terms[1] + terms[2] + terms[3]) * 0.5)
    some = streams.part(slice(1, 2), slice(2, 4)).exact_normal("noise", 3, count)
    assert torch.equal(some, found[1:2, 2:4])


def test_tails_go_beyond_those_of_single_float32_draws() -> None:
    """Float32 draws end at 5.29; the largest sum that four float64 draws can make is above 16."""

    class Largest(DeviceStreams):
        def uniform(self, purpose, round, count, dtype=torch.float64):
            digits = 52 if dtype == torch.float64 else 23
            return torch.full((1, 1, count), 1 - 2.0**-digits, dtype=dtype)

    streams = Largest(range(1), range(1), 0, CPU)
    assert float(streams.normal("noise", 1, 1, torch.float32)) < 5.3
    assert float(streams.exact_normal("noise", 1, 1)) > 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_step_noise_has_its_deviation_at_the_public_mean_stepsize(dtype) -> None:
    for stepsize in (PUBLIC, Stepsize(Power(0.5), Uniform())):
        flow = flow_of(ring(5), 4000, dtype=dtype, stepsize=stepsize, round=2)
        take_step(LDPDSGD(0.3), flow)
        assert flow.s.dtype == dtype
        assert stats.kstest(flow.s.numpy().ravel() / (0.3 * 0.25), "norm").pvalue > 1e-3


def test_noise_is_added_in_float64_and_rounded_once() -> None:
    """In float32 the sum would round twice; the noise itself is finer than the step's type."""
    flow = flow_of(ring(5), 2000, dtype=torch.float32)
    steps = torch.randn(3, 5, 2000, generator=torch.Generator().manual_seed(1))
    flow.s = steps.clone()
    drawn = 0.5 * 0.3 * flow.streams.exact_normal("step noise", 1, 2000)
    StepNoise(0.3)(flow)
    assert torch.equal(flow.s, (steps.double() + drawn).float())
    assert not torch.equal(flow.s, steps + drawn.float())


def test_noise_on_the_gradient_is_fit_for_a_proof_where_samples_are_bounded() -> None:
    for parts, single in ((), True), ((Clip(),), False):
        flow = flow_of(ring(5), 2000, dtype=torch.float32)
        take_step(Mechanism("noisy", (*parts, GradientNoise(0.3), Shares("keep"))), flow)
        drawn = flow.streams.normal("noise", 1, 2000, torch.float32).mul_(0.3)
        exact = flow.streams.exact_normal("noise", 1, 2000).mul_(0.3).float()
        torch.testing.assert_close(flow.s, 0.5 * (drawn if single else exact))


@pytest.mark.parametrize("graph", [ring(5), star(5), complete(5)], ids=lambda graph: graph.name)
def test_edge_noise_has_the_laplacian_as_covariance_and_cancels(graph) -> None:
    flow = flow_of(graph, 20_000)
    EdgeNoise(0.8)(flow)
    noise = flow.s[0] / (0.5 * 0.8)
    assert float(noise.sum(0).abs().max()) < 1e-12
    links = torch.from_numpy(graph.mixing.toarray() > 0).double().fill_diagonal_(0.0)
    laplacian = links.sum(1).diag() - links
    found = noise @ noise.mT / noise.shape[1]
    assert float((found - laplacian).abs().max()) < 6 * 5 / math.sqrt(noise.shape[1])


def test_blocks_of_senders_and_runs_draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = flow_of(ring(5), 7)
    take_step(DECOR(0.1, 0.2), whole)
    for numbers in (1, 3 * 7 * 2, 3 * 7 * 5):
        monkeypatch.setattr("sottovoce.mechanisms.flow._BLOCK_NUMBERS", {True: numbers})
        flow = flow_of(ring(5), 7)
        take_step(DECOR(0.1, 0.2), flow)
        assert torch.equal(flow.s, whole.s)
        assert flow.asked == whole.asked


def test_noise_of_an_edge_is_drawn_once_for_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sottovoce.mechanisms.flow._BLOCK_NUMBERS", {True: 3 * 7 * 2})
    drawn: list[int] = []
    draw = CipherStreams.exact_normal

    def exact_normal(self, purpose, round, count, dtype):
        drawn.append(len(self.runs) * len(self.agents) * count)
        return draw(self, purpose, round, count, dtype)

    monkeypatch.setattr(CipherStreams, "exact_normal", exact_normal)
    apart, together = flow_of(ring(5), 7), flow_of(ring(5), 7)
    EdgeNoise(0.3)(together)
    assert sum(drawn) == 3 * 5 * 7
    drawn.clear()
    monkeypatch.setattr("sottovoce.mechanisms.flow._SHARED_NUMBERS", 0)
    EdgeNoise(0.3)(apart)
    assert sum(drawn) > 3 * 5 * 7
    assert torch.equal(apart.s, together.s)


def test_edge_noise_refuses_agents_with_different_stepsizes() -> None:
    apart = Stepsize(Power((0.1, 0.1, 0.2, 0.1, 0.1)), Deterministic())
    own = Stepsize(Custom(lambda k: 1 / k), Deterministic())
    for make in (DECOR, PrivatePDSGD):
        with pytest.raises(AlgorithmError, match=r"EdgeNoise keeps the average only where all ag"):
            check(make(), ring(5), apart)
        for alike in (PUBLIC, own, Stepsize(law=Uniform())):
            check(make(), ring(5), alike)
    check(LDPDSGD(), ring(5), apart)


def test_who_shares_numbers() -> None:
    assert shares_edges(DECOR(), ring(5))
    assert shares_edges(PrivatePDSGD(), ring(5))
    assert not shares_edges(LDPDSGD(), ring(5))
    assert not shares_edges(DECOR(0.1, 0.0), ring(5))
