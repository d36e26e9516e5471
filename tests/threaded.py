"""Agents as threads of one process, over a transport of queues: restarts in milliseconds."""

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sottovoce.distributed.frames import Frame, Inbox
from sottovoce.distributed.transport import Transport
from sottovoce.errors import PeerLost

Sent = list[tuple[int, int, int, int, int, bytes]]
"""Channel, sender, receiver, number of the exchange, segment, and the bytes."""


class Killed(BaseException):
    """The agent's process is gone."""


class Switchboard:
    """What joins the agents of one start; `sent` outlives it where it is handed on."""

    def __init__(self, agents: int, sent: Sent | None = None) -> None:
        self.agents, self.sent = agents, [] if sent is None else sent
        self.down = threading.Event()
        self._lock = threading.Condition()
        self._documents: dict[int, dict[int, str]] = {}
        self._turns = [0] * agents
        self._queues: dict[tuple[int, int, int], queue.Queue[bytes]] = {}

    def meet(self, agent: int, document: str) -> dict[int, str]:
        with self._lock:
            self._turns[agent] += 1
            said = self._documents.setdefault(self._turns[agent], {})
            said[agent] = document
            self._lock.notify_all()
            if not self._lock.wait_for(lambda: len(said) == self.agents, 20):
                raise PeerLost("not all agents took part", None, 0)
            return dict(said)

    def line(self, channel: int, sender: int, receiver: int) -> "queue.Queue[bytes]":
        with self._lock:
            return self._queues.setdefault((channel, sender, receiver), queue.Queue())


class ThreadTransport(Transport):
    """One agent's links. when: called at every step with its name and the number of the exchange;
    it may raise `Killed`.
    """

    timeout = 20.0

    def __init__(
        self, board: Switchboard, agent: int, when: Callable[[str, int], None] | None = None
    ) -> None:
        self.agent, self.agents, self.board = agent, board.agents, board
        self._when = when or (lambda name, number: None)

    def gather(self, document: Mapping[str, Any], purpose: str) -> dict[int, dict[str, Any]]:
        said = self.board.meet(self.agent, json.dumps(document))
        return {agent: json.loads(said[agent]) for agent in sorted(said)}

    def link(self, outbox: Mapping[int, Frame], inbox: Mapping[int, Inbox], channel: int) -> None:
        self._outbox, self._inbox, self._channel = outbox, inbox, channel

    def open(self, number: int) -> None:
        self._when("open", number)

    def send(self, segment: int, number: int, receivers: Sequence[int] | None = None) -> None:
        for i in self._outbox if receivers is None else receivers:
            self._when("send", number)
            content = self._outbox[i].transfers[segment].numpy().tobytes()
            self.board.sent.append((self._channel, self.agent, i, number, segment, content))
            self.board.line(self._channel, self.agent, i).put(content)

    def wait(self, sender: int, segment: int, number: int, deadline: float) -> None:
        self._when("wait", number)
        line = self.board.line(self._channel, sender, self.agent)
        while time.monotonic() < deadline:
            try:
                content = line.get(timeout=0.01)
            except queue.Empty:
                if self.board.down.is_set():
                    break
                continue
            place = self._inbox[sender].transfers[segment].numpy()
            place[: len(content)] = memoryview(content)
            return
        raise PeerLost(f"agent {self.agent} lost agent {sender}", sender, number)

    def flush(self, number: int, deadline: float) -> None:
        self._when("flush", number)

    def close(self) -> None:
        self.gather({}, "the end")


def together(
    act: Callable[[ThreadTransport], Any],
    agents: int,
    sent: Sent | None = None,
    when: Callable[[int, str, int], None] | None = None,
) -> list[Any]:
    """What `act` returns, or the exception that ended it, for each agent.

    when: called with the agent and what its transport does; it may raise `Killed`, which ends the
    agent, and with it the others, as in a process group.
    """
    board = Switchboard(agents, sent)
    ends: list[Any] = [None] * agents

    def run(agent: int) -> None:
        transport = ThreadTransport(
            board, agent, (lambda name, number: when(agent, name, number)) if when else None
        )
        try:
            ends[agent] = act(transport)
        except (Exception, Killed) as error:
            ends[agent] = error
            board.down.set()

    threads = [threading.Thread(target=run, args=(agent,)) for agent in range(agents)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends
