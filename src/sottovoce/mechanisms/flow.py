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
from sottovoce.randomness import RoundsAsRuns, Streams
from sottovoce.stepsizes import Stepsize

_BLOCK_NUMBERS = {True: 1 << 16, False: 1 << 25}
"""Draws for a proof held at a time, one for each route: on a CPU, and elsewhere."""
_SHARED_NUMBERS = 1 << 18
"""Likewise on a CPU, of numbers that both ends of an edge take: to draw them twice costs more."""


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
    round to round, by names of their own. asked: whose private numbers were asked for. proving:
    whether the chain bounds samples, so that a proof may count on the noise that it adds.
    in_kernel: whether a GPU's kernel may draw noise where it adds it (`mechanisms.terms`).
    """

    x: Tensor
    s: Tensor
    routes: Routes
    streams: Streams
    stepsize: Stepsize
    at: Clock
    memory: dict[str, Tensor] = field(default_factory=dict)
    asked: set[Scope] = field(default_factory=set)
    proving: bool = False
    in_kernel: bool = False
    shares: Tensor = field(init=False)
    v: Tensor = field(init=False)
    before: Tensor = field(init=False)

    @property
    def mean_stepsize(self) -> Tensor:
        """The public mean λ̄ of every sender's stepsize: (senders, 1)."""
        round, agents = self.at.round, self.streams.agents
        if not self.stepsize.differs:
            return self.x.new_full((len(agents), 1), self.stepsize.mean(round))
        means = [self.stepsize.mean(round, agent) for agent in agents]
        return self.x.new_tensor(means).unsqueeze(-1)

    def of_rounds(self, first: int, rounds: int) -> "Flow":
        """Some rounds in a row as more runs, round by round, with states of no coordinates."""
        streams = RoundsAsRuns(self.streams, rounds)
        none = self.x.new_empty(len(streams.runs), self.x.shape[1], 0)
        return Flow(none, none, self.routes, streams, self.stepsize, Clock(first))

    def by_route(self, values: Tensor) -> Tensor:
        """What each route's sender has: (..., senders, n) -> (..., routes, n)."""
        return values.index_select(-2, self.routes.sender)

    def over_routes(self, values: Tensor) -> Tensor:
        """The sum over each sender's routes: (runs, routes, n) -> (runs, senders, n)."""
        total = values.new_zeros(values.shape[0], self.routes.agents, values.shape[2])
        if values.shape[2] == 1:
            # The same sums in the same order, many times as fast where each is one number.
            sender = self.routes.sender.expand(len(values), -1)
            total.squeeze(2).scatter_add_(1, sender, values.squeeze(2))
            return total
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
        dtype = torch.float64 if single else self.s.dtype
        return self._draw(self.streams.uniform, scope, purpose, round, dtype, single)

    def normal(self, scope: Scope, purpose: str, *, round: int | None = None) -> Tensor:
        """Private standard normal numbers, as for `uniform`."""
        return self._draw(self.streams.normal, scope, purpose, round, self.s.dtype)

    def exact_normal(self, scope: Scope, purpose: str, *, round: int | None = None) -> Tensor:
        """Standard normal numbers for noise that a proof counts on, in float64, as for `uniform`.

        See `Streams.exact_normal`; `add_exactly` adds what is made of them to the step.
        """
        return self._draw(self.streams.exact_normal, scope, purpose, round, torch.float64)

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str) -> None:
        """Add Gaussian numbers of this deviation to (runs, senders, d) without storing them.

        Where a proof may count on them and the tensor is `s`, as `add_exactly` adds them.
        """
        self.asked.add(Scope.AGENT)
        if self.proving and tensor is self.s:
            self.add_exactly(lambda part: part.exact_normal(Scope.AGENT, purpose).mul_(deviation))
            return
        self.streams.add_normal_(tensor, deviation, self.named(purpose), self.at.round)

    def add_exactly(self, noise: Callable[["Flow"], Tensor], shared: bool = False) -> None:
        """Add to `s` in float64 what `noise` makes of a flow, and round afterwards, in place.

        noise: gives (runs, senders, d) in float64 for the flow that it gets, which may be some runs
        and senders of this one, so that little of it is held at a time. shared: whether both ends
        of an edge take its numbers, so that senders stay together where memory allows.
        """
        for runs, senders, routes, streams in self._blocks(shared):
            x, s = self.x[runs, senders], self.s[runs, senders]
            part = Flow(x, s, routes, streams, self.stepsize, self.at, asked=self.asked)
            if s.dtype == torch.float64:
                s.add_(noise(part))
            else:
                s.copy_(noise(part).add_(s))

    def _blocks(self, shared: bool = False) -> list[tuple[slice, slice, Routes, Streams]]:
        """Runs and senders to draw for in turn, as many as memory for draws holds."""
        whole, (runs, senders, d) = slice(None), self.s.shape
        each = max(1, self.routes.slots * d)
        rows = _BLOCK_NUMBERS[self.s.device.type == "cpu"] // each
        if shared and rows < senders and senders * each <= _SHARED_NUMBERS:
            rows = senders
        if rows >= runs * senders or runs * senders == 1:
            return [(whole, whole, self.routes, self.streams)]
        at_once, together = max(1, min(rows, senders)), max(1, rows // senders)
        return [
            (some, part, routes, self.streams.part(some, part))
            for part in (slice(at, at + at_once) for at in range(0, senders, at_once))
            for routes in [self.routes.part(part)]
            for some in (slice(at, at + together) for at in range(0, runs, together))
        ]

    def _draw(
        self,
        draw: Callable[[str, int, int, torch.dtype], Tensor],
        scope: Scope,
        purpose: str,
        round: int | None,
        dtype: torch.dtype,
        single: bool = False,
    ) -> Tensor:
        self.asked.add(scope)
        purpose, round = self.named(purpose), self.at.round if round is None else round
        count = 1 if single else self.s.shape[-1]
        if scope is Scope.AGENT:
            return draw(purpose, round, count, dtype)
        if scope is Scope.EDGE:
            return self._by_edge(draw.__name__, purpose, round, count, dtype)
        routes = self.routes
        if single:
            # Few numbers: those of all links of an agent are one draw.
            numbers = draw(purpose, round, routes.slots, dtype).flatten(1)
            return numbers.index_select(1, routes.place).unsqueeze(-1)
        drawn = self.s.new_empty(len(self.s), len(routes.sender), count, dtype=dtype)
        for slot in range(routes.slots):
            here = (routes.slot == slot).nonzero().flatten()
            if len(here):
                each = draw(f"{purpose}, slot {slot}", round, count, dtype)
                drawn.index_copy_(1, here, each.index_select(1, routes.sender[here]))
        return drawn

    def _by_edge(
        self, kind: str, purpose: str, round: int, count: int, dtype: torch.dtype
    ) -> Tensor:
        between = (~self.routes.own).nonzero().flatten()
        shape = len(self.s), len(self.routes.edge), count
        drawn = torch.zeros(shape, dtype=dtype, device=self.s.device)
        if len(between):
            edges, place = self.routes.edge[between].unique(return_inverse=True)
            streams = self.streams.renumbered(edges.tolist())
            numbers: Tensor = getattr(streams, kind)(f"{purpose}, edge", round, count, dtype)
            drawn.index_copy_(1, between, numbers.index_select(1, place))
        return drawn

    def named(self, purpose: str) -> str:
        """The purpose under which the exchange under way draws."""
        return f"{purpose}, exchange {self.at.inner}" if self.at.inner else purpose
