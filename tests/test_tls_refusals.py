"""What an agent refuses at its door and on its links, while its training goes on undisturbed."""

import contextlib
import logging
import random
import socket
import ssl
import threading
import time
import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor, nn

import sottovoce.distributed as sd
from sottovoce import PDSGD, path, ring
from sottovoce.distributed.tls import TlsTransport, Training, doors
from sottovoce.distributed.tls.certificates import context
from sottovoce.distributed.tls.doors import Greeting, dial
from sottovoce.distributed.tls.links import Link, Session
from sottovoce.distributed.tls.records import DOCUMENT, NEED, SEGMENT, Header
from sottovoce.errors import DistributedError
from sottovoce.randomness import InsecureSeedWarning
from tls_agents import TRAINING, Organisations, Tap

# `ssl.wrap_socket` leaves a socket to the collector where a connection is reset while it begins;
# that no file stays open is a matter of `make soak`.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
D, ROUNDS = 64, 12


class Run:
    """Three agents of a ring that train in threads; noted: their events.

    They do the first half of their rounds, then wait for the block of `with` to end. sent: the
    messages of agent 0.
    """

    def __init__(self, organisations: Organisations) -> None:
        self.organisations = organisations
        self.noted: list[tuple[str, dict[str, Any]]] = []
        self.ends: dict[int, Any] = {}
        self.sent: list[bytes] = []
        self.begun, self.attacked = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._train)

    def __enter__(self) -> "Run":
        self._thread.start()
        assert self.begun.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self.attacked.set()
        self._thread.join()

    @property
    def refusals(self) -> str:
        return "; ".join(about["reason"] for event, about in self.noted if event == "refused")

    def final(self) -> Tensor:
        self._thread.join()
        return torch.stack(list(self.ends.values()))

    def _train(self) -> None:
        def note(event: str, **about: Any) -> None:
            self.noted.append((event, about))

        self.ends = self.organisations.together(self._act, log=note)

    def _act(self, transport: TlsTransport) -> Tensor:
        start = torch.linspace(transport.agent, transport.agent + 1, D, dtype=torch.float64)
        point = nn.Parameter(start)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InsecureSeedWarning)
            optimizer = sd.DecentralizedSGD(
                [point], PDSGD(), ring(3), "0.1", transport=transport, insecure_seed=3
            )
        for round in range(ROUNDS):
            if round == ROUNDS // 2:
                self.begun.set()
                self.attacked.wait(30)
            point.grad = point.detach() - transport.agent
            optimizer.step()
            if transport.agent == 0:
                self.sent += [
                    one.outbox.bytes.numpy().tobytes() for one in transport.links.values()
                ]
        transport.close()
        return point.detach().clone()


@pytest.fixture(scope="module")
def calm() -> Tensor:
    with Run(Organisations(ring(3))) as run:
        pass
    return run.final()


def ended(connection: socket.socket) -> bool:
    """Whether the other end closes the connection, soon, and without a word of the training."""
    connection.settimeout(15)
    try:
        return connection.recv(1) == b""
    except OSError:
        return True


def plain(to: Organisations) -> socket.socket:
    return socket.create_connection(("127.0.0.1", to.ports[0]), timeout=15)


def attempt(to: Organisations, tls: ssl.SSLContext) -> None:
    """Connect and wait to be refused: with TLS 1.3 the one who dials learns it as it reads."""
    try:
        with plain(to) as connection, tls.wrap_socket(connection) as wrapped:
            wrapped.write(b"hello")
            said = wrapped.read(1)
    except (ssl.SSLError, ConnectionError):
        said = b""
    assert not said


def no_certificate(to: Organisations) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    attempt(to, tls)


def stranger(to: Organisations) -> None:
    attempt(to, context(Ed25519PrivateKey.generate(), "stranger", to.peers[:1], server=False))


def older_tls(to: Organisations) -> None:
    tls = context(to.keys[1], "organisation-1", to.peers[:1], server=False)
    tls.minimum_version = tls.maximum_version = ssl.TLSVersion.TLSv1_2
    attempt(to, tls)


def plaintext(to: Organisations) -> None:
    with plain(to) as connection:
        connection.sendall(b"sottovoc" + bytes(4000))
        assert ended(connection)


def greeted(to: Organisations, part_of: Training, agent: int = 1) -> None:
    """Connect with the right key and a wrong greeting."""
    tls = context(to.keys[1], "organisation-1", to.peers[:1], server=False)
    with pytest.raises(DistributedError, match="refused the connection"):
        dial(Link(to.peers[0], True, 0), tls, Greeting(agent, part_of))


def earlier_epoch(to: Organisations) -> None:
    greeted(to, Training(TRAINING.training, TRAINING.epoch + 5))


def other_training(to: Organisations) -> None:
    greeted(to, Training(TRAINING.training + 1))


def another_s_number(to: Organisations) -> None:
    greeted(to, TRAINING, agent=2)


def reflected(to: Organisations) -> None:
    """Agent 0's own certificate comes back to it: the connection of a mirror."""
    with plain(to) as connection:
        tls = context(to.keys[0], "organisation-0", to.peers[1:], server=False)
        with pytest.raises(ssl.SSLError):
            tls.wrap_socket(connection)


def fuzz_at_the_door(to: Organisations) -> None:
    rng = random.Random(0)
    for _ in range(40):
        with plain(to) as connection:
            connection.settimeout(0.05)
            record = bytes([22, 3, rng.choice([1, 3])]) + rng.randbytes(rng.randrange(200))
            connection.sendall(rng.choice([rng.randbytes(rng.randrange(1, 300)), record]))
            with contextlib.suppress(OSError):
                connection.recv(1)


ATTACKS: dict[str, tuple[Callable[[Organisations], None], str]] = {
    "no certificate": (no_certificate, "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
    "a stranger's certificate": (stranger, "CERTIFICATE_VERIFY_FAILED"),
    "an older TLS": (older_tls, "UNSUPPORTED_PROTOCOL"),
    "no TLS": (plaintext, "no proof of a neighbour's key"),
    "another epoch": (earlier_epoch, "its epoch is '5' instead of 0"),
    "another training": (other_training, "its training is '12648431' instead of '12648430'"),
    "another agent's number": (another_s_number, "its agent is '2' instead of 1"),
    "a reflection": (reflected, "no proof of a neighbour's key"),
    # Some of it is refused as no TLS, and some is cut off first.
    "noise": (fuzz_at_the_door, ""),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_who_is_refused_at_the_door_leaves_the_training_as_it_is(name: str, calm: Tensor) -> None:
    attack, reason = ATTACKS[name]
    organisations = Organisations(ring(3))
    with Run(organisations) as run:
        attack(organisations)
    assert torch.equal(run.final(), calm)
    assert run.refusals
    assert reason in run.refusals


def test_half_open_connections_by_the_hundred_keep_nobody_out(calm: Tensor) -> None:
    """They are there before the neighbours are, and more come all the time."""
    organisations = Organisations(ring(3))
    held: list[socket.socket] = []
    run, over = Run(organisations), threading.Event()

    def hold() -> None:
        while not over.is_set() and len(held) < 300:
            try:
                held.append(plain(organisations))
            except OSError:
                time.sleep(0.01)

    holding = threading.Thread(target=hold)
    holding.start()
    try:
        with run:
            pass
        assert torch.equal(run.final(), calm)
        assert len(held) > 2 * doors.MOST_PENDING
        assert "was the oldest of too many" in run.refusals
    finally:
        over.set()
        holding.join()
        for connection in held:
            connection.close()


def test_a_handshake_that_trickles_is_ended_as_a_whole(
    calm: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then does not put the end off."""
    organisations, sent = Organisations(ring(3)), 0
    with Run(organisations) as run:
        monkeypatch.setattr(doors, "HANDSHAKE", 0.5)
        with plain(organisations) as connection, contextlib.suppress(OSError):
            connection.sendall(bytes([22, 3, 1, 2, 0]))
            while sent < 100:
                connection.sendall(b"\0")
                sent += 1
                time.sleep(0.1)
    assert 0 < sent < 100
    assert torch.equal(run.final(), calm)
    assert "no handshake within 0.5 s" in run.refusals


def test_a_replayed_connection_is_refused_and_a_capture_holds_no_number(calm: Tensor) -> None:
    organisations = Organisations(ring(3))
    tap = Tap(organisations.ports[0])
    # The others know agent 0 by the address of the tap alone.
    tapped = replace(organisations.peers[0], address=("127.0.0.1", tap.port))
    plainly = organisations.transport

    def transport(agent: int, **options: Any) -> TlsTransport:
        peers = [tapped, *organisations.peers[1:]] if agent else None
        return plainly(agent, peers=peers, **options)

    organisations.transport = transport  # type: ignore[method-assign]
    with Run(organisations) as run:
        captured = bytes(tap.heard[0][0])
        with plain(organisations) as connection:
            connection.sendall(captured)
            ended(connection)
    assert torch.equal(run.final(), calm)
    assert "no proof of a neighbour's key" in run.refusals
    tap.close()
    heard = b"".join(bytes(side) for connection in tap.heard for side in connection)
    assert len(heard) > 2 * ROUNDS * 2 * D * 8
    # The messages of agent 0 as they were handed to the link, and the same bytes on the wire.
    sent = b"".join(run.sent)
    assert len(run.sent) == 2 * ROUNDS
    words = {sent[at : at + 8] for at in range(0, len(sent), 8)}
    numbers = [word for word in words if len(word.strip(b"\0")) > 4]
    assert len(numbers) > ROUNDS * D
    assert b"sottovoc" in numbers
    assert not any(word in heard for word in numbers)


def test_nothing_is_sent_without_a_key_or_with_another_s() -> None:
    organisations = Organisations(path(2))
    organisations.keys.reverse()
    with pytest.raises(DistributedError, match="the private key is not that of agent 0"):
        organisations.transport(0)
    organisations.keys[0] = None  # type: ignore[call-overload]
    with pytest.raises(AttributeError):
        organisations.transport(0)
    both = [replace(one, address=None) for one in organisations.peers]
    organisations.keys[:] = [Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()]
    with pytest.raises(DistributedError, match="the private key is not"):
        organisations.transport(0, peers=both)


class Wire(socket.socket):
    """Bytes that arrive, in place of a connection."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self._content, self._at = content, 0

    def read(self, count: int, room: memoryview) -> int:
        part = self._content[self._at : self._at + min(count, 1 << 14)]
        self._at += len(part)
        room[: len(part)] = part
        return len(part)


def records(rng: random.Random) -> bytes:
    """Some records that a neighbour with the right key might send, most of them wrong."""
    kind = rng.choice([0, 1, DOCUMENT, NEED, SEGMENT, 9, 255])
    body = rng.choice([b"", b"{}", b"[1", b'{"purpose": 3}', rng.randbytes(rng.randrange(600))])
    if kind == DOCUMENT and rng.random() < 0.3:
        body = b'{"purpose": "a", "turn": %d, "document": {}}' % rng.randrange(3)
    length = rng.choice([len(body), len(body) + 1, rng.randrange(1 << 40), (1 << 64) - 1])
    number, segment = rng.choice([0, 1, 2, 1 << 63]), rng.choice([0, 1, 1 << 31])
    header = Header(kind, segment, rng.choice([0, 7]), number, length).packed()
    return rng.choice(
        [header + body, rng.randbytes(rng.randrange(80)), header[: rng.randrange(28)]]
    )


def test_ten_thousand_fuzzed_records_are_refused_in_little_memory() -> None:
    """By the code that reads a link: every session ends, no message and no thread is left."""
    organisations = Organisations(path(2))
    transport = organisations.transport(0)
    transport.opened, transport.channel = 1, 7
    [link] = transport.links.values()
    from sottovoce.distributed.frames import Frame, Inbox

    cuts, room = [slice(0, D)], torch.zeros(64 + 8 * D + 8, dtype=torch.uint8)
    inbox = Inbox(1, 0, cuts, torch.float64, torch.device("cpu"))
    link.carry(Frame(0, 1, cuts, torch.float64, room), inbox)
    link.awaited = (1, 0)
    rng, refused = random.Random(1), 0
    logging.disable()
    tracemalloc.start()
    for _ in range(10_000):
        wire: Any = Wire(records(rng) + records(rng))
        session = link.session = Session(wire, wire, "life")
        transport._traffic._guarded(transport._traffic._read, [], link, session)
        refused += session.over and link.session is None
        link.heard.clear()
        assert link.awaited == (1, 0)
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()
    logging.disable(logging.NOTSET)
    assert refused == 10_000
    assert not inbox.payloads[0].any()
    transport.end()
