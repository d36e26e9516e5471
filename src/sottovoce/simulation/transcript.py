"""What crossed which link in which round, and beside it, apart, the truth to score attacks with."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from scipy import sparse
from torch import Tensor

from sottovoce.errors import ResultError, SimulationError
from sottovoce.graphs import Graph
from sottovoce.mechanisms import Mechanism, mechanism_from
from sottovoce.stepsizes import Stepsize, parse_stepsize
from sottovoce.storage.tensors import load_pair, save_pair


@dataclass(frozen=True)
class Recording:
    """Which rounds of which runs to record."""

    rounds: Collection[int]
    runs: Collection[int] = (0,)

    def __post_init__(self) -> None:
        if not self.rounds or min(self.rounds) < 1 or not self.runs or min(self.runs) < 0:
            raise SimulationError(
                f"a recording of rounds {sorted(self.rounds)[:5]} and runs {sorted(self.runs)[:5]} "
                "is empty or out of range; rounds count from 1, runs from 0"
            )


@dataclass(frozen=True, eq=False)
class Setting:
    """What is public about a training: graph, algorithm, stepsize, how starting points were drawn.

    private_start: the standard deviation of the private numbers that each agent added to the
    public starting point.
    """

    graph: Graph
    algorithm: Mechanism
    stepsize: Stepsize
    private_start: float = 0.0

    def to_file(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and facts from which `from_file` rebuilds the setting."""
        coo = self.graph.mixing.tocoo()
        tensors = {
            "mixing.row": torch.from_numpy(coo.coords[0]).long(),
            "mixing.column": torch.from_numpy(coo.coords[1]).long(),
            "mixing.weight": torch.from_numpy(coo.data),
        }
        facts = {
            "graph": self.graph.name,
            "weights": self.graph.weights,
            "agents": self.graph.agents,
            "algorithm": self.algorithm.spec,
            "stepsize": self.stepsize.spec,
            "private_start": self.private_start,
        }
        return tensors, facts

    @classmethod
    def from_file(
        cls,
        tensors: dict[str, Tensor],
        facts: dict[str, Any],
        algorithm: Mechanism | None = None,
        stepsize: Stepsize | None = None,
    ) -> "Setting":
        """Rebuild what `to_file` gave; objects given take the place of those that were saved."""
        entries = (tensors["mixing.row"].numpy(), tensors["mixing.column"].numpy())
        weights = tensors["mixing.weight"].numpy()
        mixing = sparse.coo_array((weights, entries), (facts["agents"],) * 2).tocsr()
        return cls(
            Graph(facts["graph"], mixing, facts["weights"]),
            mechanism_from(facts["algorithm"], algorithm),
            _stepsize_from(facts["stepsize"], stepsize),
            facts.get("private_start", 0.0),
        )


def _stepsize_from(saved: dict[str, Any] | str, given: Stepsize | None) -> Stepsize:
    """The saved stepsize, which version 0.1 wrote as text, or the one given in its place."""
    if isinstance(saved, str):
        return given or parse_stepsize(saved)
    return Stepsize.from_spec(saved, given)


@dataclass(frozen=True, eq=False)
class Truth:
    """What no observer sees, kept to score attacks: states x^k, gradients g^k and steps Λ^k g^k."""

    states: Tensor
    gradients: Tensor
    steps: Tensor


@dataclass(frozen=True, eq=False)
class Messages:
    """The messages on some links in chosen rounds and runs of a training.

    setting: what is public. messages: (rounds, runs, links, d), link l carrying what `sender[l]`
    sent to `receiver[l]`; an agent's message to itself never leaves it and is not here. With
    several exchanges a round the links stand there once for each.
    """

    setting: Setting
    rounds: list[int]
    runs: list[int]
    sender: Tensor
    receiver: Tensor
    messages: Tensor

    def ends(self, links: Sequence[int] | slice = slice(None)) -> list[tuple[int, int]]:
        """(receiver, sender) of links, of all unless given."""
        ends = self.receiver[links].tolist(), self.sender[links].tolist()
        return list(zip(*ends, strict=True))

    @property
    def graph(self) -> Graph:
        return self.setting.graph

    @property
    def algorithm(self) -> Mechanism:
        return self.setting.algorithm

    @property
    def stepsize(self) -> Stepsize:
        return self.setting.stepsize

    @property
    def private_start(self) -> float:
        return self.setting.private_start


@dataclass(frozen=True, eq=False)
class Transcript(Messages):
    """The messages on all links, whether a simulator or real agents sent them.

    truth: for scoring alone. start: the public point at or around which the agents of each run
    started, (runs, d), if there is one.
    """

    truth: Truth
    start: Tensor | None

    def save(self, stem: str | Path) -> None:
        """Write `stem.json` and `stem.safetensors`. The file holds every agent's secrets."""
        tensors, facts = self.setting.to_file()
        tensors |= {"messages": self.messages, "sender": self.sender, "receiver": self.receiver}
        tensors |= {f"truth.{name}": values for name, values in vars(self.truth).items()}
        if self.start is not None:
            tensors["start"] = self.start
        save_pair(
            stem, tensors, {"kind": "transcript", "rounds": self.rounds, "runs": self.runs, **facts}
        )

    @classmethod
    def load(
        cls,
        stem: str | Path,
        algorithm: Mechanism | None = None,
        stepsize: Stepsize | None = None,
    ) -> "Transcript":
        """Read what `save` wrote, also by version 0.1.

        algorithm, stepsize: needed where a user's own were recorded and cannot be found again.
        """
        tensors, facts = load_pair(stem, "transcript")
        try:
            return cls(
                Setting.from_file(tensors, facts, algorithm, stepsize),
                facts["rounds"],
                facts["runs"],
                tensors["sender"],
                tensors["receiver"],
                tensors["messages"],
                Truth(*(tensors[f"truth.{n}"] for n in ("states", "gradients", "steps"))),
                tensors.get("start"),
            )
        except KeyError as error:
            raise ResultError(f"{stem} is not a whole transcript: {error} is missing") from error

    @classmethod
    def join(cls, parts: "list[Transcript]") -> "Transcript":
        """Put the runs of several transcripts of the same simulation side by side."""
        first, truths = parts[0], [vars(part.truth) for part in parts]
        starts = [part.start for part in parts if part.start is not None]
        return replace(
            first,
            runs=[run for part in parts for run in part.runs],
            messages=torch.cat([part.messages for part in parts], 1),
            truth=Truth(**{n: torch.cat([one[n] for one in truths], 1) for n in truths[0]}),
            start=torch.cat(starts) if starts else None,
        )
