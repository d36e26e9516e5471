"""How the samples of a batch are drawn: a fixed number with replacement, or a Poisson sample.

A Poisson sample takes each sample on its own with one probability, its rate. Sampling amplifies a
guarantee in this form: whether one record is in a batch then tells nothing of the others.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import bdtrc
from torch import Tensor

from sottovoce.errors import ProblemError
from sottovoce.mechanisms import Bound
from sottovoce.randomness import Streams

_AT_ONCE = 1 << 27
"""Bytes of numbers that decide who is in a batch, held at a time."""
_STEPS = 8
"""Batches are padded to a multiple of this fraction of a batch, so that few shapes occur."""
CUT = 1e-30
"""The probability, in one round, that a Poisson sample has no room left for `ROOM` more records."""
ROOM = 32
"""The most records of one person for which a proof counts a sample as never cut.

Given that there is room, a sample is the ideal one whatever the person's records are, and whether
there is room depends on the other records alone: a proof pays with CUT in δ in every round.
"""


class Batch(NamedTuple):
    """Which samples were drawn: (runs, agents, n) each.

    chosen: numbers within each agent's own samples. present: whether an entry counts; the others
    are padding. Those that count come first.
    """

    chosen: Tensor
    present: Tensor


@dataclass(frozen=True)
class Sampling:
    """The agreed constants of sampling: how many samples each agent has, and how batches are drawn.

    samples: of each agent, a public number. batch: how many are drawn, or expected. poisson: each
    sample is in a batch on its own with the rate batch / samples; otherwise `batch` are drawn with
    replacement. Gradients are divided by `batch` in either case.
    """

    samples: tuple[int, ...]
    batch: int
    poisson: bool = False

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ProblemError(f"batch is {self.batch}; it must be at least 1")
        if self.poisson and self.batch > min(self.samples):
            agent = self.samples.index(min(self.samples))
            raise ProblemError(
                f"batch is {self.batch}, but agent {agent} has {self.samples[agent]} samples; a "
                "Poisson sample cannot expect more than there are"
            )

    def draw(self, streams: Streams, round: int) -> Batch:
        """The batches of a round, private draws of `streams` for all its runs and agents.

        An agent's batch depends on its own stream and number of samples alone.
        """
        if not self.poisson:
            high = _counts(self.samples, streams.device)
            chosen = streams.integers("data", round, self.batch, high)
            return Batch(chosen, torch.ones_like(chosen, dtype=torch.bool))
        runs, agents = len(streams.runs), len(self.samples)
        longest = max(most_of(count, self.batch) for count in self.samples)
        shape, device = (runs, agents, longest), streams.device
        chosen = torch.zeros(shape, dtype=torch.long, device=device)
        present = torch.zeros(shape, dtype=torch.bool, device=device)
        for count in sorted(set(self.samples)):
            own = [agent for agent, held in enumerate(self.samples) if held == count]
            most = most_of(count, self.batch)
            size = max(1, _AT_ONCE // (8 * len(own) * count))
            those = streams.renumbered([streams.agents[agent] for agent in own])
            for first in range(0, runs, size):
                part = slice(first, first + size)
                some = poisson_sample(those.part(part, slice(None)), round, count, self.batch)
                chosen[part, own, :most], present[part, own, :most] = some
        found = int(present.sum(-1).max())
        step = max(1, self.batch // _STEPS)
        kept = min(longest, max(1, -(-found // step)) * step)
        return Batch(chosen[..., :kept], present[..., :kept])


@lru_cache(maxsize=8)
def _counts(samples: tuple[int, ...], device: torch.device) -> Tensor:
    """How many samples each agent has, (agents, 1), copied to a device once."""
    return torch.tensor(samples, device=device)[:, None]


@cache
def most_of(count: int, batch: int) -> int:
    """The largest batch kept of `count` samples where `batch` are expected (see `CUT`)."""
    larger = bdtrc(np.arange(batch, count), count, batch / count)
    return batch + int(np.argmax(np.append(larger, 0.0) <= CUT)) + ROOM


def weights_of(norms: Tensor, present: Tensor, bound: Bound | None) -> Tensor:
    """What samples are multiplied by: c_n by the bound, 1 without one, 0 for padding.

    norms: of the samples' gradients, of the shape of `present`. A bounded sample whose norm is not
    finite counts as 0: otherwise one record could end the training, which everybody sees. Factors
    that let more through than the bound's own `norm` are shortened: a proof counts on that.
    """
    if bound is None:
        return present.to(norms.dtype)
    most = bound.norm / norms
    factors = bound.factors(norms).clamp(-most, most)
    return torch.where(present & norms.isfinite(), factors, 0.0)


def poisson_sample(streams: Streams, round: int, count: int, batch: int) -> Batch:
    """Each of `count` samples on its own with the rate batch / count: (runs, agents, most).

    Every sample has a private uniform number and is drawn where that is below the rate.
    """
    inside = streams.uniform("data", round, count) < batch / count
    sizes, most = inside.sum(-1), most_of(count, batch)
    run, agent, sample = inside.nonzero(as_tuple=True)
    ends = sizes.flatten().cumsum(0)
    before = (ends - sizes.flatten()).view_as(sizes)[run, agent]
    place = torch.arange(len(sample), device=inside.device) - before
    kept = place < most
    chosen = torch.zeros(*sizes.shape, most, dtype=torch.long, device=inside.device)
    chosen[run[kept], agent[kept], place[kept]] = sample[kept]
    return Batch(chosen, torch.arange(most, device=inside.device) < sizes.unsqueeze(-1))
