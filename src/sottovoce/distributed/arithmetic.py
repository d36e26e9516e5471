"""The numbers of one agent's round, in blocks that the processor's cache holds.

    message_i = w_i x - share_i,        x <- Σ_j message_j

The operations of the reference in their order, so the same bits; but for a plain chain every number
of the state and of the gradient comes from memory once for all messages together.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

import torch
from torch import Tensor, get_num_threads

from sottovoce.distributed.exchange import Exchange
from sottovoce.distributed.streams import AgentStreams
from sottovoce.mechanisms import Mechanism
from sottovoce.mechanisms.flow import Clock, Flow
from sottovoce.mechanisms.reference import make_messages, settle, take_step

_Play = Callable[[Mechanism, Flow], None]

BLOCK = 1 << 17
"""Numbers that each thread of a CPU works on at a time; a GPU works on all."""


@dataclass(frozen=True, eq=False)
class _Block:
    """The n numbers of the vector at `place`, and where what belongs to them lies.

    pieces: the parameters' gradients there, as (parameter, part of it, where it goes in `step`).
    incoming: what is summed, ascending by sender, the own message among it. partial: where sums
    begin. total: (), the sum of the sum, for the search for NaN. out, shares: (neighbours, n); all
    others: (n,).
    """

    place: slice
    pieces: list[tuple[int, slice, Tensor]]
    state: Tensor
    step: Tensor
    own: Tensor
    out: Tensor
    shares: Tensor
    share: Tensor
    incoming: list[Tensor]
    partial: Tensor
    total: Tensor


class Arithmetic:
    """Turns gradients into messages, and messages into the new state, one segment at a time.

    flow: the agent's state, routes, streams and stepsize. sizes: how many numbers each parameter
    has. whole: whether the chain must see all coordinates at once; a GPU works on all anyway. step:
    the steps of the whole vector, where they are kept (`keep_step`) or needed at once. memory: what
    parts of the chain keep from round to round.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        flow: Flow,
        sizes: Sequence[int],
        exchange: Exchange,
        *,
        whole: bool,
        keep_step: bool,
    ) -> None:
        self._mechanism, self._flow, self._state = mechanism, flow, flow.x[0, 0]
        self._streams, self.memory = cast(AgentStreams, flow.streams), flow.memory
        self._whole = whole or self._state.device.type != "cpu" or not mechanism.by_coordinate
        self.step = torch.zeros_like(self._state) if self._whole or keep_step else None
        self._own = torch.zeros_like(self._state, device=exchange.device)
        receivers = flow.routes.receiver.tolist()
        self._own_route = receivers.index(exchange.agent)
        self._other_routes = [at for at in range(len(receivers)) if at != self._own_route]
        self._weights, self._own_weight = self._by_route(flow.routes.weight)
        self._parts, self._own_part = self._weights, self._own_weight
        self._keeps = False
        self._messages = self._state.new_empty(0)
        self._gradients: Sequence[Tensor | None] = []
        self._lay_out(sizes, exchange)

    def prepare(self, gradients: Sequence[Tensor | None], at: Clock) -> None:
        """Take the round's gradients, one (n,) for each parameter, and draw its coefficients.

        In a round's later exchanges the step is spent, and the gradients are left aside.
        """
        self._gradients, self._flow.at = gradients, at
        if self._mechanism.plain:
            parts = self._mechanism.split.coefficients(self._flow)[0, :, 0]
            self._parts, self._own_part = self._by_route(parts)
            self._keeps = bool((parts == self._flow.routes.own.to(parts.dtype)).all())
        if self._whole:
            assert self.step is not None
            if at.inner:
                self.step.zero_()
            else:
                for block in chain(*self._blocks):
                    self._collect(block)
                self._make_step(self.step, 0)
            if not self._mechanism.plain:
                self._messages = self._make_messages(self._state, self.step, 0)

    def write(self, number: int) -> None:
        """Write segment `number` of all messages; the own one stays here."""
        for block in self._blocks[number]:
            if not self._whole:
                self._collect(block)
                self._make_step(block.step, block.place.start)
            if self._mechanism.plain:
                self._write_shares(block)
                continue
            if self._whole:
                messages = self._messages[:, block.place]
            else:
                messages = self._make_messages(block.state, block.step, block.place.start)
            for row, at in zip(block.out, self._other_routes, strict=True):
                row.copy_(messages[at])
            block.own.copy_(messages[self._own_route])

    def add(self, number: int) -> None:
        """Sum segment `number` of what arrived and of the own message, which is used up."""
        for block in self._blocks[number]:
            total, *others = block.incoming
            for left, message in zip(range(len(others) - 1, -1, -1), others, strict=True):
                total = torch.add(total, message, out=block.partial if left else block.own)
            torch.sum(block.own, 0, out=block.total)

    def is_finite(self) -> bool:
        """Whether the sums show that every number that arrived is finite; they may overflow."""
        return bool(torch.isfinite(self._totals).all())

    def apply(self) -> None:
        """Replace the state by the sum, in one operation, and let the chain's state parts follow.

        A sum begins with zero, as in `receive`: negative zeros become positive.
        """
        if self._mechanism.at("state"):
            total = self._own.add(0.0).to(self._state.device).view(1, 1, -1)
            flow = self._part_of_flow(self._state.clone(), self._state)
            settle(self._mechanism, flow, total)
            self._state.copy_(flow.x[0, 0])
        elif self._own.device == self._state.device:
            torch.add(self._own, 0.0, out=self._state)
        else:
            self._state.copy_(self._own.add_(0.0))

    def _by_route(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """One number for each route, as (neighbours, 1) and the own one, ()."""
        numbers = numbers.to(self._state.dtype)
        return numbers[self._other_routes].unsqueeze(1), numbers[self._own_route]

    def _collect(self, block: _Block) -> None:
        for parameter, part, target in block.pieces:
            gradient = self._gradients[parameter]
            if gradient is None:
                target.zero_()
            else:
                target.copy_(gradient[part])

    def _part_of_flow(self, state: Tensor, step: Tensor) -> Flow:
        """The flow of some numbers of the vector, (n,) each."""
        return replace(self._flow, x=state.view(1, 1, -1), s=step.view(1, 1, -1))

    def _played(self, play: _Play, state: Tensor, step: Tensor, at: int) -> Flow:
        """The flow of the numbers from `at` on after a part of the round."""
        flow = self._part_of_flow(state, step)
        self._streams.at, self._streams.block = at, len(step)
        play(self._mechanism, flow)
        self._streams.at, self._streams.block = 0, None
        return flow

    def _make_step(self, step: Tensor, at: int) -> None:
        """Turn the gradients in `step` into steps, in place."""
        flow = self._played(take_step, self._state, step, at)
        if flow.s.data_ptr() != step.data_ptr():
            step.copy_(flow.s[0, 0])

    def _make_messages(self, state: Tensor, step: Tensor, at: int) -> Tensor:
        """What travels on every route for the numbers from `at` on: (routes, n)."""
        return self._played(make_messages, state, step, at).v[0]

    def _write_shares(self, block: _Block) -> None:
        if self._keeps:
            # The neighbours' shares are zero and the own one is the step.
            _write(block.out, block.state, self._weights, None)
            _write(block.own, block.state, self._own_weight, block.step)
        else:
            shares = torch.mul(block.step, self._parts, out=block.shares)
            _write(block.out, block.state, self._weights, shares)
            share = torch.mul(block.step, self._own_part, out=block.share)
            _write(block.own, block.state, self._own_weight, share)

    def _lay_out(self, sizes: Sequence[int], exchange: Exchange) -> None:
        """Divide every segment into blocks; views are made once, not in every round."""
        dimension, neighbours = len(self._state), exchange.neighbours
        longest = dimension if self._state.device.type != "cpu" else BLOCK * get_num_threads()
        longest = min(dimension, longest)
        shares = self._state.new_empty(len(neighbours) + 1, longest)
        partial = self._own.new_empty(longest)
        step = self._state.new_empty(longest) if self.step is None else self.step
        places = [_divide(cut, longest) for cut in exchange.segments]
        self._totals = self._own.new_zeros(sum(map(len, places)))
        totals = iter(self._totals)
        self._blocks: list[list[_Block]] = []
        for number, cut in enumerate(exchange.segments):
            blocks = []
            for place in places[number]:
                size = place.stop - place.start
                within = slice(place.start - cut.start, place.stop - cut.start)
                here = step[:size] if self.step is None else step[place]
                own = self._own[place]
                arrived = {j: exchange.inbox[j].payloads[number][within] for j in neighbours}
                incoming = {**arrived, exchange.agent: own}
                blocks.append(
                    _Block(
                        place=place,
                        pieces=list(_pieces(place, sizes, here)),
                        state=self._state[place],
                        step=here,
                        own=own,
                        out=exchange.outgoing[number][:, within],
                        shares=shares[:-1, :size],
                        share=shares[-1, :size],
                        incoming=[incoming[j] for j in sorted(incoming)],
                        partial=partial[:size],
                        total=next(totals),
                    )
                )
            self._blocks.append(blocks)


def _divide(cut: slice, longest: int) -> list[slice]:
    """Blocks of about equal size, so that none has as few numbers as an agent has neighbours."""
    count = -(-(cut.stop - cut.start) // longest)
    size = -(-(cut.stop - cut.start) // count)
    return [slice(at, min(at + size, cut.stop)) for at in range(cut.start, cut.stop, size)]


def _pieces(
    place: slice, sizes: Sequence[int], target: Tensor
) -> Iterator[tuple[int, slice, Tensor]]:
    """Which parts of which parameters lie at `place`, and where in `target` they go."""
    begin = 0
    for parameter, size in enumerate(sizes):
        first, last = max(place.start, begin), min(place.stop, begin + size)
        if first < last:
            goal = target[first - place.start : last - place.start]
            yield parameter, slice(first - begin, last - begin), goal
        begin += size


def _write(target: Tensor, state: Tensor, weight: Tensor, share: Tensor | None) -> None:
    """target = weight · state - share, each operation rounded on its own."""
    near = target.device == state.device
    message = torch.mul(state, weight, out=target) if near else state * weight
    if share is not None:
        message.sub_(share)
    if not near:
        target.copy_(message)
