"""What an agent has sent, on disk before the first byte of it leaves.

A state from which two messages are sent with different private numbers is given away: the receiver
subtracts them. So an agent that starts again must send the bytes that it did send, or would have
sent. Before an exchange the journal writes two files, each in one step and synced to disk:

- `frames-<number>`: the outgoing messages, (neighbours, bytes);
- `entry`: the agent's own share v_jj, which never leaves it, the state before the exchange, what
  parts of the chain remember, and the keys of the next round. It replaces the one before, with
  which the keys of this round are gone from the folder.

Before the first of an epoch there is `beginning`, the root of the secrets that neighbours hear of.

The frames of two exchanges are kept. Neighbours are never further apart: an agent that has written
exchange n has finished n - 1, so it had every neighbour's message of n - 1. An agent that starts
again therefore finds here whatever its neighbours lack, and no round is computed a second time.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from sottovoce.distributed.files import checked_tensors, keep_tensors, require_numbers
from sottovoce.distributed.keys import KEY_BYTES
from sottovoce.errors import ResultError
from sottovoce.storage.files import remove_unfinished

_KEPT = 2
_FRAMES = re.compile(r"frames-(\d{12})\.safetensors")
_MEMORY = "memory."
_ENTRY = "entry.safetensors"
_BEGINNING = "beginning.safetensors"


@dataclass(frozen=True, eq=False)
class Entry:
    """One exchange of one agent.

    number: of the exchange, from 1 on; round, inner: where it stands in the training. state: the
    state before the exchange, (d,). rows: what is sent, (neighbours, bytes), and own: the share
    that stays here, (d,); both None where the exchange is finished, as at the start, and `state` is
    the one after it. keys: of the agent and of its edges, for rounds from `key_round` on. masks:
    the keys of masked links for exchanges to come.
    """

    number: int
    round: int
    inner: int
    state: Tensor
    rows: Tensor | None = None
    own: Tensor | None = None
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    key_round: int = 0
    keys: tuple[bytes, ...] = ()
    masks: Mapping[str, Any] | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing of the exchange is left to do."""
        return self.own is None


