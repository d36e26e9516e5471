"""Who sees which part of a transcript: eavesdroppers on every link, curious agents at some.

Both know what is public: graph and W, algorithm, stepsize law and mean, model, the starting point
when it is common. A `View` holds that and what the adversary sees, and nothing else: hidden
messages and states are not in it, so that no attack can read them.

What is on a link depends on the links. *plain*: the message. *encrypted*: nothing for an
eavesdropper, the message for its two ends. *masked*: a message plus masks that cancel in the sum
over the senders to one receiver. A receiver therefore learns the sum alone, and so does an
eavesdropper who adds up what it hears: masks keep single messages from both.
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
LINKS = ("plain", "encrypted", "masked")
"""What protects messages on their way."""


@dataclass(frozen=True, eq=False)
class Sums:
    """What masks leave: for some receivers the sum of the messages whose senders are not known.

    receivers: one for each sum; senders: those whose messages are in it, the adversary's own being
    subtracted; values: (rounds, runs, sums, d).
    """

    receivers: list[int]
    senders: list[list[int]]
    values: Tensor


@dataclass(frozen=True, eq=False)
class View(Messages):
    """What one adversary sees of a transcript: the messages on the links that it sees.

    start: (runs, d), the point at which the agents began, or around which they drew private
    starting points of the standard deviation `private_start`; inside: what its own agents know of
    themselves, (rounds, runs, d) each. states and stepsizes are side information about every
    agent, (rounds, runs, agents, d), for an adversary that `knows` it. sums: what is seen of masked
    links. again: by round, (runs, links, d), the second messages of senders that restarted and
    sent a round again from the same state; NaN on links where nothing was repeated.
    """

    start: Tensor | None
    inside: Mapping[int, Truth] = field(default_factory=dict)
    states: Tensor | None = None
    stepsizes: Tensor | None = None
    sums: Sums | None = None
    again: Mapping[int, Tensor] = field(default_factory=dict)

    @property
    def blind(self) -> bool:
        """Whether nothing of any message is seen."""
        return not len(self.sender) and self.sums is None

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
    agent). The paper argues that the coefficients b protect even then. `links` says what protects
    messages on their way (`LINKS`).
    """

    knows: frozenset[str]
    links: str
    hears_again: bool = False
    """Whether its neighbours restarted and sent the attacked round again from the same state."""

    def __init__(self, knows: Iterable[str] = (), links: str = "plain") -> None:
        self.knows, self.links = frozenset([knows] if isinstance(knows, str) else knows), links
        if links not in LINKS:
            raise AttackError(f"links are {links!r}; accepted: {', '.join(LINKS)}")
        if wrong := sorted(self.knows.difference(SIDE_INFORMATION)):
            raise AttackError(
                f"an adversary cannot know {', '.join(wrong)}; accepted side information: "
                f"{', '.join(SIDE_INFORMATION)}"
            )

    def _named(self, name: str) -> str:
        links = "" if self.links == "plain" else f" on {self.links} links"
        return name + links + (f" knowing {' and '.join(sorted(self.knows))}" if self.knows else "")

    @property
    @abstractmethod
    def own(self) -> frozenset[int]:
        """The agents that are its own."""

    def sees(self, receiver: int, sender: int) -> bool:
        """Whether it reads single messages on a link; masked ones only where it sends them."""
        if self.links == "masked":
            return sender in self.own
        if not self.own:
            return self.links == "plain"
        return receiver in self.own or sender in self.own

    def seen_links(self, graph: Graph) -> list[tuple[int, int]]:
        """(receiver, sender) of the links on which it reads messages, in a transcript's order.

        A sum with one unknown sender is that sender's message: masks need two.
        """
        single = {(i, rest[0]) for i, rest in self._unknown(graph) if len(rest) == 1}
        routes = graph.routes()
        ends = zip(routes.receiver.tolist(), routes.sender.tolist(), strict=True)
        return [(i, j) for i, j in ends if i != j and (self.sees(i, j) or (i, j) in single)]

    def seen_sums(self, graph: Graph) -> list[tuple[int, list[int]]]:
        """(receiver, its senders that are not known) of every sum that masks leave."""
        return [(i, rest) for i, rest in self._unknown(graph) if len(rest) > 1]

    def _unknown(self, graph: Graph) -> list[tuple[int, list[int]]]:
        if self.links != "masked":
            return []
        receivers = sorted(self.own) or range(graph.agents)
        return [(i, [j for j in graph.neighbours(i) if j not in self.own]) for i in receivers]

    def targets(self, graph: Graph) -> list[int]:
        """The agents that it can attack: those that are not its own."""
        return [agent for agent in range(graph.agents) if agent not in self.own]

    def view(self, transcript: Transcript, again: Transcript | None = None) -> View:
        """What it sees of a transcript; `again` holds what senders that restarted sent twice."""
        own, truth = sorted(self.own), transcript.truth
        if own and own[-1] >= transcript.graph.agents:
            raise AttackError(
                f"there is no agent {own[-1]}; agents are 0 to {transcript.graph.agents - 1}"
            )
        seen = set(self.seen_links(transcript.graph))
        links = [at for at, ends in enumerate(transcript.ends()) if ends in seen]
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
            self._sums(transcript),
            _twice(again, links),
        )

    def _sums(self, transcript: Transcript) -> Sums | None:
        wanted = self.seen_sums(transcript.graph)
        if not wanted:
            return None
        place = {ends: at for at, ends in enumerate(transcript.ends())}
        found = [
            transcript.messages[:, :, [place[i, j] for j in senders]].double().sum(2)
            for i, senders in wanted
        ]
        receivers, senders = (list(one) for one in zip(*wanted, strict=True))
        return Sums(receivers, senders, torch.stack(found, 2))


