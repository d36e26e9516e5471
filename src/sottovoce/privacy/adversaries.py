"""Who sees which part of a transcript: eavesdroppers on every link, curious agents at some.

Both know what is public: graph and W, algorithm, stepsize law and mean, model, the starting point
when it is common. A `View` holds that and what the adversary sees, and nothing else: hidden
messages and states are not in it, so that no attack can read them.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sottovoce.errors import AttackError
from sottovoce.graphs import Graph
from sottovoce.simulation.transcript import Messages, Transcript, Truth

SIDE_INFORMATION = ("state", "stepsizes")


@dataclass(frozen=True, eq=False)
class View(Messages):
    """What one adversary sees of a transcript: the messages on the links that it sees.

    start: (runs, d), the point at which the agents began, or around which they drew private
    starting points of the standard deviation `private_start`; inside: what its own agents know of
    themselves, (rounds, runs, d) each. states and stepsizes are side information about every
    agent, (rounds, runs, agents, d), for an adversary that `knows` it.
    """

    start: Tensor | None
    inside: Mapping[int, Truth] = field(default_factory=dict)
    states: Tensor | None = None
    stepsizes: Tensor | None = None

    def position(self, round: int, attack: str) -> int:
        """Where a round lies in the tensors; refused when it was not recorded."""
        if round not in self.rounds:
            shown = ", ".join(map(str, self.rounds[:8])) + (", ..." if len(self.rounds) > 8 else "")
            raise AttackError(f"{attack} needs round {round}; the adversary saw rounds {shown}")
        return self.rounds.index(round)

    def links_from(self, agent: int) -> list[int]:
        """Positions of the seen links on which `agent` sends."""
        return (self.sender == agent).nonzero().flatten().tolist()

    def links_to(self, agent: int) -> list[int]:
        """Positions of the seen links on which `agent` receives."""
        return (self.receiver == agent).nonzero().flatten().tolist()

    def sees_all_links_of(self, agent: int) -> bool:
        """Whether every message that the agent sends or receives is seen."""
        degree = len(self.graph.neighbours(agent))
        return len(self.links_from(agent)) == degree == len(self.links_to(agent))

    def weights(self, links: list[int]) -> Tensor:
        """w_ij of links, (len(links),) in float64."""
        weights = [float(self.graph.mixing[ends]) for ends in self.ends(links)]
        return torch.tensor(weights, dtype=torch.float64)


class Adversary(ABC):
    """Somebody who follows the protocol, if part of it, and wants to know more.

    `knows` adds side information: "state" (x_j of every agent) and "stepsizes" (Λ_j of every
    agent). The paper argues that the coefficients b protect even then.
    """

    knows: frozenset[str]

    def __init__(self, knows: Iterable[str] = ()) -> None:
        self.knows = frozenset([knows] if isinstance(knows, str) else knows)
        if wrong := sorted(self.knows.difference(SIDE_INFORMATION)):
            raise AttackError(
                f"an adversary cannot know {', '.join(wrong)}; accepted side information: "
                f"{', '.join(SIDE_INFORMATION)}"
            )

    @property
    @abstractmethod
    def own(self) -> frozenset[int]:
        """The agents that are its own."""

    def sees(self, receiver: int, sender: int) -> bool:
        """Whether it sees a link; one without agents of its own hears all, others their own."""
        return not self.own or receiver in self.own or sender in self.own

    def targets(self, graph: Graph) -> list[int]:
        """The agents that it can attack: those that are not its own."""
        return [agent for agent in range(graph.agents) if agent not in self.own]

    def view(self, transcript: Transcript) -> View:
        """What it sees of a transcript."""
        own, truth = sorted(self.own), transcript.truth
        if own and own[-1] >= transcript.graph.agents:
            raise AttackError(
                f"there is no agent {own[-1]}; agents are 0 to {transcript.graph.agents - 1}"
            )
        links = [at for at, ends in enumerate(transcript.ends()) if self.sees(*ends)]
        return View(
            transcript.setting,
            list(transcript.rounds),
            list(transcript.runs),
            transcript.sender[links],
            transcript.receiver[links],
            transcript.messages[:, :, links],
            transcript.start,
            {j: Truth(*(one[:, :, j] for one in vars(truth).values())) for j in own},
            truth.states if "state" in self.knows else None,
            _stepsizes(transcript) if "stepsizes" in self.knows else None,
        )


class Eavesdropper(Adversary):
    """Hears every link and sees no agent's inside."""

    def __str__(self) -> str:
        return _named("eavesdropper", self.knows)

    @property
    def own(self) -> frozenset[int]:
        return frozenset()


class CuriousAgents(Adversary):
    """One agent, or several that collude: messages from and to them, and their own insides."""

    def __init__(self, agents: Collection[int], knows: Iterable[str] = ()) -> None:
        super().__init__(knows)
        self.agents = frozenset(agents)
        if not self.agents or min(self.agents) < 0:
            raise AttackError(
                f"curious agents are {sorted(self.agents)}; accepted: one agent number or more"
            )

    def __str__(self) -> str:
        return _named("agents:" + ",".join(map(str, sorted(self.agents))), self.knows)

    @property
    def own(self) -> frozenset[int]:
        return self.agents


def parse_adversary(text: str, knows: Iterable[str] = ()) -> Adversary:
    """Read an adversary from the command line: `eavesdropper` or `agents:1,3`."""
    kind, _, rest = text.replace(" ", "").partition(":")
    if kind == "eavesdropper" and not rest:
        return Eavesdropper(knows)
    if kind == "agents" and all(part.isdecimal() for part in rest.split(",")):
        return CuriousAgents([int(part) for part in rest.split(",")], knows)
    raise AttackError(f"the adversary {text!r} is not known; accepted: eavesdropper, agents:1,3")


def _named(name: str, knows: frozenset[str]) -> str:
    return name + (f" knowing {' and '.join(sorted(knows))}" if knows else "")


def _stepsizes(transcript: Transcript) -> Tensor:
    """Λ = step / gradient; where the gradient is 0 its stepsize changes nothing and counts as 0.

    Public stepsizes are not divided out, so that noise on the gradient stays in the estimate.
    """
    steps, gradients = transcript.truth.steps, transcript.truth.gradients
    public, agents = transcript.stepsize, range(transcript.graph.agents)
    if any(public.std(round, agent) for round in transcript.rounds for agent in agents):
        return torch.where(gradients == 0, 0.0, steps / gradients)
    means = [[public.mean(round, agent) for agent in agents] for round in transcript.rounds]
    return steps.new_tensor(means)[:, None, :, None].expand_as(steps)
