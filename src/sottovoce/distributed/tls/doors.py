"""How connections begin: one end dials, the other one opens its door to few, and for a short time.

Whoever connects has `HANDSHAKE` seconds to prove that it holds the key of a neighbour and to say
which training and epoch it means. At most `MOST_PENDING` connections may be in that state; one more
puts the oldest out, so that strangers who only hold connections open keep nobody from coming in.
"""

import contextlib
import logging
import os
import socket
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from sottovoce.distributed.mask_keys import Session as Training
from sottovoce.distributed.tls.certificates import presented_key
from sottovoce.distributed.tls.links import Link, Session
from sottovoce.distributed.tls.records import (
    FORMAT,
    HELLO,
    Refused,
    json_record,
    read_header,
    read_json,
    write_bytes,
)
from sottovoce.errors import DistributedError

HANDSHAKE = 10.0
MOST_PENDING = 16
MOST_LINES = 20
"""Refusals that are logged in a minute: strangers shall not fill a disk."""
_LIFE_BYTES = 8
_MOST_LIVES = 1000
"""Starts of a neighbour that are told apart."""
_PARTS = ("to", "from")
"""What a connection is for, as the one who dials sees it."""

_log = logging.getLogger("sottovoce.distributed.tls")

Note = Callable[..., None]
"""Takes an event and public facts about it."""


class Greeting:
    """What both ends of a connection tell each other first, and compare.

    life: drawn when the process started, so that a neighbour knows one start from another. Once a
    later start of a neighbour has connected, an earlier one is refused: two processes with one key
    and one state would send two messages from it.
    """

    def __init__(self, agent: int, training: Training) -> None:
        self.agent, self.training, self.life = agent, training, os.urandom(_LIFE_BYTES).hex()
        self._lives: dict[int, list[str]] = {}
        self._lock = threading.Lock()

    def say(self, connection: ssl.SSLSocket, to: int, **more: str) -> None:
        own = {"agent": self.agent, "to": to, "life": self.life, "format": FORMAT}
        part_of = {"training": str(self.training.training), "epoch": self.training.epoch}
        write_bytes(connection, json_record(HELLO, {**own, **part_of, **more}))

    def hear(self, connection: ssl.SSLSocket, agent: int) -> dict[str, str]:
        """What the other end says of the connection; refused unless it means the same as this."""
        header = read_header(connection)
        if header.kind != HELLO:
            raise Refused("the connection does not begin with a greeting")
        said = read_json(connection, header.length)
        if "refused" in said:
            raise Refused(f"agent {agent} refused the connection: {str(said['refused'])[:200]!r}")
        for name, expected in (
            ("format", FORMAT),
            ("training", str(self.training.training)),
            ("epoch", self.training.epoch),
            ("agent", agent),
            ("to", self.agent),
        ):
            if said.get(name) != expected:
                raise Refused(f"its {name} is {str(said.get(name))[:40]!r} instead of {expected!r}")
        if not all(isinstance(said.get(name), str) for name in ("life", "part", "pair")):
            raise Refused("its greeting says too little")
        self._require_latest(agent, said["life"])
        return {name: said[name] for name in ("life", "part", "pair")}

    def _require_latest(self, agent: int, life: str) -> None:
        with self._lock:
            known = self._lives.setdefault(agent, [])
            if len(life) != 2 * _LIFE_BYTES or life in known[:-1]:
                raise Refused(
                    f"agent {agent} was started again elsewhere or since, and the earlier start is "
                    "not let in; one state belongs to one running agent"
                )
            if life not in known:
                known.append(life)
                del known[:-_MOST_LIVES]


def dial(link: Link, tls: ssl.SSLContext, greeting: Greeting) -> Session:
    """Both connections of a link, dialled from here."""
    agent, made = link.peer.agent, list[ssl.SSLSocket]()
    pair, life = os.urandom(8).hex(), ""
    assert link.peer.address is not None
    try:
        for part in _PARTS:
            plain = socket.create_connection(link.peer.address, timeout=HANDSHAKE)
            made.append(_wrapped(tls, plain, server=False))
            made[-1].do_handshake()
            if presented_key(made[-1]) != link.peer.public_key:
                raise Refused("the key that it presented is another one")
            greeting.say(made[-1], agent, part=part, pair=pair)
            life = greeting.hear(made[-1], agent)["life"]
    except BaseException:
        for connection in made:
            hang_up(connection)
        raise
    for connection in made:
        connection.settimeout(None)
    return Session(reading=made[1], writing=made[0], life=life)


