"""What crossed which link in which round, and beside it, apart, the truth to score attacks with."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy import sparse
from torch import Tensor

from sottovoce.errors import ResultError, SimulationError
from sottovoce.graphs import Graph
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
class Truth:
    """What no observer sees, kept to score attacks: states x^k, gradients g^k and steps Λ^k g^k."""

    states: Tensor
    gradients: Tensor
    steps: Tensor


@dataclass(frozen=True, eq=False)
class Transcript:
    """The messages of chosen rounds and runs.

    messages: (rounds, runs, links, d), link l carrying what `sender[l]` sent to `receiver[l]`; an
    agent's message to itself never leaves it and is not here. Public facts (graph, algorithm,
    stepsize law) stand beside; `truth` is for scoring alone.
    """

    graph: Graph
    rounds: list[int]
    runs: list[int]
    sender: Tensor
    receiver: Tensor
    messages: Tensor
    truth: Truth
    algorithm: str
    stepsize: str
    start: Tensor | None
    """The public point at or around which the agents of each run started, (runs, d), if any."""
    private_start: float = 0.0
    """Public standard deviation of the private numbers that each agent added to that point."""

    def save(self, stem: str | Path) -> None:
        """Write `stem.json` and `stem.safetensors`. The file holds every agent's secrets."""
        coo = self.graph.mixing.tocoo()
        tensors = {
            "messages": self.messages,
            "sender": self.sender,
            "receiver": self.receiver,
            "truth.states": self.truth.states,
            "truth.gradients": self.truth.gradients,
            "truth.steps": self.truth.steps,
            "mixing.row": torch.from_numpy(coo.coords[0]).long(),
            "mixing.column": torch.from_numpy(coo.coords[1]).long(),
            "mixing.weight": torch.from_numpy(coo.data),
        }
        if self.start is not None:
            tensors["start"] = self.start
        facts: dict[str, Any] = {
            "kind": "transcript",
            "rounds": self.rounds,
            "runs": self.runs,
            "graph": self.graph.name,
            "weights": self.graph.weights,
            "agents": self.graph.agents,
            "algorithm": self.algorithm,
            "stepsize": self.stepsize,
            "private_start": self.private_start,
        }
        save_pair(stem, tensors, facts)

    @classmethod
    def load(cls, stem: str | Path) -> "Transcript":
        """Read what `save` wrote."""
        tensors, facts = load_pair(stem, "transcript")
        try:
            entries = (tensors["mixing.row"].numpy(), tensors["mixing.column"].numpy())
            mixing = sparse.coo_array(
                (tensors["mixing.weight"].numpy(), entries), (facts["agents"],) * 2
            ).tocsr()
            truth = Truth(*(tensors[f"truth.{n}"] for n in ("states", "gradients", "steps")))
            return cls(
                Graph(facts["graph"], mixing, facts["weights"]),
                facts["rounds"],
                facts["runs"],
                tensors["sender"],
                tensors["receiver"],
                tensors["messages"],
                truth,
                facts["algorithm"],
                facts["stepsize"],
                tensors.get("start"),
                facts["private_start"],
            )
        except KeyError as error:
            raise ResultError(f"{stem} is not a whole transcript: {error} is missing") from error

    @classmethod
    def join(cls, parts: "list[Transcript]") -> "Transcript":
        """Put the runs of several transcripts of the same simulation side by side."""
        first = parts[0]
        truths = [part.truth for part in parts]
        return cls(
            first.graph,
            first.rounds,
            [run for part in parts for run in part.runs],
            first.sender,
            first.receiver,
            torch.cat([part.messages for part in parts], 1),
            Truth(
                torch.cat([truth.states for truth in truths], 1),
                torch.cat([truth.gradients for truth in truths], 1),
                torch.cat([truth.steps for truth in truths], 1),
            ),
            first.algorithm,
            first.stepsize,
            None
            if first.start is None
            else torch.cat([p.start for p in parts if p.start is not None]),
            first.private_start,
        )
