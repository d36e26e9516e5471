"""Messages and documents over TLS 1.3 between neighbours that know each other's keys.

Every agent listens at one port at most, and each link has two connections that the same end dials.
No connection is made to an agent that is not a neighbour, so `gather` gives the documents of
neighbours alone. A neighbour that falls is waited for: it starts again from its journal, dials or
is dialled, asks for the documents of the start, which this transport answers on behalf of its
optimizer, and for the messages that it lacks. This process goes on as if nothing had happened.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sottovoce.distributed.frames import Frame, Inbox
from sottovoce.distributed.mask_keys import Session as Training
from sottovoce.distributed.tls.certificates import Peer, context, require_peers
from sottovoce.distributed.tls.doors import Door, Greeting, Note, dial, shut
from sottovoce.distributed.tls.links import Heard, Link, Session, dials
from sottovoce.distributed.tls.pinned import PinnedKeys
from sottovoce.distributed.tls.records import (
    DOCUMENT,
    MOST_DOCUMENT,
    NEED,
    Header,
    Refused,
    json_record,
)
from sottovoce.distributed.tls.traffic import Traffic
from sottovoce.distributed.transport import Identities, Transport
from sottovoce.errors import DistributedError, PeerLost

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_log = logging.getLogger("sottovoce.distributed.tls")
_END = "the end of the training"
_LEAVING = 5.0
"""Seconds in which a document that was given must have left, or its receiver is away."""
_CLOSING = 1.0
"""Seconds in which the threads of a connection that was ended come to their end."""
_MOST_HEARD = 64
"""Documents of a neighbour that may wait to be asked for."""
_MOST_HEARD_BYTES = 4 * MOST_DOCUMENT
"""How long these may be together: what was read takes some twenty times as much memory."""
_PAUSES = (0.05, 2.0)
"""Seconds between two attempts to dial: the first, and the longest."""


@dataclass(frozen=True)
class Settings:
    """Where this agent listens, and how long it waits.

    listen: host and port to bind, None where nobody dials this agent. patience: seconds that a
    neighbour may be away or silent before the training gives up. log: called with an event and
    public facts about it, from several threads; with it come digests of all messages.
    """

    listen: tuple[str, int] | None = None
    patience: float = 600.0
    log: Note | None = None


class TlsTransport(Transport):
    """The links of one agent over TLS, mutually authenticated.

    peers: all agents of the training, this one among them, ascending by number. neighbours: those
    that this agent exchanges messages with. private_key: that of this agent. part_of: the number of
    the training and the epoch of it; connections of another one are refused. identities: what
    agents sign the keys of masks with, those of the links unless given.
    """

    def __init__(
        self,
        agent: int,
        peers: Sequence[Peer],
        neighbours: Sequence[int],
        private_key: "Ed25519PrivateKey",
        part_of: Training,
        *,
        identities: Identities | None = None,
        settings: Settings | None = None,
    ) -> None:
        require_peers(agent, peers, neighbours, private_key)
        asked = settings or Settings()
        if not 0 < asked.patience < float("inf"):
            raise DistributedError(f"patience is {asked.patience}; accepted: a positive number")
        if not 0 < part_of.training < 1 << 64 or not 0 <= part_of.epoch < 1 << 32:
            raise DistributedError(
                f"the training has the number {part_of.training} and the epoch {part_of.epoch}; "
                "accepted: a number of 64 bits that is not 0, and an epoch of 32 bits"
            )
        self.agent, self.agents, self.timeout = agent, len(peers), asked.patience
        self.training, self.epoch = part_of.training, part_of.epoch
        self.identities = identities or PinnedKeys(private_key, peers)
        self.changed, self.is_over, self.memory = threading.Condition(), False, 0
        self.opened, self.channel = 0, 0
        own = peers[agent]
        self.links = {
            j: Link(peers[j], dials(own, peers[j]), position)
            for position, j in enumerate(sorted(neighbours))
        }
        self._log = asked.log
        self._fault: Exception | None = None
        self.keeps_digests = asked.log is not None
        self._said: dict[str, tuple[dict[str, Any], int]] = {}
        self._asking: str | None = None
        self._lately: deque[str] = deque()
        self._traffic = Traffic(self)
        self._greeting = Greeting(agent, part_of)
        self._door = self._open_door(own, private_key, asked.listen)
        for link in self.links.values():
            if link.dials:
                tls = context(private_key, own.name, [link.peer], server=False)
                threading.Thread(target=self._keep_dialled, args=(link, tls), daemon=True).start()

    def note(self, event: str, **about: Any) -> None:
        """Give an event to the log; where that fails, the thread that waits ends the training."""
        if self._log is None:
            return
        try:
            self._log(event, **about)
        except Exception as error:
            with self.changed:
                self._fault = self._fault or error
                self.changed.notify_all()

    def gather(self, document: Mapping[str, Any], purpose: str) -> dict[int, dict[str, Any]]:
        with self.changed:
            self._said[purpose] = dict(document), self._said.get(purpose, ({}, 0))[1] + 1
            self._asking = purpose
            self._forget_old(purpose)
            for link in self.links.values():
                if link.session:
                    link.session.outgoing.append(self._document(purpose))
            self.changed.notify_all()
            until = time.monotonic() + self.patience
            for j, link in self.links.items():
                self._wait(partial(link.heard.__contains__, purpose), j, 0, until, purpose)
            self._asking = None
            # What this agent does next may be to end, because the documents do not fit.
            self.changed.wait_for(lambda: all(one.is_idle for one in self.links.values()), _LEAVING)
            found = {self.agent: dict(document)}
            found |= {j: link.take(purpose) for j, link in self.links.items()}
            return dict(sorted(found.items()))

    def stand_in(self, document: Mapping[str, Any], purpose: str) -> None:
        with self.changed:
            self._said[purpose] = dict(document), self._said.get(purpose, ({}, 0))[1]
            for link in self.links.values():
                link.answered.setdefault(purpose, ("", 0))

    def link(self, outbox: Mapping[int, Frame], inbox: Mapping[int, Inbox], channel: int) -> None:
        with self.changed:
            self.channel, self.opened, self.memory = channel, 0, 0
            for j, link in self.links.items():
                link.carry(outbox[j], inbox[j])
            self.changed.notify_all()

    def open(self, number: int) -> None:
        with self.changed:
            self.opened = number
            for link in self.links.values():
                link.awaited = link.awaited or (number, 0)
                self._ask(link)
            self.changed.notify_all()

    def send(self, segment: int, number: int, receivers: Sequence[int] | None = None) -> None:
        with self.changed:
            self.memory = number
            for i in self.links if receivers is None else receivers:
                self.links[i].ready = (number, segment + 1)
            self.changed.notify_all()

    def wait(self, sender: int, segment: int, number: int, deadline: float) -> None:
        link = self.links[sender]
        with self.changed:
            self._wait(lambda: link.has_arrived((number, segment)), sender, number, deadline)

    def flush(self, number: int, deadline: float) -> None:
        with self.changed:
            for i, link in self.links.items():
                if link.ready and link.ready[0] == number:
                    self._wait(partial(link.has_left, number), i, number, deadline)
            # From here on the buffers may be written again: the journal has what they held.
            self.memory = 0

    def close(self) -> None:
        """Wait until all neighbours are done as well, then end all connections.

        Keep results before: an agent that falls after its neighbours ended cannot rejoin them.
        """
        if not self.is_over:
            self.gather({}, _END)
            self.end()

    def end(self) -> None:
        """End all connections at once; neighbours wait for this agent to come back."""
        with self.changed:
            self.is_over = True
            sessions = [link.session for link in self.links.values() if link.session]
            self.changed.notify_all()
        if self._door:
            self._door.close()
        for session in sessions:
            self.lost(session, "")
        for link in self.links.values():
            for thread in link.threads:
                # They close the connections.
                thread.join(_CLOSING)

    def lacks_answer(self, link: Link) -> bool:
        """Whether this agent waits for a document of a neighbour."""
        return self._asking is not None and self._asking not in link.heard

    def heard(self, link: Link, session: Session, said: Mapping[str, Any], size: int = 0) -> None:
        """Take a document of a neighbour in, or answer it on behalf of the optimizer.

        It is answered where this agent is through with its purpose: the neighbour started again
        since, or did not get the first answer. size: its length in bytes.
        """
        purpose, turn, document = said.get("purpose"), said.get("turn"), said.get("document")
        if not (isinstance(purpose, str) and isinstance(turn, int) and isinstance(document, dict)):
            raise Refused("a document says too little")
        with self.changed:
            before = link.answered.get(purpose)
            is_new = before is None or (session.life == before[0] and turn > before[1])
            if is_new or said.get("answer"):
                held = [one.size for some in link.heard.values() for one in some]
                if len(held) >= _MOST_HEARD or sum(held) + size > _MOST_HEARD_BYTES:
                    raise Refused("too many documents that nobody asked for")
                if is_new or purpose == self._asking:
                    link.keep(purpose, Heard(session.life, turn, document, size))
                self.changed.notify_all()
                return
            link.answered[purpose] = (session.life, turn)
            if len(session.outgoing) > _MOST_HEARD:
                raise Refused("it asks for documents and does not take them")
        answer = self._document(purpose, asked_by=link)
        with self.changed:
            session.outgoing.append(answer)
            self.changed.notify_all()

    def refuse(self, link: Link, session: Session, reason: str) -> None:
        """End a session for what its other end sent, and say so even where it ended already."""
        self.note("refused", peer=link.peer.name, reason=reason)
        if not self.lost(session, reason):
            _log.warning("refused what %s sent: %s", link.peer.name, reason)

    def lost(self, session: Session, reason: str) -> bool:
        """End a session; the link waits for the next one. Returns whether the reason was logged.

        Its two threads wake up and close the connections: closed by anybody else, a descriptor
        could be that of another connection, or of a file, while they still read and write.
        """
        with self.changed:
            was_over, session.over = session.over, True
            found = [link for link in self.links.values() if link.session is session]
            for link in found:
                link.session = None
            for connection in (session.reading, session.writing):
                shut(connection)
            self.changed.notify_all()
        waiting = [
            link
            for link in found
            if not (was_over or self.is_over or _END in link.heard or _END in link.answered)
        ]
        for link in waiting:
            _log.warning("lost the link with %s: %s; waiting for it", link.peer.name, reason)
            self.note("link lost", peer=link.peer.name, reason=reason)
        return bool(waiting)

    def _joined(self, link: Link, session: Session) -> None:
        """Let a new pair of connections take the place of the one before."""
        with link.joining:
            if before := link.session:
                self.lost(before, "it connected again")
            with self.changed:
                link.session = session
                if self._asking:
                    session.outgoing.append(self._document(self._asking))
                self._ask(link)
            self.note("link joined", peer=link.peer.name)
            self._traffic.begin(link, session)
        if self.is_over:
            self.lost(session, "")

    def _forget_old(self, purpose: str) -> None:
        """Of the documents that were given in the midst of the rounds, hold the newest alone.

        Those of the start are asked for whenever a neighbour starts again.
        """
        if self.opened and purpose not in self._lately:
            self._lately.append(purpose)
            if len(self._lately) > _MOST_HEARD:
                old = self._lately.popleft()
                self._said.pop(old, None)
                for link in self.links.values():
                    link.answered.pop(old, None)

    def _ask(self, link: Link) -> None:
        """State what is needed next, once for each session."""
        if link.session and not link.session.has_asked and link.awaited:
            number, segment = link.awaited
            header = Header(NEED, segment, self.channel, number)
            link.session.outgoing.append(header.packed())
            link.session.has_asked = True

    def _document(self, purpose: str, asked_by: Link | None = None) -> bytes:
        """The last document that was given for a purpose, as a record.

        asked_by: the link whose other end asks while the optimizer is in the midst of its rounds,
        at the place of its journal. It hears which of its messages is the next to arrive here.
        """
        document, turn = self._said[purpose]
        if asked_by and "journal" in document:
            position = self.journal.position() if self.journal else None
            document = {**document, "journal": position, "under_way": True}
            document["awaited"] = asked_by.awaited
        answer = asked_by is not None
        said = {"purpose": purpose, "turn": turn, "document": document, "answer": answer}
        return json_record(DOCUMENT, said)

    def _wait(
        self,
        condition: Callable[[], bool],
        neighbour: int,
        number: int,
        deadline: float,
        purpose: str = "",
    ) -> None:
        """Wait, with the lock held, for something that a neighbour must do."""
        link = self.links[neighbour]
        left = max(0.0, deadline - time.monotonic())
        self.changed.wait_for(lambda: condition() or self.is_over or self._fault, left)
        if self._fault:
            raise DistributedError(
                f"agent {self.agent} cannot keep its log: {self._fault}. The state is as before "
                "the round; make room, and start this agent again"
            ) from self._fault
        if condition():
            return
        how = "the connections were ended" if self.is_over else f"it was silent for {left:.3g} s"
        where = purpose or f"round {number}"
        raise PeerLost(
            f"agent {self.agent} lost agent {neighbour} ({link.peer.name}) in {where}: {how}"
            f"{link.trouble}. The state is as before the round; start this agent again when "
            "the other can be reached",
            neighbour,
            number,
        )

    def _open_door(
        self, own: Peer, key: "Ed25519PrivateKey", listen: tuple[str, int] | None
    ) -> Door | None:
        expected = [link for link in self.links.values() if not link.dials]
        if not expected:
            return None
        if listen is None:
            names = ", ".join(link.peer.name for link in expected)
            raise DistributedError(
                f"{names} will dial {own.name}, which was given no address to listen at"
            )
        tls = context(key, own.name, [link.peer for link in expected], server=True)
        return Door(listen, tls, self._greeting, expected, self._joined, self.note)

    def _keep_dialled(self, link: Link, tls: Any) -> None:
        """Dial a neighbour whenever there is no connection with it."""
        said, pause = "", _PAUSES[0]
        while not self.is_over:
            try:
                session = dial(link, tls, self._greeting)
            except (OSError, ValueError) as error:
                reason = str(error) if isinstance(error, Refused) else type(error).__name__
                link.trouble = f"; the last attempt to reach it: {reason}"
                if reason != said:
                    said = reason
                    _log.info("cannot reach %s yet: %s", link.peer.name, reason)
                    self.note("not reached", peer=link.peer.name, reason=reason)
                with self.changed:
                    self.changed.wait_for(lambda: self.is_over, pause)
                pause = min(2 * pause, _PAUSES[1])
                continue
            said, link.trouble, awaited = "", "", link.awaited
            self._joined(link, session)
            with self.changed:
                self.changed.wait_for(lambda: self.is_over or link.session is None)
                if link.awaited != awaited or session.written:
                    pause = _PAUSES[0]
                elif not self.is_over:
                    # Nothing moved: another connection at once would end in the same way.
                    self.changed.wait_for(lambda: self.is_over, pause)
                    pause = min(2 * pause, _PAUSES[1])
