"""The problem of the worst case: one record whose gradient always points one way.

In half of the runs agent `agent` has the canary; all other records contribute nothing, and nothing
depends on the states. A canary at the clipping bound in a fixed direction is the worst record that
a guarantee covers, and one coordinate is enough to see it: the noise of others is independent.
"""

from typing import ClassVar

import torch
from torch import Tensor

from sottovoce.errors import ProblemError
from sottovoce.mechanisms import Bound
from sottovoce.problems.base import Problem
from sottovoce.problems.sampling import Sampling
from sottovoce.randomness import Streams


class Canary(Problem):
    """One record of norm `norm` at one agent in every odd run, and nothing else.

    rate: with which probability it is in a batch. batch: what gradients are divided by. A mechanism
    that clips cuts its gradient to the bound, one that does not takes it whole.
    """

    name: ClassVar[str] = "canary"

    def __init__(
        self, agents: int, agent: int, rate: float, *, batch: int = 1, norm: float = 1.0
    ) -> None:
        if not 0 <= agent < agents or not 0 < rate <= 1 or batch < 1:
            raise ProblemError(
                f"a canary at agent {agent} of {agents} with rate {rate} in batches of {batch}; "
                "accepted: an agent that there is, a rate in (0, 1] and a batch of at least 1"
            )
        self.agents, self.dimension = agents, 1
        self.agent, self.rate, self.batch, self.norm = agent, rate, batch, norm
        count = max(1, round(batch / rate))
        self.sampling = Sampling((count,) * agents, min(batch, count), poisson=True)

    @staticmethod
    def has_it(runs: range) -> Tensor:
        """Which runs have the canary: (runs,) bool."""
        return torch.arange(runs.start, runs.stop) % 2 == 1

    def gradient(self, state: Tensor, streams: Streams, round: int, out: Tensor) -> Tensor:
        return self._fill(streams, round, out, self.norm)

    def clipped_gradient(
        self, state: Tensor, streams: Streams, round: int, out: Tensor, bound: Bound
    ) -> Tensor:
        norm = torch.tensor(self.norm, dtype=torch.float64)
        return self._fill(streams, round, out, float(bound.factors(norm) * norm))

    def _fill(self, streams: Streams, round: int, out: Tensor, size: float) -> Tensor:
        chance = streams.uniform("data", round, 1)[:, self.agent, 0]
        drawn = (chance < self.rate) & self.has_it(streams.runs).to(chance.device)
        out.zero_()
        out[:, self.agent, 0] = torch.where(drawn, size / self.batch, 0.0)
        return out

    def measure(self, state: Tensor) -> dict[str, Tensor]:
        return {"size": state.norm(dim=-1).mean(-1)}
