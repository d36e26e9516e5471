"""Where an agent stands when those around it change: what it takes along to other neighbours."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from sottovoce.distributed.executions import Executions, Record
from sottovoce.distributed.files import checked_tensors, keep_tensors, require_numbers
from sottovoce.distributed.journal import read_entry

_MEMORY = "memory."


@dataclass(frozen=True, eq=False)
class Standing:
    """The state of an agent after a round, with nothing of its links.

    epoch: of the rounds so far. executions: what is charged for them. memory: what parts of the
    chain remember.
    """

    round: int
    epoch: int
    executions: Executions
    state: Tensor
    memory: Mapping[str, Tensor] = field(default_factory=dict)

    def at(self, round: int, epoch: int) -> "Standing":
        """The same state, from which rounds go on after `round`, as all agreed."""
        return replace(self, round=round, epoch=epoch)

    def write(self, path: Path) -> None:
        """Keep it in a file, which holds the agent's model."""
        tensors = {"state": self.state} | {_MEMORY + n: one for n, one in self.memory.items()}
        facts = {"round": self.round, "epoch": self.epoch, "executions": self.executions.to_json()}
        keep_tensors(path, tensors, facts, "where the agent stands")

    @classmethod
    def read(cls, path: Path) -> "Standing":
        """What `write` kept; `ResultError` if a bit changed."""
        tensors, facts = checked_tensors(path)
        state = tensors.pop("state")
        require_numbers(f"the state in {path}", state, None, None)
        memory = {name.removeprefix(_MEMORY): one for name, one in tensors.items()}
        executions = Executions.from_json(facts["executions"])
        return cls(facts["round"], facts["epoch"], executions, state, memory)

    @classmethod
    def left_behind(cls, folder: Path, agent: int) -> "Standing":
        """Where the journal of an earlier process ends.

        A round that was not finished is charged, because its messages may have left, and the state
        is the one before it.
        """
        entry, epoch = read_entry(folder, agent)
        done = entry.round if entry.finished else entry.round - 1
        noted = Record(folder, agent).read()
        noted = noted if noted.epoch == epoch else noted.begun(epoch, 0)
        return cls(done, epoch, noted.up_to(entry.round), entry.state, dict(entry.memory))
