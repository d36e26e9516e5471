"""One link: what is to be sent and received next, whatever connections come and go beneath it.

Exchanges have numbers and segments. The receiver of a message states the first segment that it
NEEDs whenever a connection is new; from there on the sender sends in order and neither repeats nor
skips anything. What it sends lies in the outgoing buffers until they are flushed, afterwards in the
journal. So a connection may break anywhere, and the process at either end may start again.
"""

import hashlib
import ssl
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from sottovoce.distributed.frames import TRAILER_BYTES, Frame, Inbox
from sottovoce.distributed.tls.certificates import Peer
from sottovoce.errors import DistributedError

Place = tuple[int, int]
"""The number of an exchange and a segment of it."""


class Heard(NamedTuple):
    """A document of a neighbour: from which life of it, its how many-eth of a purpose, its size."""

    life: str
    turn: int
    document: dict[str, Any]
    size: int = 0


@dataclass(eq=False)
class Session:
    """Two connections of a link, each used in one direction by one thread.

    An SSLSocket that one thread reads while another writes breaks now and then. life: drawn by the
    process at the other end when it started. outgoing: records that leave before any segment.
    needed: the next segment that the other end wants, and the channel; None until it says so.
    asked: the channels for which it has said so.
    busy: whether something is being written. written: bytes of messages so far.
    """

    reading: ssl.SSLSocket
    writing: ssl.SSLSocket
    life: str
    outgoing: "deque[bytes]" = field(default_factory=deque)
    needed: Place | None = None
    channel: int = 0
    asked: set[int] = field(default_factory=set)
    has_asked: bool = False
    busy: bool = False
    written: int = 0
    over: bool = False


class Link:
    """The link of an agent with one neighbour; all of it is guarded by the transport's lock.

    dials: whether this end dials. position: among the agent's links. joining: held while a session
    takes the place of another. half: the first connection of a pair, its name and its part.
    awaited: the next segment that is to arrive. ready: the exchange whose messages are being sent
    and how many of its segments may leave. heard: documents that arrived and were not yet taken, by
    purpose. answered: by purpose, for which life and turn of the other end this agent has given its
    document. trouble: why the other end cannot be reached, as far as is known.
    """

    def __init__(self, peer: Peer, dials: bool, position: int) -> None:
        self.peer, self.dials, self.position = peer, dials, position
        self.threads: list[threading.Thread] = []
        self.joining = threading.Lock()
        self.session: Session | None = None
        self.half: tuple[str, str, ssl.SSLSocket] | None = None
        self.awaited: Place | None = None
        self.ready: Place | None = None
        self.heard: dict[str, list[Heard]] = {}
        self.answered: dict[str, tuple[str, int]] = {}
        self.trouble = ""
        self.outbox: Frame | None = None
        self.inbox: Inbox | None = None
        self._digest = hashlib.sha256()

    def carry(self, outbox: Frame, inbox: Inbox) -> None:
        """Take the buffers of an execution; what was awaited and ready before is over."""
        self.outbox, self.inbox, self.awaited, self.ready = outbox, inbox, None, None
        if self.session:
            self.session.has_asked = False

    @property
    def segments(self) -> int:
        return len(self.outbox.places) if self.outbox else 0

    def after(self, place: Place) -> Place:
        """The segment that follows another."""
        number, segment = place
        return (number, segment + 1) if segment + 1 < self.segments else (number + 1, 0)

    def keep(self, purpose: str, said: Heard) -> None:
        """Hold a document until it is asked for; those of an earlier life are void."""
        held = [one for one in self.heard.get(purpose, ()) if one.life == said.life]
        self.heard[purpose] = [*(one for one in held if one.turn != said.turn), said]

    def take(self, purpose: str) -> dict[str, Any]:
        """The first document that is held for a purpose."""
        life, turn, document, _ = self.heard[purpose].pop(0)
        if not self.heard[purpose]:
            del self.heard[purpose]
        self.answered[purpose] = (life, turn)
        return document

    def has_arrived(self, place: Place) -> bool:
        """Whether a segment of the neighbour's message is here."""
        return self.awaited is not None and self.awaited > place

    def has_left(self, number: int) -> bool:
        """Whether the neighbour needs nothing of an exchange any more."""
        needed = self.session.needed if self.session else None
        return needed is not None and needed[0] > number

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written."""
        return self.session is None or not (self.session.outgoing or self.session.busy)

    def outgoing(self, segment: int, row: Tensor | None = None) -> memoryview:
        """A segment of the outgoing message, or of one that was kept: (bytes,)."""
        assert self.outbox is not None
        if row is None:
            return memoryview(self.outbox.transfers[segment].numpy())  # type: ignore[arg-type]
        start, end = self.outbox.starts[segment], self.outbox.places[segment].stop
        return memoryview(row.numpy())[start : end + TRAILER_BYTES]  # type: ignore[arg-type]

    def arriving(self, segment: int) -> memoryview:
        """Where a segment arrives; exactly as long as it must be."""
        assert self.inbox is not None
        start, end = self.inbox.starts[segment], self.inbox.places[segment].stop
        return memoryview(self.inbox.bytes.numpy())[start : end + TRAILER_BYTES]  # type: ignore[arg-type]

    def digest_so_far(self, place: Place, content: memoryview) -> str | None:
        """Take in a segment that arrived; after the last one, the digest of the message."""
        if place[1] == 0:
            self._digest = hashlib.sha256()
        self._digest.update(content)
        return self._digest.hexdigest() if self.after(place)[0] > place[0] else None

    def digest_of(self, row: Tensor | None) -> str:
        """The digest of an outgoing message, or of one that was kept."""
        found = hashlib.sha256()
        for segment in range(self.segments):
            found.update(self.outgoing(segment, row))
        return found.hexdigest()


def who_listens(one: Peer, other: Peer) -> Peer | None:
    """The end of a link that listens: the only one that can be dialled, or the lower number."""
    able = [peer for peer in (one, other) if peer.address is not None]
    return min(able, key=lambda peer: peer.agent) if able else None


def dials(own: Peer, other: Peer) -> bool:
    """Whether this end of a link dials the other one; refused where neither can be dialled."""
    listening = who_listens(own, other)
    if listening is None:
        raise DistributedError(
            f"neither {own.name} nor {other.name} can be dialled; one end of every link must listen"
        )
    return listening is other
