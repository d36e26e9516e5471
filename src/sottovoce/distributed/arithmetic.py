"""The numbers of one agent's round, in blocks that the processor's cache holds.

    message_i = w_i x - share_i,        x <- Σ_j message_j

The operations of the reference in their order, so the same bits; but for a plain chain every number
of the state and of the gradient comes from memory once for all messages together. On masked links
messages pass through their codec before they are sent, and integers are summed.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

import torch
from torch import Tensor, get_num_threads

from sottovoce.distributed.exchange import Exchange
from sottovoce.distributed.masks import MaskedLinks, sum_
from sottovoce.distributed.streams import AgentStreams
from sottovoce.errors import MessageError
from sottovoce.mechanisms import Mechanism
from sottovoce.mechanisms.fixed_point import STEP, to_steps
from sottovoce.mechanisms.flow import Clock, Flow
from sottovoce.mechanisms.reference import make_messages, settle, take_step

_log = logging.getLogger(__name__)

_Play = Callable[[Mechanism, Flow], None]

BLOCK = 1 << 17
"""Numbers that each thread of a CPU works on at a time; a GPU works on all."""


@dataclass(frozen=True, eq=False)
class _Block:
    """The n numbers of the vector at `place`, and where what belongs to them lies.

    pieces: the parameters' gradients there, as (parameter, part of it, where it goes in `step`).
    out: where messages are written; wire: what is sent of them, the same unless links are masked.
    incoming: what is summed, ascending by sender, the own message among it unless links are masked.
    partial: where sums begin. total: (), the sum of the sum, for the search for NaN. out, wire,
    shares: (neighbours, n); all others: (n,).
    """

    place: slice
    pieces: list[tuple[int, slice, Tensor]]
    state: Tensor
    step: Tensor
    own: Tensor
    out: Tensor
    wire: Tensor
    shares: Tensor
    share: Tensor
    incoming: list[Tensor]
    partial: Tensor
    total: Tensor


class Arithmetic:
    """Turns gradients into messages, and messages into the new state, one segment at a time.

    flow: the agent's state, routes, streams and stepsize. sizes: how many numbers each parameter
    has. whole: whether the chain must see all coordinates at once; a GPU works on all anyway.
    codec: that of masked links. step: the steps of the whole vector, where they are kept (`keep`)
    or needed at once. own: the message to itself, which never leaves the agent. memory: what parts
    of the chain keep from round to round.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        flow: Flow,
        sizes: Sequence[int],
        exchange: Exchange,
        *,
        whole: bool,
        keep: bool,
        codec: MaskedLinks | None = None,
    ) -> None:
        self._mechanism, self._flow, self._state = mechanism, flow, flow.x[0, 0]
        self._codec = codec
        self._streams, self.memory = cast(AgentStreams, flow.streams), flow.memory
        self._whole = whole or self._state.device.type != "cpu" or not mechanism.by_coordinate
        self.step = torch.zeros_like(self._state) if self._whole or keep else None
        self.own = torch.zeros_like(self._state, device=exchange.device)
        self._exchange, kept = exchange, len(self._state) if keep and codec else 0
        self._sent = self.own.new_zeros(len(exchange.neighbours), kept)
        self._received, self._square = self.own.new_zeros(1, kept), 0.0
        receivers = flow.routes.receiver.tolist()
        self._own_route = receivers.index(exchange.agent)
        self._other_routes = [at for at in range(len(receivers)) if at != self._own_route]
        self._weights, self._own_weight = self._by_route(flow.routes.weight)
        self._parts, self._own_part = self._weights, self._own_weight
        self._keeps = False
        self._messages = self._state.new_empty(0)
        self._gradients: Sequence[Tensor | None] = []
        self._sizes = sizes
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
        if self._codec:
            self._codec.begin((at.round - 1) * self._mechanism.exchanges + at.inner + 1)

    def begin_again(self, own: Tensor, at: Clock) -> None:
        """Take the own message of an exchange whose other messages were kept as they were sent."""
        self._flow.at = at
        self.own.copy_(own)

    def whole(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """The gradients as one vector, (d,), zero where a parameter has none."""
        found = zip(self._sizes, gradients, strict=True)
        return torch.cat([self._state.new_zeros(n) if g is None else g for n, g in found])

    def write(self, number: int) -> None:
        """Write segment `number` of all messages; the own one stays here."""
        for block in self._blocks[number]:
            self._write_block(block)
            if self._codec:
                self._codec.encode(block.out, block.own, block.wire)
            if self._sent.numel():
                self._sent[:, block.place] = to_steps(block.out)[0].mul_(STEP)
        if self._codec and number == len(self._blocks) - 1:
            self._codec.seal(self._endings)

    def add(self, number: int) -> None:
        """Sum segment `number` of what arrived and of the own message, which is used up."""
        if self._codec:
            self._add_integers(self._codec, number)
            return
        for block in self._blocks[number]:
            total, *others = block.incoming
            for left, message in zip(range(len(others) - 1, -1, -1), others, strict=True):
                total = torch.add(total, message, out=block.partial if left else block.own)
            torch.sum(block.own, 0, out=block.total)

    def check_norm(self, round: int) -> None:
        """Raise `MessageError` if the sum of masked messages is longer than each may be together.

        Single messages cannot be judged behind their masks.
        """
        bound, count = self._exchange.norm_bound, len(self._exchange.neighbours)
        if self._codec and bound is not None and self._square > (count * bound) ** 2:
            _log.warning(
                "agent %d refused the sum of %d messages in round %d: its norm is above the bound",
                *(self._exchange.agent, count, round),
            )
            raise MessageError(
                f"agent {self._exchange.agent} refused the sum of its neighbours' messages in "
                f"round {round}: its norm is above {count} times the bound that this agent set; "
                "its own state is as before the round"
            )

    @property
    def sent(self) -> Tensor:
        """The numbers of the messages sent, without masks: (neighbours, d)."""
        return self._sent if self._codec else torch.cat(self._exchange.outgoing, 1)

    @property
    def received(self) -> Tensor:
        """The numbers of the messages received, (neighbours, d); behind masks their sum, (1, d)."""
        if self._codec:
            return self._received
        return torch.stack([message.numbers() for message in self._exchange.inbox.values()])

    def is_finite(self) -> bool:
        """Whether the sums show that every number that arrived is finite; they may overflow."""
        return bool(torch.isfinite(self._totals).all())

    def apply(self) -> None:
        """Replace the state by the sum, in one operation, and let the chain's state parts follow.

        A sum begins with zero, as in `receive`: negative zeros become positive.
        """
        if self._mechanism.at("state"):
            total = self.own.add(0.0).to(self._state.device).view(1, 1, -1)
            flow = self._part_of_flow(self._state.clone(), self._state)
            settle(self._mechanism, flow, total)
            self._state.copy_(flow.x[0, 0])
        elif self.own.device == self._state.device:
            torch.add(self.own, 0.0, out=self._state)
        else:
            self._state.copy_(self.own.add_(0.0))

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

    def _write_block(self, block: _Block) -> None:
        if not self._whole:
            self._collect(block)
            self._make_step(block.step, block.place.start)
        if self._mechanism.plain:
            self._write_shares(block)
        else:
            self._write_messages(block)

    def _add_integers(self, codec: MaskedLinks, number: int) -> None:
        if number == 0:
            self._square = 0.0
        for block in self._blocks[number]:
            numbers = codec.decode(sum_(block.incoming, block.partial), block.own)
            if self._received.numel():
                self._received[0, block.place] = numbers
            torch.sum(block.own, 0, out=block.total)
            if self._exchange.norm_bound is not None:
                self._square += float(torch.linalg.vector_norm(numbers, dtype=torch.float64)) ** 2
        if number == len(self._blocks) - 1:
            ending = sum_(self._arrived_endings, torch.zeros_like(self._endings[0]))
            codec.check(ending, self._flow.at.round)

    def _write_messages(self, block: _Block) -> None:
        if self._whole:
            messages = self._messages[:, block.place]
        else:
            messages = self._make_messages(block.state, block.step, block.place.start)
        for row, at in zip(block.out, self._other_routes, strict=True):
            row.copy_(messages[at])
        block.own.copy_(messages[self._own_route])

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
        masked = self._codec is not None
        plain = self.own.new_empty(len(neighbours), longest) if masked else None
        partial = torch.empty(longest, dtype=exchange.dtype, device=exchange.device)
        step = self._state.new_empty(longest) if self.step is None else self.step
        places = [_divide(cut, longest) for cut in exchange.segments]
        self._totals = self.own.new_zeros(sum(map(len, places)))
        totals = iter(self._totals)
        self._blocks: list[list[_Block]] = []
        last = exchange.segments[-1]
        ending = slice(last.stop - last.start, None)
        self._endings = exchange.outgoing[-1][:, ending]
        self._arrived_endings = [exchange.inbox[j].payloads[-1][ending] for j in neighbours]
        for number, cut in enumerate(exchange.segments):
            blocks = []
            for place in places[number]:
                size = place.stop - place.start
                within = slice(place.start - cut.start, place.stop - cut.start)
                here = step[:size] if self.step is None else step[place]
                own = self.own[place]
                incoming = {j: exchange.inbox[j].payloads[number][within] for j in neighbours}
                if not masked:
                    incoming[exchange.agent] = own
                wire = exchange.outgoing[number][:, within]
                blocks.append(
                    _Block(
                        place=place,
                        pieces=list(_pieces(place, sizes, here)),
                        state=self._state[place],
                        step=here,
                        own=own,
                        out=wire if plain is None else plain[:, :size],
                        wire=wire,
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
