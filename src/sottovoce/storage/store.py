"""One store for everything that is resumed or reused: a number is found again by what made it.

An entry's name is a digest of its spec, all that its numbers depend on, and of the package's
version. Whatever changes there, the entry is another one and is computed anew.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sottovoce.errors import ResultError
from sottovoce.storage.identity import canonical, digest, fingerprint, package_version
from sottovoce.storage.tensors import read_tensors, write_tensors

try:
    import fcntl
except ImportError:  # There are no such locks on Windows: the folder is used unlocked.
    fcntl = None  # type: ignore[assignment]

_held: set[tuple[int, Path]] = set()


def say_on_stderr(line: str) -> None:
    """Print a line where it does not mix with results."""
    print(line, file=sys.stderr)


@dataclass(frozen=True, eq=False)
class Stored:
    """What an entry holds."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


class Store:
    """Finished or half-finished work in a folder, in files that are never half written.

    folder: None keeps nothing. fresh: overwrite what earlier calls left, and reuse none of it. say:
    gets a line on what was reused. An entry that cannot be read, or whose header is not that of its
    name, raises a `ResultError`: files are replaced whole, so such a file was damaged or put there.
    A spec is JSON, and its "kind" a word that begins the file's name.
    """

    def __init__(
        self,
        folder: str | Path | None,
        fresh: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        self.fresh, self.say = fresh, say or (lambda line: None)
        self._own: set[Path] = set()
        self._asked: Counter[tuple[str, bool]] = Counter()

    @classmethod
    def of(cls, given: "Store | str | Path | None") -> "Store":
        """The store itself, or that of a folder, which says on stderr what it reuses."""
        return given if isinstance(given, Store) else cls(given, say=say_on_stderr)

    def load(self, spec: Mapping[str, Any]) -> Stored | None:
        """What was saved under exactly this spec by this version, or None."""
        path, key = self._place(spec)
        there = path is not None and path.exists() and (path in self._own or not self.fresh)
        self._asked[spec["kind"], there] += 1
        if path is None or not there:
            return None
        tensors, header = read_tensors(path)
        if canonical(header.get("key")) != canonical(key) or header["sum"] != _sum(tensors):
            raise ResultError(f"{path} was altered or belongs elsewhere; remove it, or start fresh")
        return Stored(tensors, header["facts"])

    def save(
        self, spec: Mapping[str, Any], tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> None:
        """Keep tensors and JSON facts under a spec, replacing what was there."""
        path, key = self._place(spec)
        if path is not None:
            write_tensors(path, tensors, {"key": key, "facts": facts, "sum": _sum(tensors)})
            self._own.add(path)

    def report(self, kind: str, plural: str) -> None:
        """Say how many entries of a kind, of those asked for since the last report, were there."""
        found, missing = self._asked.pop((kind, True), 0), self._asked.pop((kind, False), 0)
        if found:
            self.say(f"reused {found} of {found + missing} {plural} from {self.folder}")

    def _place(self, spec: Mapping[str, Any]) -> tuple[Path | None, dict[str, Any]]:
        key = {"spec": spec, "version": package_version()}
        return self.folder and self.folder / f"{spec['kind']}-{digest(key)}.safetensors", key


def _sum(tensors: Mapping[str, Tensor]) -> str:
    return digest({name: fingerprint(tensor) for name, tensor in tensors.items()})


@contextmanager
def lock(folder: str | Path | None, shared: bool = False) -> Iterator[None]:
    """Hold a folder while work is written to it; a thread may take the same lock within.

    shared: beside others that ask for a shared lock too, as processes that compute pieces of one
    study do. The system frees the lock of a process that ends, however it ends. None is no folder.
    """
    mine = threading.get_ident(), Path(folder or "").resolve()
    if folder is None or fcntl is None or mine in _held:
        yield
        return
    mine[1].mkdir(parents=True, exist_ok=True)
    with (mine[1] / ".lock").open("a") as file:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ResultError(
                f"{folder} is in use by another process or thread; wait until that ends, or give "
                "another folder"
            ) from error
        except OSError:  # A network file system without locks: the folder is used unlocked.
            pass
        _held.add(mine)
        try:
            yield
        finally:
            _held.discard(mine)
