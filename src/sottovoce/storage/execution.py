"""How long work is run: where its parts are kept, and what is said meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sottovoce.storage.store import Store, say_on_stderr


@dataclass(frozen=True)
class Execution:
    """How to run a study or an audit; none of it changes a number.

    folder: keeps finished parts, from which an interrupted call goes on. fresh: compute everything
    anew and overwrite what the folder holds. progress: show a bar. say: gets lines on what is
    reused.
    """

    folder: str | Path | None = None
    fresh: bool = False
    progress: bool = False
    say: Callable[[str], None] = say_on_stderr

    def store(self) -> Store:
        """The folder's store; without a folder it keeps nothing."""
        return Store(self.folder, self.fresh, self.say)
