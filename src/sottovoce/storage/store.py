"""One store for everything that is resumed or reused: a number is found again by what made it.

An entry's name is a digest of its spec, all that its numbers depend on, and of the package's
version. Whatever changes there, the entry is another one and is computed anew.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
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
        self._asked: Counter[str] = Counter()
        self._found: Counter[str] = Counter()

    @classmethod
    def of(cls, given: "Store | str | Path | None") -> "Store":
        """The store itself, or that of a folder, which says on stderr what it reuses."""
        return given if isinstance(given, Store) else cls(given, say=say_on_stderr)

    def load(self, spec: Mapping[str, Any]) -> Stored | None:
        """What was saved under exactly this spec by this version, or None."""
        path = self._path(spec)
        self._asked[_kind(spec)] += 1
        if path is None or not path.exists() or (self.fresh and path not in self._own):
            return None
        tensors, header = read_tensors(path)
        right = canonical([header.get("spec"), header.get("version")])
        if right != canonical([spec, package_version()]) or header.get("numbers") != _sum(tensors):
            raise ResultError(
                f"{path} was altered or belongs to other work; remove it, or start fresh"
            )
        self._found[_kind(spec)] += 1
        return Stored(tensors, header["facts"])

    def save(
        self,
        spec: Mapping[str, Any],
        tensors: Mapping[str, Tensor] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep tensors and JSON facts under a spec, replacing what was there."""
        path = self._path(spec)
        if path is None:
            return
        tensors = dict(tensors or {})
        header = {"spec": spec, "version": package_version(), "facts": dict(facts or {})}
        write_tensors(path, tensors, header | {"numbers": _sum(tensors)})
        self._own.add(path)

    def report(self, kind: str = "entry", plural: str = "entries") -> None:
        """Say how many entries of a kind, of those asked for since the last report, were there."""
        asked, found = self._asked.pop(kind, 0), self._found.pop(kind, 0)
        if found:
            self.say(f"reused {found} of {asked} {plural} from {self.folder}")

    def lock(self, shared: bool = False) -> Any:
        """Keep others out of the folder, see `lock`."""
        return nullcontext() if self.folder is None else lock(self.folder, shared)

    def _path(self, spec: Mapping[str, Any]) -> Path | None:
        key = digest({"spec": spec, "version": package_version()})
        return self.folder and self.folder / f"{_kind(spec)}-{key}.safetensors"


def _kind(spec: Mapping[str, Any]) -> str:
    return str(spec.get("kind", "entry"))


def _sum(tensors: Mapping[str, Tensor]) -> str:
    return digest({name: fingerprint(tensor) for name, tensor in tensors.items()})


@contextmanager
def lock(folder: str | Path, shared: bool = False) -> Iterator[None]:
    """Hold a folder while work is written to it; a thread may take the same lock within.

    shared: beside others that ask for a shared lock too, as processes that compute pieces of one
    study do. The system frees the lock of a process that ends, however it ends.
    """
    folder = Path(folder).absolute()
    mine = threading.get_ident(), folder
    if fcntl is None or mine in _held:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as file:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ResultError(
                f"{folder} is in use by another process or thread; wait until that ends, or give "
                "another folder"
            ) from error
        _held.add(mine)
        try:
            yield
        finally:
            _held.discard(mine)
