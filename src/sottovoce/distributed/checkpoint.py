"""What one agent writes down so that all can resume: its own state, nothing of its neighbours.

One safetensors file for each saved round, with the facts as JSON in its header, put in place in one
step. A file holds the agent's model, which is private to it; it holds no key, stepsize or gradient.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sottovoce.distributed.handshake import gather, require_same
from sottovoce.errors import DistributedError, ResultError
from sottovoce.storage.tensors import read_tensors, write_tensors

KEPT = 2
_NAME = re.compile(r"round-(\d{12})\.safetensors")
_LISTED = 64
_OWN = "sottovoce."
"""How the names of an agent's own tensors begin: its state, and what parts of a chain keep."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Where an agent resumes: after `round`, with what it saved beside its state."""

    round: int
    tensors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


class Checkpoints:
    """The checkpoints of one agent in `folder`/agent-<number>.

    shared: the facts that a checkpoint must have been written under. spread: how many rounds the
    fastest agent can be ahead of the slowest, which is the graph's diameter.
    """

    def __init__(
        self, folder: str | Path, agent: int, shared: Mapping[str, Any], spread: int
    ) -> None:
        self.folder = Path(folder) / f"agent-{agent}"
        self._agent, self._shared, self._spread = agent, dict(shared), spread

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
            "agent": self._agent,
            "round": round,
            "shared": self._shared,
            "facts": dict(facts),
        }
        write_tensors(path, {**{_OWN + name: one for name, one in own.items()}, **tensors}, header)
        _sync(self.folder)
        self._prune(round)
        return path

    def rounds(self) -> list[int]:
        """The rounds whose checkpoints can be loaded, ascending; broken files are passed over."""
        return [round for round in self._written() if self._whole(round)]

    def load(self, round: int) -> tuple[dict[str, Tensor], Checkpoint]:
        """The optimizer's own tensors of `round`, and what was saved beside them."""
        tensors, header = read_tensors(self._path(round))
        how, remedy = f"{self._path(round)} was written", "; give another folder or remove this one"
        require_same(self._shared, header.get("shared", {}), how, remedy)
        if header.get("agent") != self._agent or header.get("round") != round:
            raise DistributedError(
                f"{self._path(round)} holds round {header.get('round')} of agent "
                f"{header.get('agent')}, not round {round} of agent {self._agent}"
            )
        names = [name for name in tensors if name.startswith(_OWN)]
        own = {name.removeprefix(_OWN): tensors.pop(name) for name in names}
        return own, Checkpoint(round, tensors, header["facts"])

    def newest_common(self, device: torch.device, timeout: float) -> int:
        """The newest round that every agent can load; 0 where there is none."""
        own = torch.full((_LISTED,), -1, dtype=torch.int64)
        rounds = self.rounds()[-_LISTED:]
        own[: len(rounds)] = torch.tensor(rounds, dtype=torch.int64)
        everybody = gather(own, device, timeout, "the agreement on a checkpoint")
        common = set.intersection(*(set(theirs.tolist()) for theirs in everybody)) - {-1}
        return max(common, default=0)

    def forget_after(self, round: int) -> None:
        """Remove checkpoints newer than `round`: that future will be computed again."""
        for later in self._written():
            if later > round:
                self._path(later).unlink(missing_ok=True)

    def _prune(self, current: int) -> None:
        """Keep the newest two, and more only while a slower agent may still lack a newer one.

        This agent has finished `current`, so every agent has finished current - spread, and has
        saved whatever it was to save before that.
        """
        written = self._written()
        sure = [round for round in written if round <= current - self._spread - 1]
        for old in written[:-KEPT]:
            if sure and old < sure[-1]:
                self._path(old).unlink(missing_ok=True)

    def _written(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        names = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(name[1]) for name in names if name)

    def _whole(self, round: int) -> bool:
        try:
            tensors, header = read_tensors(self._path(round))
        except ResultError:
            return False
        return f"{_OWN}state" in tensors and "shared" in header

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:012d}.safetensors"


def _sync(folder: Path) -> None:
    """Make the folder's list of files durable, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
