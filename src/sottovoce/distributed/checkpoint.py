"""What one agent writes down so that all can resume: its own state, nothing of its neighbours.

One safetensors file for each saved round, with the facts as JSON in its header and a digest of
both, put in place in one step. A file holds the agent's model, which is private to it; it holds no
key, stepsize or gradient.
"""

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from sottovoce.distributed.executions import Executions
from sottovoce.distributed.files import checked_tensors, keep_tensors, require_numbers
from sottovoce.distributed.handshake import require_same
from sottovoce.errors import DistributedError, ResultError

KEPT = 2
_NAME = re.compile(r"round-(\d{12})\.safetensors")
_START = "start.safetensors"
_OWN = "sottovoce."
"""How the names of an agent's own tensors begin: its state, and what parts of a chain keep."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Where an agent resumes: after `round`, with what it saved beside its state."""

    round: int
    tensors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


class Mark(NamedTuple):
    """Which execution a checkpoint is of: epoch, the round after which it was saved, training."""

    epoch: int
    round: int
    training: int = 0


@dataclass(frozen=True, eq=False)
class Saved:
    """All that a checkpoint holds: the optimizer's own tensors, and what the user keeps beside."""

    own: dict[str, Tensor]
    beside: Checkpoint
    training: int
    executions: Executions


class Checkpoints:
    """The checkpoints of one agent in `folder`/agent-<number>.

    shared: the facts that a checkpoint must have been written under. spread: how many rounds the
    fastest agent can be ahead of the slowest, which is the graph's diameter. training, epoch: what
    is written to new ones.
    """

    def __init__(
        self, folder: str | Path, agent: int, shared: Mapping[str, Any], spread: int
    ) -> None:
        self.folder = Path(folder) / f"agent-{agent}"
        self._agent, self._shared, self._spread = agent, dict(shared), spread
        self.training, self.epoch, self.executions = 0, 0, Executions()

    def save(
        self,
        round: int,
        own: Mapping[str, Tensor],
        tensors: Mapping[str, Tensor],
        facts: Mapping[str, Any],
    ) -> Path:
        """Write the checkpoint of `round`, then remove those that nobody can need any more.

        own: what the optimizer needs, its `state` among it; tensors: what the user keeps beside.
        """
        if taken := [name for name in tensors if name.startswith(_OWN)]:
            raise DistributedError(
                f"the tensor name {taken[0]!r} is taken; accepted: names that do not begin with "
                f"{_OWN!r}"
            )
        path = self._path(round)
        header = {
            **{"agent": self._agent, "training": self.training, "epoch": self.epoch},
            **{"round": round, "executions": self.executions.to_json()},
            **{"shared": self._shared, "facts": dict(facts)},
        }
        everything = {**{_OWN + name: one for name, one in own.items()}, **tensors}
        keep_tensors(path, everything, header, f"the checkpoint of round {round}")
        self._prune(round)
        return path

    def marks(self) -> list[Mark]:
        """What can be loaded, ascending; files that were altered are passed over with a warning."""
        return sorted(mark for round in self.written() if (mark := self._mark(round)))

    def rounds(self) -> list[int]:
        """The rounds that can be loaded, ascending."""
        return sorted(mark.round for mark in self.marks())

    def load(self, round: int) -> Saved:
        """All that was saved after `round`; refused unless it belongs to this training."""
        tensors, header = self._read(round)
        how, remedy = f"{self._path(round)} was written", "; give another folder or remove this one"
        require_same(self._shared, header.get("shared", {}), how, remedy)
        if header["agent"] != self._agent or header["round"] != round:
            raise DistributedError(
                f"{self._path(round)} holds round {header['round']} of agent {header['agent']}, "
                f"not round {round} of agent {self._agent}"
            )
        names = [name for name in tensors if name.startswith(_OWN)]
        own = {name.removeprefix(_OWN): tensors.pop(name) for name in names}
        executions = Executions.from_json(header["executions"])
        beside = Checkpoint(round, tensors, header["facts"])
        return Saved(own, beside, header["training"], executions)

    def fault(self, marks: list[Mark]) -> str:
        """Why the newest of these cannot be resumed from here; nothing if it can."""
        try:
            for mark in marks[-1:]:
                self.load(mark.round)
        except DistributedError as error:
            return str(error)
        return ""

    def forget(self) -> None:
        """Remove every checkpoint: the training starts over."""
        for round in self.written():
            self._path(round).unlink(missing_ok=True)

    def written(self) -> list[int]:
        """The rounds of all files, whether or not they can be loaded, ascending."""
        if not self.folder.is_dir():
            return []
        names = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        start = [0] if (self.folder / _START).exists() else []
        return start + sorted(int(name[1]) for name in names if name)

    def _prune(self, current: int) -> None:
        """Keep the newest two, and more only while a slower agent may still lack a newer one.

        This agent has finished `current`, so every agent has finished current - spread, and has
        saved whatever it was to save before that in this epoch. Checkpoints of an earlier epoch are
        older than all of this one.
        """
        marks = sorted(Mark(self._epoch_of(round), round) for round in self.written())
        certain = current - self._spread - 1
        sure = [mark for mark in marks if mark.epoch == self.epoch and mark.round <= certain]
        for old in marks[:-KEPT]:
            if sure and old < sure[-1]:
                self._path(old.round).unlink(missing_ok=True)

    def _mark(self, round: int) -> Mark | None:
        try:
            header = self._read(round)[1]
            return Mark(header["epoch"], round, header["training"])
        except ResultError as error:
            _log.warning("%s; it is passed over", error)
            return None

    def _epoch_of(self, round: int) -> int:
        """The epoch of a file, without reading its tensors; -1 where it cannot be read."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self._path(round), framework="pt") as file:
                return int(json.loads((file.metadata() or {})["facts"])["epoch"])
        except (OSError, SafetensorError, ValueError, KeyError):
            return -1

    def _read(self, round: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and header of a file whose digest, shapes, types and numbers are in order."""
        tensors, header = checked_tensors(self._path(round))
        dimension, dtype = self._shared.get("dimension"), self._shared.get("dtype")
        if header.get("shared") == self._shared:
            require_numbers(
                f"the state in {self._path(round)}", tensors[f"{_OWN}state"], dimension, dtype
            )
        for name, tensor in tensors.items():
            if name.startswith(_OWN):
                require_numbers(f"{name} in {self._path(round)}", tensor, None, None)
        return tensors, header

    def _path(self, round: int) -> Path:
        return self.folder / (f"round-{round:012d}.safetensors" if round else _START)
