"""One round's messages: one to and one from every neighbour, in buffers used again each round."""

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sottovoce.distributed.frames import Frame, Inbox, message_bytes, places, segments
from sottovoce.errors import PeerLost

_LEAST_WAIT = timedelta(milliseconds=1)


class Exchange:
    """The links of one agent; after `PeerLost` the process group is of no further use.

    With Gloo every segment is posted on its own, so that a failure names its neighbour and the
    first numbers travel while the next are computed. NCCL needs all in one batch.

    like: a vector of the size and type of a message's numbers. device: where messages lie.
    segments: the parts of the vector that travel on their own. outgoing: for each segment where to
    write the numbers for all neighbours, (neighbours, numbers). outbox, inbox: the messages
    themselves, by neighbour.
    """

    def __init__(
        self, agent: int, neighbours: list[int], like: Tensor, device: torch.device, timeout: float
    ) -> None:
        self.agent, self.neighbours, self.timeout = agent, neighbours, timeout
        self.device = device
        self._one_batch = device.type != "cpu"
        cuts = [slice(0, len(like))] if self._one_batch else segments(len(like), like.dtype)
        size, self.segments = message_bytes(cuts, like.dtype), cuts
        self.bytes_per_message = size if neighbours else 0
        rows = torch.zeros(len(neighbours), size, dtype=torch.uint8, device=device)
        self.outgoing = [rows[:, place].view(like.dtype) for place in places(cuts, like.dtype)]
        each = zip(neighbours, rows, strict=True)
        self.outbox = {i: Frame(agent, i, cuts, like.dtype, row) for i, row in each}
        self.inbox = {j: Inbox(j, agent, cuts, like.dtype, device) for j in neighbours}
        self._sends = _operations(dist.isend, self.outbox)
        self._receives = _operations(dist.irecv, self.inbox)
        self._is_open = False
        self._arriving: dict[int, list[dist.Work]] = {}
        self._leaving: dict[int, list[dist.Work]] = {}

    def open(self, round: int) -> None:
        """Offer the buffers in which this round's messages arrive, unless they are offered."""
        if self._is_open:
            return
        self._arriving = {j: [] for j in self.neighbours}
        self._leaving = {i: [] for i in self.neighbours}
        for j in self.neighbours:
            self.inbox[j].clear()
            if not self._one_batch:
                self._arriving[j] = self._post(j, self._receives[j], round)
        self._is_open = True

    def send(self, number: int, round: int) -> None:
        """Send segment `number`, written to `outgoing`, to all; leave it alone in this round."""
        for i in self.neighbours:
            self.outbox[i].stamp(number, round)
            if not self._one_batch:
                self._leaving[i] += self._post(i, [self._sends[i][number]], round)
        if self._one_batch and self.neighbours:
            batch = [one for some in (self._receives, self._sends) for [one] in some.values()]
            self._arriving[self.neighbours[0]] = self._post(None, batch, round)

    def arrivals(self, round: int) -> Iterator[int]:
        """Give each segment, ascending, once all neighbours' are here and are what they should be.

        Whether the numbers are finite is left to `check_finite`. All was sent when it ends.
        """
        self._is_open = False
        deadline = time.monotonic() + self.timeout
        if self._one_batch:
            for work in self._arriving[self.neighbours[0]] if self.neighbours else ():
                self._wait(work, None, deadline, round)
        for number in range(len(self.segments)):
            for j in self.neighbours:
                if not self._one_batch:
                    self._wait(self._arriving[j][number], j, deadline, round)
                self.inbox[j].check(number, round)
            yield number
        for i, works in self._leaving.items():
            for work in works:
                self._wait(work, i, deadline, round)

    def check_finite(self, round: int) -> None:
        """Raise `MessageError` naming the first sender whose numbers are not all finite."""
        for message in self.inbox.values():
            message.check_finite(round)

    def _post(
        self, neighbour: int | None, operations: list[dist.P2POp], round: int
    ) -> list[dist.Work]:
        try:
            return dist.batch_isend_irecv(operations)
        except RuntimeError as error:
            raise self._lost(neighbour, round, str(error)) from None

    def _wait(self, work: dist.Work, neighbour: int | None, deadline: float, round: int) -> None:
        left = timedelta(seconds=deadline - time.monotonic())
        try:
            work.wait(max(left, _LEAST_WAIT))
        except RuntimeError as error:
            raise self._lost(neighbour, round, str(error)) from None

    def _lost(self, neighbour: int | None, round: int, reason: str) -> PeerLost:
        silent = "imed out" in reason or "timeout" in reason
        how = f"was silent for {self.timeout:g} s" if silent else "closed the connection"
        who = "one of the agents " + ", ".join(map(str, self.neighbours))
        return PeerLost(
            f"agent {self.agent} lost {who if neighbour is None else f'agent {neighbour}'} in "
            f"round {round}: it {how}. The state is as before the round; the process group cannot "
            "be used again, so end this process (torchrun --max-restarts starts all agents again)",
            neighbour,
            round,
        )


def _operations(
    kind: Callable[..., Any], messages: Mapping[int, Frame]
) -> dict[int, list[dist.P2POp]]:
    """What posts each segment of each neighbour's message."""
    return {
        i: [dist.P2POp(kind, part, i) for part in message.transfers]
        for i, message in messages.items()
    }
