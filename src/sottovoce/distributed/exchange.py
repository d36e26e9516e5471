"""One round's messages: one to and one from every neighbour, in buffers used again each round."""

import time
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from sottovoce.distributed.frames import Frame, Inbox
from sottovoce.errors import PeerLost

_LEAST_WAIT = timedelta(milliseconds=1)


class Exchange:
    """The links of one agent; after `PeerLost` the process group is of no further use.

    With Gloo every message is posted on its own, so that a failure names its neighbour and the
    first message travels while the second is computed. NCCL needs them in one batch.
    """

    def __init__(
        self,
        agent: int,
        neighbours: list[int],
        dimension: int,
        dtype: torch.dtype,
        device: torch.device,
        timeout: float,
    ) -> None:
        self.agent, self.neighbours, self.timeout = agent, neighbours, timeout
        self._one_batch = device.type != "cpu"
        self._out = {i: Frame(agent, i, dimension, dtype, device) for i in neighbours}
        self._in = {
            j: Inbox(j, agent, dimension, dtype, device, spacious=not self._one_batch)
            for j in neighbours
        }
        self._sends = {i: dist.P2POp(dist.isend, self._out[i].bytes, i) for i in neighbours}
        self._receives = {j: dist.P2POp(dist.irecv, self._in[j].bytes, j) for j in neighbours}
        self._works: dict[int, list[dist.Work]] = {}
        self._posted: list[int] = []

    @property
    def bytes_per_message(self) -> int:
        """How many bytes each neighbour is sent in a round."""
        return next((frame.size for frame in self._out.values()), 0)

    def outgoing(self, neighbour: int) -> Tensor:
        """Where to write the numbers for `neighbour`: (d,)."""
        return self._out[neighbour].payload

    def incoming(self, neighbour: int) -> Tensor:
        """The numbers that `neighbour` sent, valid once `arrivals` has given its name: (d,)."""
        return self._in[neighbour].payload

    def open(self, round: int) -> None:
        """Offer the buffers in which this round's messages arrive."""
        self._works, self._posted = {j: [] for j in self.neighbours}, []
        for j in self.neighbours:
            self._in[j].clear()
            if not self._one_batch:
                self._post(j, [self._receives[j]], round)

    def send(self, neighbour: int, round: int) -> None:
        """Send what was written to `outgoing(neighbour)`; do not touch it before `close`."""
        self._out[neighbour].stamp(round)
        if not self._one_batch:
            self._post(neighbour, [self._sends[neighbour]], round)
            return
        self._posted.append(neighbour)
        if len(self._posted) == len(self.neighbours):
            operations = [*self._receives.values(), *self._sends.values()]
            self._post(None, operations, round)

    def arrivals(self, round: int) -> Iterator[int]:
        """Give each neighbour, ascending, once its message is here and has been checked."""
        deadline = time.monotonic() + self.timeout
        if self._one_batch:
            self._wait(None, deadline, round)
        for j in self.neighbours:
            if not self._one_batch:
                self._wait(j, deadline, round, of=slice(0, 1))
            self._in[j].check(round)
            yield j
        if not self._one_batch:
            for i in self.neighbours:
                self._wait(i, deadline, round, of=slice(1, None))

    def _post(self, neighbour: int | None, operations: list[dist.P2POp], round: int) -> None:
        try:
            works = dist.batch_isend_irecv(operations)
        except RuntimeError as error:
            raise self._lost(neighbour, round, str(error)) from None
        for j in self.neighbours if neighbour is None else [neighbour]:
            self._works[j].extend(works)

    def _wait(
        self, neighbour: int | None, deadline: float, round: int, of: slice = slice(None)
    ) -> None:
        chosen = self.neighbours[0] if neighbour is None else neighbour
        for work in self._works[chosen][of]:
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
            "be used again, so end this process (torchrun --max-restarts starts all anew)",
            neighbour,
            round,
        )
