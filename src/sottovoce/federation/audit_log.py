"""`audit.jsonl`: what an agent did, line by line, each line bound to all before it.

A line is JSON with a number, what happened, and

    hash_n = SHA-256(hash_{n-1} | line n without its hash)

so that a line cannot be altered, removed or added in the middle without every later hash changing.
The last hash, written down elsewhere (`sottovoce status` prints it), fixes the whole log: without
it, somebody who can write the file can still cut its end off or compute all hashes anew. The log
holds peers, rounds, digests of messages, refusals and ε; no message, key, model or gradient.
"""

import errno
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sottovoce.errors import FederationError

_START = "0" * 64


class Verified(NamedTuple):
    """A log whose chain holds: how many lines, and the hash of the last."""

    lines: int
    last: str


class AuditLog:
    """The log of one agent, to which lines are added and never altered.

    A last line that a crash cut off is completed by a line that says so; anything else that does
    not fit the chain is refused.
    """

    def __init__(self, path: str | Path) -> None:
        self.path, self._lock = Path(path), threading.Lock()
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        torn = _cut_torn_end(self.path)
        self.number, self.last = verify_log(self.path) if self.path.exists() else (0, _START)
        if torn:
            self.note("an unfinished line was removed", bytes=torn)

    def note(self, event: str, **about: Any) -> None:
        """Add a line: what happened, and public facts about it."""
        with self._lock:
            line = {"line": self.number + 1, "event": event, **about}
            last = _hash(self.last, line)
            text = json.dumps({**line, "hash": last}, allow_nan=False) + "\n"
            self._append(text.encode())
            # Only now: a line that did not fit on the disk is no part of the chain.
            self.number, self.last = self.number + 1, last

    @property
    def end(self) -> Verified:
        """The number of the last line and its hash."""
        with self._lock:
            return Verified(self.number, self.last)

    def _append(self, content: bytes) -> None:
        """Write all of a line or nothing of it."""
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                before = os.fstat(handle).st_size
                if os.write(handle, content) < len(content):
                    os.ftruncate(handle, before)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(handle)
        except OSError as error:
            raise FederationError(
                f"a line could not be added to the log {self.path}: {error.strerror}. What was "
                "written earlier is as it was; make room, and start the agent again"
            ) from None


def verify_log(path: str | Path, known: tuple[int, str] | None = None) -> Verified:
    """Check every line of a log; raise `FederationError` naming the first that does not fit.

    known: the number and the hash of a line as they were noted elsewhere: a log that ends before it
    was cut off.
    """
    number, last = 0, _START
    for line in read_log(path):
        number += 1
        claimed = line.pop("hash", None)
        if line.get("line") != number:
            raise FederationError(
                f"line {number} of {path} says that it is line {line.get('line')!r}: a line was "
                "removed or added"
            )
        last = _hash(last, line)
        if claimed != last:
            raise FederationError(
                f"line {number} of {path} was altered, or a line before it: its hash does not fit"
            )
        if known and number == known[0] and last != known[1]:
            raise FederationError(
                f"line {number} of {path} is another one than was noted: the log was written anew"
            )
    if known and number < known[0]:
        raise FederationError(
            f"{path} ends at line {number}, and line {known[0]} was noted: its end was cut off, or "
            "the machine lost power before it was on disk"
        )
    return Verified(number, last)


def read_log(path: str | Path) -> Iterator[dict[str, Any]]:
    """The lines of a log, one by one, as they are."""
    try:
        with Path(path).open("rb") as file:
            for number, text in enumerate(file, 1):
                try:
                    line = json.loads(text)
                    if not isinstance(line, dict) or not text.endswith(b"\n"):
                        raise ValueError
                except ValueError:
                    raise FederationError(f"line {number} of {path} is not whole JSON") from None
                yield line
    except OSError as error:
        raise FederationError(f"the log {path} cannot be read: {error.strerror}") from None


def _hash(before: str, line: dict[str, Any]) -> str:
    text = json.dumps(line, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(f"{before} {text}".encode()).hexdigest()


def _cut_torn_end(path: Path) -> int:
    """Remove what follows the last end of a line, and say how many bytes that were."""
    if not path.exists():
        return 0
    content = path.read_bytes()
    torn = len(content) - (content.rfind(b"\n") + 1)
    if torn:
        os.truncate(path, len(content) - torn)
    return torn
