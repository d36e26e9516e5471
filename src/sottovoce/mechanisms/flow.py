"""What passes through a chain of parts, and the private numbers that parts may ask for.

Every part is what one agent computes alone. Between agents there is one thing only: the sum of the
messages that an agent receives. A flow therefore holds some senders and the routes on which they
send, all agents of a simulation or a single real agent, and a part cannot tell the difference.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

from sottovoce.graphs import Routes
from sottovoce.randomness import Streams
from sottovoce.stepsizes import Stepsize


class Scope(Enum):
    """Who holds a private number: an agent, the sender on a link, or both ends of an edge."""

    AGENT = "agent"
    LINK = "link"
    EDGE = "edge"


class Clock(NamedTuple):
    """A round, from 1 on, and within it an exchange, from 0 on."""

    round: int
    inner: int = 0


@dataclass(eq=False)
class Flow:
    """What an agent holds during a round, for some senders of some runs.

    x: states (runs, senders, d). s: gradients, which the stepsizes turn into steps, likewise.
    shares: one for each route, (runs, routes, d), once the step is split. v: messages, likewise.
    before: after the exchange the state of which `x` is the successor. memory: what parts keep from
    round to round, by names of their own. asked: whose private numbers were asked for.
    """

    x: Tensor
    s: Tensor
    routes: Routes
    streams: Streams
    stepsize: Stepsize
    at: Clock
    memory: dict[str, Tensor] = field(default_factory=dict)
    asked: set[Scope] = field(default_factory=set)
    shares: Tensor = field(init=False)
    v: Tensor = field(init=False)
    before: Tensor = field(init=False)

    @property
    def mean_stepsize(self) -> Tensor:
        """The public mean λ̄ of every sender's stepsize: (senders, 1)."""
        means = [self.stepsize.mean(self.at.round, agent) for agent in self.streams.agents]
        return self.x.new_tensor(means).unsqueeze(-1)

    def by_route(self, values: Tensor) -> Tensor:
        """What each route's sender has: (..., senders, n) -> (..., routes, n)."""
        return values.index_select(-2, self.routes.sender)

    def over_routes(self, values: Tensor) -> Tensor:
        """The sum over each sender's routes: (runs, routes, n) -> (runs, senders, n)."""
        total = values.new_zeros(values.shape[0], self.routes.agents, values.shape[2])
        return total.index_add_(1, self.routes.sender, values)

    def mean_over_routes(self, values: Tensor) -> Tensor:
        """The mean over each sender's routes: (runs, routes, n) -> (runs, senders, n)."""
        return self.over_routes(values).div_(self.routes.members.to(values.dtype).unsqueeze(-1))

    def uniform(
        self, scope: Scope, purpose: str, *, single: bool = False, round: int | None = None
    ) -> Tensor:
        """Private numbers uniform on [0, 1), for every coordinate or a `single` one for all.

        Of shape (runs, senders, d) for agents and (runs, routes, d) for links and edges, where d is
        1 and the type float64 if `single`. The two ends of an edge see the same number, and an
        agent's route to itself 0. round: the one under way, or an earlier one, whose numbers come
        again.
        """
        return self._draw(self.streams.uniform, scope, purpose, single, round)

    def normal(self, scope: Scope, purpose: str, *, round: int | None = None) -> Tensor:
        """Private standard normal numbers, as for `uniform`."""
        return self._draw(self.streams.normal, scope, purpose, False, round)

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str) -> None:
        """Add Gaussian numbers of this deviation to (runs, senders, d) without storing them."""
        self.asked.add(Scope.AGENT)
        self.streams.add_normal_(tensor, deviation, self._named(purpose), self.at.round)

    def _draw(
        self,
        draw: Callable[[str, int, int, torch.dtype], Tensor],
        scope: Scope,
        purpose: str,
        single: bool,
        round: int | None,
    ) -> Tensor:
        self.asked.add(scope)
        purpose, round = self._named(purpose), self.at.round if round is None else round
        count, dtype = (1, torch.float64) if single else (self.s.shape[-1], self.s.dtype)
        if scope is Scope.AGENT:
            return draw(purpose, round, count, dtype)
        if scope is Scope.EDGE:
            return self._by_edge(draw.__name__, purpose, round, count, dtype)
        routes = self.routes
        if single:
            # Few numbers: those of all links of an agent are one draw.
            return draw(purpose, round, routes.slots, dtype)[:, routes.sender, routes.slot, None]
        drawn = self.s.new_empty(len(self.s), len(routes.sender), count)
        for slot in range(routes.slots):
            here = (routes.slot == slot).nonzero().flatten()
            if len(here):
                numbers = draw(f"{purpose}, slot {slot}", round, count, dtype)
                drawn.index_copy_(1, here, numbers.index_select(1, routes.sender[here]))
        return drawn

    def _by_edge(
        self, kind: str, purpose: str, round: int, count: int, dtype: torch.dtype
    ) -> Tensor:
        edges, place = self.routes.edge.unique(return_inverse=True)
        streams = self.streams.renumbered(edges.tolist())
        numbers: Tensor = getattr(streams, kind)(f"{purpose}, edge", round, count, dtype)
        drawn = numbers.index_select(1, place)
        return drawn.masked_fill_(self.routes.own[:, None], 0.0)

    def _named(self, purpose: str) -> str:
        return f"{purpose}, exchange {self.at.inner}" if self.at.inner else purpose
