"""What an observer of messages learns about the steps when everything is linear and Gaussian.

`columns.play` gives the messages that an adversary sees as O = A G + B Z, the same at every
coordinate: all that they say about a step is its Gaussian posterior, and an observer who knows
nothing else about gradients can do no better.

Agents that are joined by links nobody sees, or by numbers of an edge that both ends hold, form a
group. Given the seen messages the groups are
independent, so each is solved on its own; an agent all of whose links are seen is a group of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from sottovoce.errors import AttackError, PrivacyError
from sottovoce.graphs import Graph
from sottovoce.mechanisms import Mechanism, shares_edges
from sottovoce.privacy.adversaries import Adversary, View
from sottovoce.privacy.columns import Array, Prior, Seen, Start, ends_of
from sottovoce.privacy.posterior import Flags, Group, Posterior
from sottovoce.simulation.transcript import Setting


@dataclass(frozen=True, eq=False)
class Estimator:
    """The best linear estimate of an agent's steps: ŝ = Σ weights · messages + start · x⁰.

    rounds: the rounds whose steps are estimated; weights: (rounds, seen rounds, links), the links
    in the order of the view; start: (rounds,), the weight of the public starting point. identified:
    (rounds,), False where the messages leave the step undetermined; the estimate is then the one
    of least norm and means nothing by itself.
    """

    agent: int
    rounds: list[int]
    weights: Array
    start: Array
    identified: Flags

    def apply(self, messages: Tensor, start: Tensor | None = None) -> Tensor:
        """The estimated steps, (rounds, runs, d) float64.

        messages: (seen rounds, runs, links, d); start: (runs, d), the public starting point.
        """
        weights = torch.from_numpy(self.weights)
        used = weights.abs().sum((0, 1)).nonzero().flatten()
        seen = messages[:, :, used].double()
        found = torch.einsum("ktl,trld->krd", weights[:, :, used], seen)
        if self.start.any():
            if start is None:
                raise AttackError("this estimate needs the public starting point; it is not known")
            found += torch.from_numpy(self.start)[:, None, None] * start.double()
        return found


class MessageLaw:
    """All that an adversary can learn about the steps of each agent from what it sees."""

    def __init__(self, seen: Seen) -> None:
        self.seen, self.graph, self.rounds = seen, seen.setting.graph, seen.rounds
        self.stepsizes = seen.stepsizes
        self._edges = shares_edges(seen.setting.algorithm, self.graph)
        self._groups: dict[int, Group] = {}

    @classmethod
    def against(
        cls,
        setting: Setting,
        rounds: int,
        adversary: Adversary,
        *,
        start: Start = "known",
        prior: Prior = "unknown",
    ) -> MessageLaw:
        """The law of rounds 1 to `rounds` as `adversary` sees them, links as in a transcript."""
        links = seen_links(setting.graph, adversary)
        return cls(Seen(setting, list(range(1, rounds + 1)), links, start, prior, adversary.own))

    @classmethod
    def of(
        cls, view: View, *, algorithm: Mechanism | None = None, prior: Prior = "unknown"
    ) -> MessageLaw:
        """The law of what a view holds, so that estimators apply to `view.messages`.

        Its rounds must follow one another. The starting point counts where round 1 is among them.
        algorithm: another chain than the view's own.
        """
        first = view.rounds[0]
        if view.rounds != list(range(first, first + len(view.rounds))):
            raise AttackError(
                f"rounds {view.rounds[:8]} were recorded; accepted: rounds without a gap"
            )
        start: Start = "unknown"
        if first == 1 and view.start is not None:
            start = view.private_start or "known"
        setting = view.setting
        if algorithm is not None:
            setting = replace(setting, algorithm=algorithm)
        count = len(view.sender) // setting.algorithm.exchanges
        links = view.ends(slice(count))
        return cls(Seen(setting, view.rounds, links, start, prior, frozenset(view.inside)))

    @property
    def noisy(self) -> bool:
        """Whether a Gaussian number reaches any message."""
        return any(self._group(agent).noisy for agent in range(self.graph.agents))

    def estimator(self, agent: int, rounds: Sequence[int] | None = None) -> Estimator:
        """The best linear estimate of an agent's steps in `rounds` (all, unless given).

        With flat priors it is the unbiased linear estimate of least variance, with a prior the
        posterior mean: `MessageLaw.of(view).estimator(j, [k]).apply(view.messages, view.start)`.
        """
        wanted = self.rounds if rounds is None else list(rounds)
        if self.seen.published:
            raise PrivacyError(
                "an estimate reads messages alone; published states are accounted for"
            )
        if missing := sorted(set(wanted).difference(self.rounds)):
            raise PrivacyError(
                f"round {missing[0]} is not among those seen, {self.rounds[0]} to {self.rounds[-1]}"
            )
        group = self._group(agent)
        weights, identified = group.solution(agent)
        at = [self.rounds.index(k) for k in wanted]
        on_messages, on_start = group.on_messages(weights[at])
        exchanges = self.seen.setting.algorithm.exchanges
        on_messages = on_messages.reshape(
            len(at), len(self.rounds), exchanges * len(self.seen.links)
        )
        scale = self.stepsizes[at, agent]
        return Estimator(
            agent,
            wanted,
            on_messages * scale[:, None, None],
            on_start * scale * (self.seen.start != "unknown"),
            identified[at],
        )

    def posterior(self, agent: int) -> Posterior:
        """What the messages leave unknown about the agent's steps."""
        return self._group(agent).posterior(agent)

    def posterior_sd(self, agent: int, round: int) -> float:
        """The posterior standard deviation of the agent's step in one round."""
        return float(self.posterior(agent).sd[self.rounds.index(round)])

    def leak(self, agent: int, round: int) -> Array:
        """How much of every other gradient of the group is in the estimate of one: flat."""
        group, at = self._group(agent), self.rounds.index(round)
        found: Array = np.einsum("e,eka->ka", group.solution(agent)[0][at], group.on_steps)
        found[at, group.local[agent]] = 0.0
        return found.reshape(-1)

    def given_all_else(self, agent: int) -> Posterior:
        """What is left unknown of each step where every other step and all starts are known.

        This is the precision that differential privacy needs (`accountant`).
        """
        return self._group(agent).given_all_else(agent)

    def group(self, agent: int) -> list[int]:
        """The agents joined to `agent` by unseen links or shared numbers, itself included."""
        return self._group(agent).agents

    def sees_all_of(self, agents: Sequence[int]) -> bool:
        """Whether every message from and to these agents is seen."""
        links = [end for end in ends_of(self.graph.routes()) if set(agents).intersection(end)]
        return set(self.seen.links).issuperset((i, j) for i, j in links if i != j)

    def _group(self, agent: int) -> Group:
        if not 0 <= agent < self.graph.agents:
            raise PrivacyError(
                f"there is no agent {agent}; agents are 0 to {self.graph.agents - 1}"
            )
        if agent not in self._groups:
            agents = self._joined(agent)
            self._groups |= dict.fromkeys(agents, Group(self.seen, agents))
        return self._groups[agent]

    def _joined(self, agent: int) -> list[int]:
        """The agents joined to `agent` by unseen links or by edges' numbers, ascending."""
        seen, own = set(self.seen.links), self.seen.own
        joined = nx.Graph(
            end
            for end in ends_of(self.graph.routes())
            if end not in seen or (self._edges and not own.intersection(end))
        )
        return sorted(nx.node_connected_component(joined, agent))


def seen_links(graph: Graph, adversary: Adversary) -> list[tuple[int, int]]:
    """(receiver, sender) of the links that an adversary sees, in a transcript's order."""
    if adversary.knows:
        raise PrivacyError(f"{adversary} has side information, which is not accounted for")
    own = adversary.own
    if own and max(own) >= graph.agents:
        raise PrivacyError(f"there is no agent {max(own)}; agents are 0 to {graph.agents - 1}")
    return [(i, j) for i, j in ends_of(graph.routes()) if i != j and adversary.sees(i, j)]
