"""Agents as threads of one process that talk over TLS on loopback."""

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sottovoce import Graph
from sottovoce.distributed.tls import Peer, Settings, TlsTransport, Training

TRAINING = Training(0xC0FFEE, 0)


def free_ports(count: int) -> list[int]:
    """Ports that nothing uses, below those that outgoing connections are given."""
    found: list[int] = []
    while len(found) < count:
        port = secrets.choice(range(10_000, 30_000))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found += [port] if port not in found else []
    return found


class Organisations:
    """Keys and addresses of some agents. silent: those that cannot be dialled."""

    def __init__(self, graph: Graph, silent: Sequence[int] = ()) -> None:
        self.graph = graph
        self.keys = [Ed25519PrivateKey.generate() for _ in range(graph.agents)]
        self.ports = free_ports(graph.agents)
        self.peers = [
            Peer(
                agent,
                f"organisation-{agent}",
                key.public_key().public_bytes_raw(),
                None if agent in silent else ("127.0.0.1", port),
            )
            for agent, (key, port) in enumerate(zip(self.keys, self.ports, strict=True))
        ]

    def transport(
        self,
        agent: int,
        part_of: Training = TRAINING,
        log: Callable[..., None] | None = None,
        patience: float = 20.0,
        peers: Sequence[Peer] | None = None,
    ) -> TlsTransport:
        """The links of an agent; peers: what it believes the others to be."""
        return TlsTransport(
            agent,
            peers or self.peers,
            self.graph.neighbours(agent),
            self.keys[agent],
            part_of,
            settings=Settings(self.peers[agent].address, patience, log),
        )

    def together(
        self,
        act: Callable[[TlsTransport], Any],
        agents: Sequence[int] | None = None,
        **options: Any,
    ) -> dict[int, Any]:
        """What `act` returns, or the exception that ended it, by agent."""
        ends: dict[int, Any] = {}

        def run(agent: int) -> None:
            transport = self.transport(agent, **options)
            try:
                ends[agent] = act(transport)
            except Exception as error:
                ends[agent] = error
            finally:
                transport.end()

        chosen = range(self.graph.agents) if agents is None else agents
        threads = [threading.Thread(target=run, args=(agent,)) for agent in chosen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return dict(sorted(ends.items()))


class Tap:
    """A listening port whose connections go on to another one.

    to: the port. heard: for each connection what the one who dialled sent, and what came back.
    """

    def __init__(self, to: int) -> None:
        self._to = to
        self.heard: list[tuple[bytearray, bytearray]] = []
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        self._door.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._door.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self.heard.append((bytearray(), bytearray()))
                for heard, *ends in zip(self.heard[-1], (near, far), (far, near), strict=True):
                    threading.Thread(target=self._pass, args=(*ends, heard), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, heard: bytearray) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 16):
                heard += content
                target.sendall(content)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
        source.close()
