"""Who holds which samples: divide one dataset's indices over agents, reproducibly by seed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sottovoce.errors import DataError

Array = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Partition:
    """Which samples each agent holds: `indices[j]` are agent j's, int64, shared with no other.

    `rule` says in words how the division was made.
    """

    indices: list[Tensor]
    rule: str

    @property
    def sizes(self) -> list[int]:
        """How many samples each agent holds."""
        return [len(own) for own in self.indices]

    def table(self, labels: Tensor) -> list[list[int]]:
        """Count the samples of every class at every agent: `table[agent][label]`."""
        classes = int(labels.max()) + 1
        return [torch.bincount(labels[own], minlength=classes).tolist() for own in self.indices]


Rule = Callable[[Tensor, int, int], Partition]


def equal(labels: Tensor, agents: int, seed: int) -> Partition:
    """Give every agent the same number of random samples; sizes differ by at most one."""
    _check(labels, agents)
    order = np.random.default_rng(seed).permutation(len(labels))
    return _partition(np.array_split(order, agents), "equal parts")


def dirichlet(labels: Tensor, agents: int, alpha: float, seed: int) -> Partition:
    """Give agents unlike label mixtures: each label is divided in Dirichlet(alpha) proportions.

    A small alpha gives each label to few agents; a large one approaches equal mixtures. An agent
    that would hold nothing gets one sample from the agent that holds most.
    """
    _check(labels, agents)
    if not 0 < alpha < float("inf"):
        raise DataError(f"Dirichlet alpha is {alpha}; it must be positive and finite")
    generator = np.random.default_rng(seed)
    values = labels.numpy(force=True)
    parts: list[list[int]] = [[] for _ in range(agents)]
    for label in np.unique(values):
        own = generator.permutation(np.flatnonzero(values == label))
        proportions = generator.dirichlet(np.full(agents, alpha))
        cuts = np.rint(np.cumsum(proportions)[:-1] * len(own)).astype(np.int64)
        for part, piece in zip(parts, np.split(own, cuts), strict=True):
            part.extend(piece.tolist())
    for part in parts:
        if not part:
            part.append(max(parts, key=len).pop())
    mixed = [generator.permutation(np.array(part, dtype=np.int64)) for part in parts]
    return _partition(mixed, f"Dirichlet({alpha:g}) over labels")


def by_shards(labels: Tensor, agents: int, shards_per_agent: int, seed: int) -> Partition:
    """Sort by label, cut into equal shards and deal each agent `shards_per_agent` random ones.

    With two shards most agents hold about two labels (McMahan et al. 2017).
    """
    _check(labels, agents)
    shards = agents * shards_per_agent
    if shards_per_agent < 1 or shards > len(labels):
        raise DataError(
            f"{shards_per_agent} shards for each of {agents} agents; between 1 and "
            f"{len(labels) // agents} are accepted for {len(labels)} samples"
        )
    generator = np.random.default_rng(seed)
    mixed = generator.permutation(len(labels))
    by_label = mixed[np.argsort(labels.numpy(force=True)[mixed], kind="stable")]
    pieces = np.array_split(by_label, shards)
    dealt = generator.permutation(shards).reshape(agents, shards_per_agent)
    parts = [generator.permutation(np.concatenate([pieces[i] for i in own])) for own in dealt]
    return _partition(parts, f"{shards_per_agent} label shards per agent")


def by_counts(labels: Tensor, counts: Sequence[int], seed: int) -> Partition:
    """Give agent j `counts[j]` random samples; the rest is held by nobody."""
    _check(labels, len(counts))
    if min(counts) < 1 or sum(counts) > len(labels):
        raise DataError(
            f"counts {', '.join(map(str, counts))} for {len(labels)} samples; each must be at "
            f"least 1 and their sum ({sum(counts)}) at most {len(labels)}"
        )
    order = np.random.default_rng(seed).permutation(len(labels))
    return _partition(np.split(order, np.cumsum(counts))[:-1], "given counts")


def parse_partition(text: str) -> Rule:
    """Turn "equal", "dirichlet:0.5", "shards:2" or "counts:100,200" into a rule.

    The rule is called as `rule(labels, agents, seed)`; counts must be as many as the agents.
    """
    name, _, argument = text.partition(":")
    try:
        if name == "equal" and text == name:
            return equal
        if name == "dirichlet":
            alpha = float(argument)
            return lambda labels, agents, seed: dirichlet(labels, agents, alpha, seed)
        if name == "shards":
            shards = int(argument)
            return lambda labels, agents, seed: by_shards(labels, agents, shards, seed)
        if name == "counts":
            counts = [int(count) for count in argument.split(",")]
            return lambda labels, agents, seed: _counts_for(labels, agents, counts, seed)
    except ValueError:
        pass
    raise DataError(
        f"unknown partition {text!r}; accepted are equal, dirichlet:ALPHA, shards:PER_AGENT and "
        "counts:N1,N2,... with one count per agent"
    )


def _counts_for(labels: Tensor, agents: int, counts: list[int], seed: int) -> Partition:
    if len(counts) != agents:
        raise DataError(f"{len(counts)} counts for {agents} agents; give one count per agent")
    return by_counts(labels, counts, seed)


def _check(labels: Tensor, agents: int) -> None:
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
        raise DataError(
            f"labels have shape {tuple(labels.shape)} and type {labels.dtype}; "
            "a vector of integers is accepted"
        )
    if not 1 <= agents <= len(labels):
        raise DataError(
            f"{len(labels)} samples cannot be divided over {agents} agents; "
            "at least one agent and one sample for each are needed"
        )


def _partition(parts: Sequence[Array], rule: str) -> Partition:
    return Partition([torch.from_numpy(part.astype(np.int64)) for part in parts], rule)
