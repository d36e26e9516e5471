"""The agents of one process group of torch.distributed: Gloo on CPUs, NCCL between GPUs.

Documents travel through the group's key-value store, messages over the links between neighbours
and no others. torch.distributed neither encrypts nor authenticates.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _get_default_store

from sottovoce.distributed.frames import Frame, Inbox
from sottovoce.distributed.transport import Transport
from sottovoce.errors import DistributedError, PeerLost

_LEAST_WAIT = timedelta(milliseconds=1)
_STORE = "sottovoce/gather"


class GlooTransport(Transport):
    """The links of this process in the default process group; rank = agent.

    With Gloo every segment is posted on its own, so that a failure names its neighbour and the
    first numbers travel while the next are computed. NCCL needs all in one batch. After `PeerLost`
    the process group is of no further use.

    device: where the model lies.
    """

    def __init__(self, device: torch.device, timeout: float = 60.0) -> None:
        if not dist.is_initialized():
            raise DistributedError(
                "there is no process group; call sottovoce.distributed.connect() or "
                "torch.distributed.init_process_group() first and start with torchrun"
            )
        self.agent, self.agents, self.timeout = dist.get_rank(), dist.get_world_size(), timeout
        own = device.type == "cuda" and "nccl" in str(dist.get_backend_config())
        self.device = device if own else torch.device("cpu")
        self.in_one_piece = own
        self._neighbours: list[int] = []
        # By neighbour; where all travel in one batch, the batch is at -1.
        self._arriving: dict[int, list[dist.Work]] = {}
        self._awaited = 0
        self._leaving: list[tuple[int, dist.Work]] = []

    def gather(self, document: Mapping[str, Any], purpose: str) -> dict[int, dict[str, Any]]:
        store = _get_default_store()
        # The store itself counts the calls, so that they match wherever a process began to count.
        turn = store.add(f"{_STORE}/{self.agent}", 1)
        names = [f"{_STORE}/{turn}/{agent}" for agent in range(self.agents)]
        store.set(names[self.agent], json.dumps(document))
        try:
            store.wait(names, timedelta(seconds=self.patience))
            return {agent: _read(store.get(name)) for agent, name in enumerate(names)}
        except RuntimeError:
            raise PeerLost(
                f"{purpose} timed out after {self.patience:g} s: not all agents took part", None, 0
            ) from None

    def link(self, outbox: Mapping[int, Frame], inbox: Mapping[int, Inbox], channel: int) -> None:
        self._neighbours = list(outbox)
        self._sends = _operations(dist.isend, outbox, channel)
        self._receives = _operations(dist.irecv, inbox, channel)

    def open(self, number: int) -> None:
        self._arriving, self._leaving, self._awaited = {}, [], number
        if not self.in_one_piece:
            for j in self._neighbours:
                self._arriving[j] = self._post(j, self._receives[j], number)

    def send(self, segment: int, number: int, receivers: Sequence[int] | None = None) -> None:
        chosen = self._neighbours if receivers is None else receivers
        if self.in_one_piece:
            batch = [self._sends[i][0] for i in chosen]
            if number == self._awaited:
                batch = [*(self._receives[j][0] for j in self._neighbours), *batch]
            if batch:
                self._arriving[-1] = self._post(None, batch, number)
            return
        for i in chosen:
            posted = self._post(i, [self._sends[i][segment]], number)
            self._leaving += [(i, work) for work in posted]

    def wait(self, sender: int, segment: int, number: int, deadline: float) -> None:
        if not self.in_one_piece:
            self._finish(self._arriving[sender][segment], sender, number, deadline)
        else:
            for work in self._arriving.pop(-1, ()):
                self._finish(work, None, number, deadline)

    def flush(self, number: int, deadline: float) -> None:
        for i, work in self._leaving:
            self._finish(work, i, number, deadline)
        self._leaving = []
        if number != self._awaited:
            for work in self._arriving.pop(-1, ()):
                self._finish(work, None, number, deadline)

    def sum_(self, tensor: Tensor, purpose: str) -> None:
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        try:
            work.wait(timedelta(seconds=self.timeout))
        except RuntimeError:
            raise PeerLost(
                f"{purpose} timed out after {self.timeout:g} s: not all agents took part", None, 0
            ) from None

    def close(self) -> None:
        """Wait for all agents; the first, whose process may hold the store, ends last."""
        self.gather({}, "the end of the training")
        store = _get_default_store()
        store.set(f"{_STORE}/end/{self.agent}", "")
        if self.agent == 0:
            names = [f"{_STORE}/end/{agent}" for agent in range(self.agents)]
            store.wait(names, timedelta(seconds=self.patience))

    def _post(
        self, neighbour: int | None, operations: list[dist.P2POp], number: int
    ) -> list[dist.Work]:
        try:
            return dist.batch_isend_irecv(operations)
        except RuntimeError as error:
            raise self._lost(neighbour, number, str(error)) from None

    def _finish(self, work: dist.Work, neighbour: int | None, number: int, deadline: float) -> None:
        left = timedelta(seconds=deadline - time.monotonic())
        try:
            work.wait(max(left, _LEAST_WAIT))
        except RuntimeError as error:
            raise self._lost(neighbour, number, str(error)) from None

    def _lost(self, neighbour: int | None, number: int, reason: str) -> PeerLost:
        silent = "imed out" in reason or "timeout" in reason
        how = f"was silent for {self.timeout:g} s" if silent else "closed the connection"
        who = "one of the agents " + ", ".join(map(str, self._neighbours))
        return PeerLost(
            f"agent {self.agent} lost {who if neighbour is None else f'agent {neighbour}'} in "
            f"round {number}: it {how}. The state is as before the round; the process group cannot "
            "be used again, so end this process (torchrun --max-restarts starts all agents again)",
            neighbour,
            number,
        )


def _operations(
    kind: Callable[..., Any], messages: Mapping[int, Frame], channel: int
) -> dict[int, list[dist.P2POp]]:
    """What posts each segment of each neighbour's message."""
    return {
        i: [dist.P2POp(kind, part, i, tag=channel) for part in message.transfers]
        for i, message in messages.items()
    }


def _read(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