class Eavesdropper(Adversary):
    """Hears every link and sees no agent's inside."""

    def __str__(self) -> str:
        return self._named("eavesdropper")

    @property
    def own(self) -> frozenset[int]:
        return frozenset()


class CuriousAgents(Adversary):
    """One agent, or several that collude: messages from and to them, and their own insides."""

    def __init__(
        self, agents: Collection[int], knows: Iterable[str] = (), links: str = "plain"
    ) -> None:
        super().__init__(knows, links)
        self.agents = frozenset(agents)
        if not self.agents or min(self.agents) < 0:
            raise AttackError(
                f"curious agents are {sorted(self.agents)}; accepted: one agent number or more"
            )

    def __str__(self) -> str:
        return self._named("agents:" + ",".join(map(str, sorted(self.agents))))

    @property
    def own(self) -> frozenset[int]:
        return self.agents


class RestartNeighbours(CuriousAgents):
    """Curious agents whose neighbours resumed and sent a round again from the same state."""

    hears_again = True

    def __str__(self) -> str:
        return super().__str__().replace("agents:", "restart:", 1)


ACCEPTED = "eavesdropper, agents:1, agents:1,3 (colluding), restart:1 (its neighbours restarted)"


def parse_adversary(text: str, knows: Iterable[str] = (), links: str = "plain") -> Adversary:
    """Read an adversary from the command line (`ACCEPTED`), and what protects the links."""
    kind, _, rest = text.replace(" ", "").partition(":")
    if kind == "eavesdropper" and not rest:
        return Eavesdropper(knows, links)
    kinds = {"agents": CuriousAgents, "restart": RestartNeighbours}
    if kind in kinds and all(part.isdecimal() for part in rest.split(",")):
        return kinds[kind]([int(part) for part in rest.split(",")], knows, links)
    raise AttackError(f"the adversary {text!r} is not known; accepted: {ACCEPTED}")


def _twice(again: Transcript | None, links: list[int]) -> dict[int, Tensor]:
    """The second messages on seen links, of a round with several exchanges those of the first."""
    if again is None:
        return {}
    first = [link for link in links if link < again.messages.shape[2]]
    return {k: again.messages[at][:, first] for at, k in enumerate(again.rounds)}


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
