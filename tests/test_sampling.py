"""Poisson batches: true to their law, private, the same for one agent as for all, and divided."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from sottovoce.errors import ProblemError
from sottovoce.problems.sampling import CUT, ROOM, Sampling, most_of, poisson_sample
from sottovoce.randomness import private_streams

RUNS = 4000


def members(sampling: Sampling, rounds: int = 1) -> np.ndarray:
    """Which samples are in the batches of many runs: (rounds, runs, agents, samples)."""
    streams = private_streams(RUNS, len(sampling.samples), insecure_seed=3)
    found = []
    for round in range(1, rounds + 1):
        chosen, present = sampling.draw(streams, round)
        inside = torch.zeros(RUNS, len(sampling.samples), max(sampling.samples))
        found.append(inside.scatter_add_(2, chosen, present.float()))
    return torch.stack(found).numpy()


def test_each_sample_is_drawn_on_its_own_with_its_rate() -> None:
    sampling = Sampling((30, 12), 6, poisson=True)
    inside = members(sampling, 2)
    assert set(np.unique(inside)) == {0.0, 1.0}, "no sample twice"
    for agent, samples in enumerate(sampling.samples):
        rate = 6 / samples
        drawn = inside[:, :, agent, :samples].reshape(2 * RUNS, samples)
        assert not inside[:, :, agent, samples:].any()
        error = math.sqrt(rate * (1 - rate) / len(drawn))
        assert np.abs(drawn.mean(0) - rate).max() < 4.5 * error
        sizes = drawn.sum(1)
        expected = stats.binom(samples, rate)
        seen = np.bincount(sizes.astype(int), minlength=samples + 1) / len(sizes)
        assert np.abs(np.cumsum(seen) - expected.cdf(np.arange(samples + 1))).max() < 0.02
        assert sizes.var() == pytest.approx(expected.var(), rel=0.1)
        apart = np.corrcoef(drawn.T) - np.eye(samples)
        assert np.abs(apart).max() < 5 / math.sqrt(len(drawn)), "pairs are independent"


def test_batches_of_rounds_agents_and_runs_are_independent() -> None:
    inside = members(Sampling((20, 20), 10, poisson=True), 2)
    rows = [inside[0, :, 0], inside[1, :, 0], inside[0, :, 1], np.roll(inside[0, :, 0], 1, 0)]
    found = np.corrcoef([one.ravel() for one in rows])
    assert np.abs(found - np.eye(4)).max() < 5 / math.sqrt(20 * RUNS)


def test_one_agent_draws_what_it_draws_among_all() -> None:
    sampling = Sampling((50, 80, 50), 9, poisson=True)
    chosen, present = sampling.draw(private_streams(3, 3, insecure_seed=5), 4)
    for agent, samples in enumerate(sampling.samples):
        streams = private_streams(range(1, 2), [agent], insecure_seed=5)
        alone = poisson_sample(streams, 4, samples, 9)
        own = alone.chosen[alone.present]
        assert len(own) > 0
        assert torch.equal(chosen[1, agent][present[1, agent]], own)


def test_runs_in_blocks_draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling((50, 80, 50), 9, poisson=True)
    streams = private_streams(7, 3, insecure_seed=5)
    whole = sampling.draw(streams, 2)
    monkeypatch.setattr("sottovoce.problems.sampling._AT_ONCE", 2000)
    assert all(map(torch.equal, whole, sampling.draw(streams, 2)))


def test_a_batch_has_no_room_left_with_the_stated_probability() -> None:
    """A sample is full for a person where more than most - ROOM others are in it."""
    for samples, batch in ((12_000, 256), (1000, 128), (500, 1), (200, 30)):
        law = stats.binom(samples, batch / samples)
        others = most_of(samples, batch) - ROOM
        assert law.sf(others) <= CUT < law.sf(others - 1)
    assert most_of(7, 7) == 7 + ROOM, "a rate of one takes all, and one more would fit"


def test_a_batch_beyond_the_largest_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sottovoce.problems.sampling.most_of", lambda count, batch: 5)
    inside = members(Sampling((20,), 10, poisson=True))[0, :, 0]
    assert inside.sum(1).max() == 5


def test_padding_comes_last_and_is_little() -> None:
    sampling = Sampling((1000,) * 4, 64, poisson=True)
    _, present = sampling.draw(private_streams(10, 4, insecure_seed=1), 1)
    sizes = present.sum(-1)
    assert torch.equal(present, torch.arange(present.shape[-1]) < sizes.unsqueeze(-1))
    assert int(sizes.max()) <= present.shape[-1] < int(sizes.max()) + 8


def test_a_fixed_batch_has_all_its_samples() -> None:
    sampling = Sampling((5, 9), 12)
    chosen, present = sampling.draw(private_streams(6, 2, insecure_seed=1), 1)
    assert chosen.shape == (6, 2, 12)
    assert bool(present.all())
    assert int(chosen[:, 0].max()) < 5


@pytest.mark.parametrize(
    ("samples", "batch", "message"),
    [
        ((9, 5), 6, "batch is 6, but agent 1 has 5 samples; a Poisson sample cannot expect more"),
        ((9, 5), 0, "batch is 0; it must be at least 1"),
    ],
)
def test_impossible_batches_are_refused(samples: tuple[int, ...], batch: int, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        Sampling(samples, batch, poisson=True)
