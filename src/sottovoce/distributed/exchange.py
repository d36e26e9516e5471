"""One round's messages: one to and one from every neighbour, in buffers used again each round."""

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from sottovoce.distributed.frames import Frame, Inbox, message_bytes, places, segments
from sottovoce.distributed.transport import Transport


class Exchange:
    """The messages of one agent, written and checked here and carried by a transport.

    like: a vector of the size and type of a message's numbers. norm_bound: a longer message is
    refused. ending: how many integers end each message where links are masked; its numbers then are
    integers, too. segments: the parts of the vector that travel on their own, the ending not among
    them. outgoing: for each segment where to write the numbers for all neighbours, (neighbours,
    numbers). rows: the outgoing messages, (neighbours, bytes). outbox, inbox: the messages
    themselves, by neighbour.
    """

    def __init__(
        self,
        transport: Transport,
        neighbours: list[int],
        like: Tensor,
        norm_bound: float | None,
        ending: int = 0,
    ) -> None:
        self.transport, self.agent, self.neighbours = transport, transport.agent, neighbours
        self.device, self.dtype = transport.device, torch.int32 if ending else like.dtype
        whole = [slice(0, len(like))]
        self.segments = whole if transport.in_one_piece else segments(len(like), self.dtype)
        *cuts, last = self.segments
        cuts.append(slice(last.start, last.stop + ending))
        size, dtype = message_bytes(cuts, self.dtype), self.dtype
        self.bytes_per_message = size if neighbours else 0
        self.rows = torch.zeros(len(neighbours), size, dtype=torch.uint8, device=self.device)
        self.outgoing = [self.rows[:, at].view(dtype) for at in places(cuts, dtype)]
        each = zip(neighbours, self.rows, strict=True)
        self.outbox = {i: Frame(self.agent, i, cuts, dtype, row) for i, row in each}
        self.inbox = {j: Inbox(j, self.agent, cuts, dtype, self.device) for j in neighbours}
        self._is_open, self.norm_bound = False, norm_bound

    def belong_to(self, training: int, epoch: int) -> None:
        """Mark all messages with the training, and the epoch of it, that they are part of."""
        for frame in (*self.outbox.values(), *self.inbox.values()):
            frame.training, frame.epoch = training, epoch
        self._is_open = False
        self.transport.link(self.outbox, self.inbox, (training + epoch) % (1 << 31))

    def open(self, round: int) -> None:
        """Offer the buffers in which this round's messages arrive, unless they are offered."""
        if self._is_open:
            return
        for inbox in self.inbox.values():
            inbox.clear()
        self.transport.open(round)
        self._is_open = True

    def stamp(self, number: int, round: int) -> None:
        """Make segment `number`, written to `outgoing`, ready to travel."""
        for frame in self.outbox.values():
            frame.stamp(number, round)

    def send_again(self, rows: Tensor, round: int, receivers: list[int]) -> None:
        """Send messages that were kept, (neighbours, bytes), as they are."""
        self.rows.copy_(rows)
        for number in range(len(self.segments)):
            self.transport.send(number, round, receivers)

    def arrivals(self, round: int) -> Iterator[int]:
        """Give each segment, ascending, once all neighbours' are here and are what they should be.

        Whether the numbers are finite is left to `check_finite`. All was sent when it ends.
        """
        self._is_open = False
        deadline = time.monotonic() + self.transport.timeout
        for number in range(len(self.segments)):
            for j in self.neighbours:
                self.transport.wait(j, number, round, deadline)
                self.inbox[j].check(number, round)
            yield number
        self.transport.flush(round, deadline)

    def check_finite(self, round: int) -> None:
        """Raise `MessageError` naming the first sender whose numbers are not all finite."""
        for message in self.inbox.values():
            message.check_finite(round)

    def check_norms(self, round: int) -> None:
        """Raise `MessageError` naming the first sender whose message is longer than the bound.

        Of masked messages only the sum has a norm that says anything.
        """
        if self.norm_bound is not None and self.dtype.is_floating_point:
            for message in self.inbox.values():
                message.check_norm(round, self.norm_bound)
