"""Where private numbers come from: one independent stream for each run and agent.

A private number (stepsize, mixing coefficient, noise, choice of samples) must stay unpredictable to
an observer of any number of others. torch's CPU generator is a Mersenne Twister: its future follows
from its outputs, and `seed + rank` gives every agent everybody's numbers. Here they come from
AES-256 in counter mode under a key of the operating system, each agent process having its own key.

A stream is addressed, not consumed: the numbers of (run, agent, purpose, round) do not depend on
what was drawn before, on the other agents, or on how runs are divided into chunks. A stopped run
therefore resumes from its round alone.
"""

import hashlib
import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor

from sottovoce.errors import SottovoceError


class InsecureSeedWarning(UserWarning):
    """The seed reveals every private number of every agent to anyone who knows it."""


class Streams(ABC):
    """Private random numbers for `runs` x `agents`, addressed by purpose and round."""

    def __init__(self, runs: range, agents: Sequence[int], device: torch.device) -> None:
        self.runs, self.device = runs, device
        self.agents = _kept(agents)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(runs={len(self.runs)}, agents={len(self.agents)})"

    def part(self, runs: slice, agents: slice) -> "Streams":
        """The same numbers for some runs and agents alone."""
        return self._sharing(self.runs[runs], self.agents[agents])

    def renumbered(self, agents: Sequence[int]) -> "Streams":
        """Streams of other numbers in place of the agents', under the same keys."""
        return self._sharing(self.runs, agents)

    def _sharing(self, runs: range, agents: Sequence[int]) -> Self:
        """Streams of other runs and agents that share the keys."""
        part = copy(self)
        part.runs, part.agents = runs, _kept(agents)
        return part

    @abstractmethod
    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """`count` numbers in [0, 1) for each run and agent: (runs, agents, count)."""

    def rounds(
        self, purpose: str, first: int, rounds: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """`uniform` of some rounds in a row: (rounds, runs, agents, count)."""
        each = range(first, first + rounds)
        return torch.stack([self.uniform(purpose, round, count, dtype) for round in each])

    def ahead(
        self, what: tuple[object, ...], each: int, round: int, make: Callable[[int, int], Tensor]
    ) -> Tensor:
        """What `make` makes of the numbers of a round: of many rounds at once where it is small.

        what: all that decides it, but for the round. each: its bytes in one round. make: called
        with the first round and the number of rounds, gives a row for each. The caller must not
        alter what it gets.
        """
        return make(round, 1)[0]

    def scale_(self, tensor: Tensor, low: float, high: float, purpose: str, round: int) -> None:
        """Multiply each entry of (runs, agents, d) by its own number uniform on [low, high)."""
        draws = self.uniform(purpose, round, tensor.shape[-1], tensor.dtype)
        tensor.mul_(draws.mul_(high - low).add_(low))

    def normal(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """`count` standard normal numbers for each run and agent: (runs, agents, count)."""
        return to_normal(self.uniform(purpose, round, count, dtype))

    def exact_normal(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """Standard normal numbers for noise that a proof counts on: (runs, agents, count).

        The low bits of a single draw, added to a number and rounded, tell what it was added to
        (Mironov 2012). Here each number is half the sum of four independent draws, which cannot be
        solved for its terms (Holohan and Braghin 2021). A proof needs float64: float32 draws take
        2^23 values and end at 5.29 standard deviations.
        """
        first, *others = terms_of(purpose)
        total = self.normal(first, round, count, dtype)
        for term in others:
            total += self.normal(term, round, count, dtype)
        return total.mul_(0.5)

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        """Add to each entry of (runs, agents, d) its own Gaussian number of this deviation."""
        tensor.add_(self.normal(purpose, round, tensor.shape[-1], tensor.dtype).mul_(deviation))

    def integers(self, purpose: str, round: int, count: int, high: int | Tensor) -> Tensor:
        """`count` whole numbers in [0, high) for each run and agent; `high` may differ by agent.

        A tensor `high` has shape (agents, 1). The bias is below high / 2**52.
        """
        return (self.uniform(purpose, round, count) * high).long()


class RoundsAsRuns(Streams):
    """The numbers of some rounds in a row, from the one asked for on, as if they were more runs.

    What is computed of the numbers of a single round is so computed for many rounds at once.
    """

    def __init__(self, streams: Streams, rounds: int) -> None:
        super().__init__(range(rounds * len(streams.runs)), streams.agents, streams.device)
        self._streams, self._rounds = streams, rounds

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        return self._streams.rounds(purpose, round, self._rounds, count, dtype).flatten(0, 1)


def _kept(agents: Sequence[int]) -> Sequence[int]:
    """The agents' numbers, which nobody alters; a range of a million takes no memory."""
    return agents if isinstance(agents, range) else tuple(agents)


def warn_about_seed() -> None:
    """Say what `insecure_seed` gives away; real agents call this, studies need not."""
    warnings.warn(
        "insecure_seed makes every private number predictable: anyone who knows the seed can "
        "compute every agent's stepsizes, coefficients and gradients. Use it for studies only.",
        InsecureSeedWarning,
        stacklevel=3,
    )


def require_jitter(private_start: float) -> None:
    """Raise unless the standard deviation of private starting points is finite and not negative."""
    if not 0 <= private_start < float("inf"):
        raise SottovoceError(
            f"private_start is {private_start}; it must be finite and not negative"
        )


def master_key(insecure_seed: int | None) -> bytes:
    """A key of the operating system, or the one that belongs to a seed."""
    return os.urandom(32) if insecure_seed is None else digest(32, insecure_seed)


def digest(size: int, *parts: object) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=size, person=b"sottovoce").digest()


def terms_of(purpose: str) -> list[str]:
    """The purposes of the draws that one exact normal number is made of."""
    return [f"{purpose}, term {term} of 4" for term in range(1, 5)]


def to_normal(uniform: Tensor) -> Tensor:
    """Make uniform numbers Gaussian in place, √2 erfinv(2u - 1); the half step keeps 0 out."""
    step = 2.0**-52 if uniform.dtype == torch.float64 else 2.0**-23
    return uniform.mul_(2.0).add_(step - 1.0).erfinv_().mul_(math.sqrt(2.0))
