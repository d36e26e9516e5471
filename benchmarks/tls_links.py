"""Agents over TLS for `benchmarks/exchange.py`: a transport, and the bare exchange beside it."""

import os
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor

import torch.distributed as dist
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sottovoce.distributed.tls import Peer, Settings, TlsTransport, Training
from sottovoce.distributed.tls.certificates import context
from sottovoce.distributed.tls.records import read_into, write_bytes
from sottovoce.graphs import Graph


class Organisations:
    """Keys and addresses of all agents, told over the process group, which the benchmark has."""

    def __init__(self, graph: Graph) -> None:
        self.agent, self.graph = dist.get_rank(), graph
        self.key, self._trainings = Ed25519PrivateKey.generate(), 0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((os.environ["MASTER_ADDR"], 1))
            host = probe.getsockname()[0]
        own = (self.key.public_key().public_bytes_raw().hex(), host)
        everybody: list[tuple[str, str]] = [own] * graph.agents
        dist.all_gather_object(everybody, own)
        self._everybody = everybody

    def peers(self, first_port: int) -> list[Peer]:
        return [
            Peer(agent, f"agent-{agent}", bytes.fromhex(key), (host, first_port + agent))
            for agent, (key, host) in enumerate(self._everybody)
        ]

    def transport(self) -> TlsTransport:
        self._trainings += 1
        peers = self.peers(21_000)
        return TlsTransport(
            self.agent,
            peers,
            self.graph.neighbours(self.agent),
            self.key,
            Training(self._trainings),
            settings=Settings(peers[self.agent].address, patience=60),
        )


class BareTls:
    """Two one-way TLS connections a link, a thread for each, in buffers that are used again."""

    def __init__(self, organisations: Organisations, size: int) -> None:
        agent, key = organisations.agent, organisations.key
        peers = organisations.peers(22_000)
        neighbours = organisations.graph.neighbours(agent)
        address = peers[agent].address
        assert address is not None
        self._door = socket.create_server(address)
        dist.barrier()
        self._reading: list[ssl.SSLSocket] = []
        self._writing: list[ssl.SSLSocket] = []
        for j in neighbours:
            if j < agent:
                tls = context(key, "bare", [peers[j]], server=False)
                for ends in (self._writing, self._reading):
                    goal = peers[j].address
                    assert goal is not None
                    ends.append(tls.wrap_socket(_quick(socket.create_connection(goal))))
                    ends[-1].write(b"w" if ends is self._writing else b"r")
        higher = [peers[j] for j in neighbours if j > agent]
        for _ in range(2 * len(higher)):
            tls = context(key, "bare", higher, server=True)
            one = tls.wrap_socket(_quick(self._door.accept()[0]), server_side=True)
            (self._reading if one.read(1) == b"w" else self._writing).append(one)
        self._rooms = [memoryview(bytearray(size)) for _ in self._reading]
        self._content = memoryview(bytes(size))
        self._pool = ThreadPoolExecutor(2 * len(neighbours))

    def step(self) -> None:
        done = [self._pool.submit(write_bytes, one, self._content) for one in self._writing]
        pairs = zip(self._reading, self._rooms, strict=True)
        for one in [*done, *(self._pool.submit(read_into, *pair) for pair in pairs)]:
            one.result()

    def close(self) -> None:
        for one in (*self._reading, *self._writing, self._door):
            one.close()
        self._pool.shutdown()


def _quick(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