class Door:
    """Listens at one port for the neighbours that dial this agent.

    links: those neighbours. joined: called with a link and its two connections. note: called with
    every refusal.
    """

    def __init__(
        self,
        address: tuple[str, int],
        tls: ssl.SSLContext,
        greeting: Greeting,
        links: list[Link],
        joined: Callable[[Link, Session], None],
        note: Note,
    ) -> None:
        self._tls, self._greeting, self._joined, self._note = tls, greeting, joined, note
        self._links = {link.peer.public_key: link for link in links}
        self._lock, self._pending = threading.Lock(), OrderedDict[int, ssl.SSLSocket]()
        self._over, self._minute, self._lines = False, 0.0, 0
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            self._listening = socket.create_server(address, family=family, backlog=128)
        except OSError as error:
            raise DistributedError(
                f"agent {greeting.agent} cannot listen at {address[0]}:{address[1]}: "
                f"{error.strerror}; give an address of this machine that nothing else uses"
            ) from None
        self.address: tuple[str, int] = self._listening.getsockname()[:2]
        threading.Thread(target=self._listen, daemon=True, name="sottovoce-door").start()

    def close(self) -> None:
        """Stop listening, and end what was not yet let in."""
        self._over = True
        shut(self._listening)
        self._listening.close()
        with self._lock:
            for connection in self._pending.values():
                shut(connection)
            for link in self._links.values():
                if link.half:
                    hang_up(link.half[2])
                link.half = None

    def _listen(self) -> None:
        number = 0
        while not self._over:
            try:
                connection, address = self._listening.accept()
            except OSError:
                # Too many open files, or the door was closed.
                time.sleep(0.1)
                continue
            number += 1
            try:
                tls = _wrapped(self._tls, connection, server=True)
            except (OSError, ValueError) as error:
                self._refuse(connection, str(address[0]), error)
                continue
            with self._lock:
                self._pending[number] = tls
                oldest = next(iter(self._pending))
                if len(self._pending) > MOST_PENDING:
                    # Its thread wakes up, and says that it was refused.
                    shut(self._pending.pop(oldest))
            threading.Thread(
                target=self._let_in, args=(number, tls, str(address[0])), daemon=True
            ).start()

    def _let_in(self, number: int, tls: ssl.SSLSocket, address: str) -> None:
        try:
            tls.do_handshake()
            link = self._links.get(presented_key(tls))
            if link is None:
                raise Refused("its key is that of no neighbour that dials this agent")
            self._greet(link, tls)
        except (OSError, ValueError) as error:
            self._forget(number)
            self._refuse(tls, address, error)
        finally:
            self._forget(number)

    def _forget(self, number: int) -> None:
        """Take a connection from the pending ones, before anybody closes it."""
        with self._lock:
            self._pending.pop(number, None)

    def _greet(self, link: Link, tls: ssl.SSLSocket) -> None:
        agent = link.peer.agent
        try:
            said = self._greeting.hear(tls, agent)
            if said["part"] not in _PARTS:
                raise Refused("its greeting names no part of a link")
        except Refused as error:
            write_bytes(tls, json_record(HELLO, {"refused": str(error)}))
            raise
        self._greeting.say(tls, agent, part=said["part"], pair=said["pair"])
        tls.settimeout(None)
        with self._lock:
            if self._over:
                raise Refused("the agent is ending")
            other, link.half = link.half, (said["pair"], said["part"], tls)
            if other and other[0] == said["pair"] and other[1] != said["part"]:
                both = {said["part"]: tls, other[1]: other[2]}
                link.half = None
            else:
                both = {}
        if both:
            # What the other end calls "to" is what this end reads.
            self._joined(link, Session(both["to"], both["from"], said["life"]))
        elif other:
            hang_up(other[2])

    def _refuse(self, connection: socket.socket, address: str, error: Exception) -> None:
        hang_up(connection)
        if self._over:
            return
        with self._lock:
            minute = time.monotonic() // 60
            if minute != self._minute:
                self._minute, self._lines = minute, 0
            self._lines += 1
            lines = self._lines
        if lines <= MOST_LINES:
            more = "; further ones in this minute are not listed" if lines == MOST_LINES else ""
            reason = _reason(error) + more
            _log.warning("refused a connection from %s: %s", address, reason)
            self._note("refused", address=address, reason=reason)


def hang_up(connection: socket.socket) -> None:
    """End a connection, and wake the threads that wait for it."""
    shut(connection)
    connection.close()


def shut(connection: socket.socket) -> None:
    """End a connection and wake the threads that wait for it; its descriptor stays taken."""
    # Not the method of SSLSocket, which would leave a socket without TLS behind.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _wrapped(tls: ssl.SSLContext, plain: socket.socket, *, server: bool) -> ssl.SSLSocket:
    """A connection before its handshake, which has a time limit."""
    try:
        plain.settimeout(HANDSHAKE)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # A neighbour whose machine is gone is noticed within 35 seconds, where the system can.
        for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):
                plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        # Raises where the other end is gone; `wrap_socket` then leaves a socket to the collector.
        plain.getpeername()
        return tls.wrap_socket(plain, server_side=server, do_handshake_on_connect=False)
    except BaseException:
        hang_up(plain)
        raise


def _reason(error: Exception) -> str:
    """Why a connection ended, in words that hold nothing of what came over it."""
    if isinstance(error, Refused):
        return str(error)
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        known: Any = error.reason or "the TLS handshake failed"
        return f"no proof of a neighbour's key ({known})"
    if isinstance(error, TimeoutError):
        return f"no handshake within {HANDSHAKE:g} s"
    return "the connection ended, or was the oldest of too many, before it was let in"
