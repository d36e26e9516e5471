"""Records with natural owners: what the shipped tables and texts have in common."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

import torch
from torch import Tensor

from sottovoce.errors import DataError
from sottovoce.problems.data.partitions import Partition


@dataclass(frozen=True, eq=False)
class Records:
    """Inputs with their labels, and to which natural group each record belongs.

    inputs: (n, ...); labels: (n,) int64; owner: (n,) int64, a number in `owners`.
    """

    inputs: Tensor
    labels: Tensor
    owner: Tensor
    owners: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels of some records."""
        return self.inputs[chosen], self.labels[chosen]


def by_owner(records: Records, agents: int) -> Partition:
    """Give every agent whole groups: the largest group left goes to the agent with fewest records.

    With more agents than groups nobody could hold the rest, which is refused.
    """
    sizes = torch.bincount(records.owner, minlength=len(records.owners))
    present = int((sizes > 0).sum())
    if not 1 <= agents <= present:
        raise DataError(
            f"{agents} agents for {present} groups of records ({', '.join(records.owners)}); "
            f"accepted are 1 to {present} agents"
        )
    held: list[list[int]] = [[] for _ in range(agents)]
    load = [0] * agents
    for group in sizes.argsort(descending=True, stable=True).tolist():
        least = load.index(min(load))
        held[least].append(group)
        load[least] += int(sizes[group])
    indices = [torch.isin(records.owner, torch.tensor(own)).nonzero()[:, 0] for own in held]
    return Partition(indices, "whole groups")


def shipped(folder: str, sums: Mapping[str, str]) -> Traversable:
    """The package's folder of a dataset, after its files were compared with their SHA-256 sums."""
    place = files("sottovoce.problems.data") / "files" / folder
    for name, known in sums.items():
        file = place / name
        if not file.is_file():
            raise DataError(f"{file} is missing: the package is not installed completely")
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        if found != known:
            raise DataError(f"{file} is corrupt: it has sha256:{found}, expected {known}")
    return place
