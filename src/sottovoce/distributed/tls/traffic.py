"""The two threads of a session: one writes to a neighbour, one reads what it sends."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from sottovoce.distributed.journal import Journal
from sottovoce.distributed.tls.links import Link, Place, Session
from sottovoce.distributed.tls.records import (
    DOCUMENT,
    NEED,
    SEGMENT,
    Header,
    Refused,
    read_header,
    read_into,
    read_json,
    write_bytes,
)

MOST_WRITTEN = 1 << 37
"""Bytes under one key: 2^23 records, where RFC 8446, section 5.5, allows AES-GCM 2^24.5."""
_MOST_TRAININGS = 64
"""Trainings that one pair of connections may carry, one after the other."""


class Station(Protocol):
    """The agent whose links these are.

    changed: guards everything that threads share, and tells of changes. opened: the exchange whose
    messages may arrive; memory: the one whose messages lie in the outgoing buffers, 0 for none.
    note: takes events; keeps_digests: whether it wants those of messages.
    """

    changed: threading.Condition
    opened: int
    memory: int
    channel: int
    journal: Journal | None
    keeps_digests: bool

    def note(self, event: str, **about: Any) -> None: ...
    def lacks_answer(self, link: Link) -> bool: ...
    def heard(self, link: Link, session: Session, said: Mapping[str, Any], size: int) -> None: ...
    def lost(self, session: Session, reason: str) -> bool: ...
    def refuse(self, link: Link, session: Session, reason: str) -> None: ...


class Traffic:
    """Moves the bytes of all sessions of one agent."""

    def __init__(self, station: Station) -> None:
        self._station = station

    def begin(self, link: Link, session: Session) -> None:
        """Start both threads; each waits for the one of the session before to end."""
        before = link.threads
        threads = [
            threading.Thread(target=self._guarded, args=(act, before, link, session), daemon=True)
            for act in (self._write, self._read)
        ]
        for thread in threads:
            thread.start()
        # Whoever ends the connections meanwhile joins threads that have started.
        link.threads = threads

    def _guarded(
        self,
        act: Callable[[Link, Session], None],
        before: list[threading.Thread],
        link: Link,
        session: Session,
    ) -> None:
        for thread in before:
            thread.join()
        try:
            act(link, session)
        except Refused as error:
            self._station.refuse(link, session, str(error))
        except Exception as error:
            self._station.lost(session, type(error).__name__)
        finally:
            with self._station.changed:
                (session.writing if act == self._write else session.reading).close()

    def _write(self, link: Link, session: Session) -> None:
        station, kept = self._station, _Kept()
        while True:
            with station.changed:
                station.changed.wait_for(lambda: self._has_work(link, session))
                if session.over:
                    return
                record = session.outgoing.popleft() if session.outgoing else None
                place = None if record else session.needed
                in_memory = place is not None and 0 < station.memory == place[0]
                session.busy = True
                renew = in_memory and place is not None and _may_renew(link, session, place)
            if renew:
                station.lost(session, "it takes new keys")
                return
            if record:
                write_bytes(session.writing, record)
            else:
                assert place is not None
                row = None if in_memory else kept.row(station.journal, link, place[0])
                self._send(link, session, place, row)
            with station.changed:
                session.busy = False
                if place and session.needed == place:
                    session.needed = link.after(place)
                station.changed.notify_all()

    def _has_work(self, link: Link, session: Session) -> bool:
        if session.over or session.outgoing:
            return True
        if session.needed is None or link.ready is None:
            return False
        return session.channel == self._station.channel and session.needed < link.ready

    def _send(self, link: Link, session: Session, place: Place, row: Tensor | None) -> None:
        number, segment = place
        content = link.outgoing(segment, row)
        header = Header(SEGMENT, segment, session.channel, number, len(content))
        write_bytes(session.writing, header.packed())
        write_bytes(session.writing, content)
        session.written += len(content)
        if self._station.keeps_digests and link.after(place)[0] > number:
            event = "sent" if row is None else "sent again"
            digest = link.digest_of(row)
            self._station.note(event, peer=link.peer.name, number=number, digest=digest)

    def _read(self, link: Link, session: Session) -> None:
        station = self._station
        while True:
            header = read_header(session.reading)
            if header.kind == SEGMENT:
                self._receive(link, session, header)
            elif header.kind == DOCUMENT:
                said = read_json(session.reading, header.length)
                station.heard(link, session, said, header.length)
            elif header.kind == NEED:
                self._begin_at(session, header)
            else:
                raise Refused(f"a record of kind {header.kind} in the midst of a connection")

    def _begin_at(self, session: Session, header: Header) -> None:
        """Send from the segment that the other end needs, which it says once for each training.

        Said again it could skip what is being written, so that the next message, not yet masked and
        not yet in the journal, would be written to the buffer under the writer.
        """
        with self._station.changed:
            said = session.asked
            if header.number < 1 or header.channel in said or len(said) >= _MOST_TRAININGS:
                raise Refused("it says more than once, or for no exchange, what it needs")
            said.add(header.channel)
            session.needed, session.channel = (header.number, header.segment), header.channel
            self._station.changed.notify_all()

    def _receive(self, link: Link, session: Session, header: Header) -> None:
        """Take in the segment that is awaited, and no other, where it belongs."""
        station, place = self._station, (header.number, header.segment)
        with station.changed:
            if header.channel != station.channel or place != link.awaited:
                raise Refused(
                    f"segment {header.segment} of exchange {header.number} came and "
                    f"{link.awaited} of this training is awaited"
                )
            room = link.arriving(header.segment)
            if header.length != len(room):
                raise Refused(f"a segment has {header.length} bytes; accepted: {len(room)}")
            station.changed.wait_for(
                lambda: (
                    session.over or station.opened >= header.number or station.lacks_answer(link)
                )
            )
            if not session.over and station.opened < header.number:
                # Only over the next connections can the answer come before the segment.
                station.lost(session, "it sends the next message before an answer")
            if session.over:
                # The buffer may still hold what the agent is adding up.
                raise ConnectionAbortedError("the session ended before what it was sending")
        read_into(session.reading, room)
        digest = link.digest_so_far(place, room) if station.keeps_digests else None
        with station.changed:
            if link.session is not session:
                raise Refused("its session ended")
            link.awaited = link.after(place)
            station.changed.notify_all()
        if digest:
            station.note("received", peer=link.peer.name, number=header.number, digest=digest)


def _may_renew(link: Link, session: Session, place: Place) -> bool:
    """Whether new keys are due and nothing can be lost with the connections, journal or not.

    The neighbour's first segment of an exchange has come, and this agent's has not left: the
    neighbour has everything of the exchange before, and both still hold their messages of this one.
    Of two neighbours one is always the second to send.
    """
    due = session.written > MOST_WRITTEN and place[1] == 0
    return due and link.awaited is not None and link.awaited > place


class _Kept:
    """The messages of one earlier exchange, read from the journal once."""

    def __init__(self) -> None:
        self._number, self._row = 0, torch.empty(0)

    def row(self, journal: Journal | None, link: Link, number: int) -> Tensor:
        """What was sent to the neighbour of a link: (bytes,)."""
        if number != self._number:
            rows = journal.frames(number) if journal else None
            if rows is None or link.outbox is None or rows.shape[1] != link.outbox.size:
                raise Refused(
                    f"it needs the message of exchange {number} again, and no journal holds it"
                )
            self._number, self._row = number, rows[link.position]
        return self._row