class Journal:
    """The journal of one agent in `folder`/journal-<agent>, which holds its secrets.

    shared: the facts of the training that an entry must belong to. training, epoch: which execution
    of it is under way.
    """

    def __init__(self, folder: str | Path, agent: int, shared: Mapping[str, Any]) -> None:
        self.folder = Path(folder) / f"journal-{agent}"
        self._agent, self._shared = agent, dict(shared)
        self.training, self.epoch = 0, 0
        self._position: dict[str, Any] | None = None

    def keep(self, entry: Entry) -> None:
        """Make an exchange durable; afterwards its messages may leave."""
        what = f"exchange {entry.number} of the journal"
        tensors = {"state": entry.state}
        tensors |= {_MEMORY + name: one for name, one in entry.memory.items()}
        if entry.rows is not None and entry.own is not None:
            frames = {"rows": entry.rows}
            keep_tensors(self._path(entry.number), frames, self._mark(entry.number), what)
            tensors["own"] = entry.own
        facts = {
            **self._mark(entry.number),
            **{"shared": self._shared, "round": entry.round, "inner": entry.inner},
            **{"key_round": entry.key_round, "keys": [key.hex() for key in entry.keys]},
            "masks": entry.masks,
        }
        keep_tensors(self._entry, tensors, facts, what)
        kept = [number for number in self._written() if 0 <= entry.number - number < _KEPT]
        self._position = self._said(entry, kept)
        for number in self._written():
            if not entry.number - _KEPT < number <= entry.number:
                self._path(number).unlink(missing_ok=True)

    def begin(self, training: int, epoch: int) -> tuple[bytes, bool]:
        """The root of the secrets of an epoch that begins, and whether it was here already.

        It is durable before a neighbour hears of those secrets, and `tidy` erases it. An agent that
        starts again before the first entry finds it here: it has sent no message of the epoch, and
        its neighbours have the keys that follow from it.
        """
        self.training, self.epoch = training, epoch
        facts = {**self._mark(0), "shared": self._shared}
        try:
            _, found = checked_tensors(self.folder / _BEGINNING)
            root = bytes.fromhex(found.pop("root"))
            if found == facts:
                return root, True
        except ResultError:
            pass
        root = os.urandom(KEY_BYTES)
        what = "the beginning of the journal"
        keep_tensors(self.folder / _BEGINNING, {}, {**facts, "root": root.hex()}, what)
        return root, False

    def tidy(self) -> None:
        """Erase the root of secrets that are made, and what writes that were cut off left behind.

        Such a file may hold keys of rounds that are over by now.
        """
        (self.folder / _BEGINNING).unlink(missing_ok=True)
        remove_unfinished(self.folder)

    def position(self) -> dict[str, Any] | None:
        """Where the agent stands, as a document for its neighbours; None where nothing is kept.

        number: the last exchange. finished: whether it needs no message any more. kept: the
        exchanges whose messages can be sent again. The journal belongs to that training from then
        on. While entries are kept another thread may ask: it gets the last one that is durable.
        """
        if self._position is not None:
            return self._position
        try:
            last = self.last()
        except ResultError:
            return None
        kept = [number for number in self._written() if self.frames(number) is not None]
        if not last.finished and last.number not in kept:
            return None
        return self._said(last, kept)

    def last(self) -> Entry:
        """The newest exchange, and whose training it is of; `ResultError` if it cannot be used."""
        tensors, facts = checked_tensors(self._entry)
        if facts["shared"] != self._shared or facts["agent"] != self._agent:
            raise ResultError(f"{self._entry} belongs to another training or agent")
        self.training, self.epoch = facts["training"], facts["epoch"]
        entry = _entry_of(tensors, facts, self._entry)
        return entry if entry.finished else replace(entry, rows=self.frames(entry.number))

    def frames(self, number: int) -> Tensor | None:
        """The messages of an exchange, (neighbours, bytes), to be sent again as they are."""
        try:
            tensors, facts = checked_tensors(self._path(number))
        except ResultError:
            return None
        return tensors["rows"] if facts == self._mark(number) else None

    def at_beginning(self) -> dict[str, Any]:
        """What neighbours are told of an epoch in which nothing was sent and no entry was kept."""
        execution = {"training": self.training, "epoch": self.epoch}
        return {"number": 0, "finished": True, "kept": [], "round": 0, **execution}

    def forget(self) -> None:
        """Remove everything: the training begins a new epoch, or starts over."""
        self._position = None
        self._entry.unlink(missing_ok=True)
        for number in self._written():
            self._path(number).unlink(missing_ok=True)

    def _said(self, entry: Entry, kept: list[int]) -> dict[str, Any]:
        """What neighbours are told of an entry."""
        own = {"number": entry.number, "finished": entry.finished, "kept": kept}
        return {**own, "round": entry.round, "training": self.training, "epoch": self.epoch}

    def _mark(self, number: int) -> dict[str, Any]:
        execution = {"training": self.training, "epoch": self.epoch}
        return {"agent": self._agent, **execution, "number": number}

    def _written(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        names = (_FRAMES.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(name[1]) for name in names if name)

    @property
    def _entry(self) -> Path:
        return self.folder / _ENTRY

    def _path(self, number: int) -> Path:
        return self.folder / f"frames-{number:012d}.safetensors"


def has_journal(folder: str | Path, agent: int) -> bool:
    """Whether an agent has kept an exchange in a folder."""
    return (Path(folder) / f"journal-{agent}" / _ENTRY).exists()


def read_entry(folder: str | Path, agent: int) -> tuple[Entry, int]:
    """The newest exchange in the journal of whatever training, without frames, and its epoch."""
    path = Path(folder) / f"journal-{agent}" / _ENTRY
    tensors, facts = checked_tensors(path)
    return _entry_of(tensors, facts, path), int(facts["epoch"])


def _entry_of(tensors: dict[str, Tensor], facts: Mapping[str, Any], path: Path) -> Entry:
    names = [name for name in tensors if name.startswith(_MEMORY)]
    memory = {name.removeprefix(_MEMORY): tensors.pop(name) for name in names}
    for name, tensor in tensors.items():
        dimension, dtype = facts["shared"].get("dimension"), facts["shared"].get("dtype")
        require_numbers(f"{name} in {path}", tensor, dimension, dtype)
    return Entry(
        facts["number"],
        facts["round"],
        facts["inner"],
        tensors["state"],
        None,
        tensors.get("own"),
        memory,
        facts["key_round"],
        tuple(bytes.fromhex(key) for key in facts["keys"]),
        facts["masks"],
    )
