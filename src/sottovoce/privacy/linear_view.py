"""What an observer of messages learns about the steps when everything is linear and Gaussian.

At every coordinate alike, agent j with state x_j and step s_j sends neighbour i

    v_ij = w_ij x_j - b_ij (s_j + λ̄_j τ_j ξ_j) - λ̄_j σ_j n_ij,      x_i <- Σ_{j in N_i} v_ij

with public W, b and λ̄, ξ_j standard normal, n_ij = z_ij - mean_{l in N_j} z_lj with z standard
normal, so that Σ_i n_ij = 0: `ZeroSumDSGD` has σ, `NoisyDSGD` τ, `DSGD` and `PDSGD` neither. The
messages an adversary sees are then y = Aθ + noise with θ the starting points and all steps, and
all that they say about a step is its Gaussian posterior: whoever knows nothing else about gradients
can do no better. Random coefficients count at their mean; they are not Gaussian and get no credit.

Agents that are joined by links nobody sees form a group. Given the seen messages the groups are
independent, so each is solved on its own; an agent all of whose links are seen is a group of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import sparse
from torch import Tensor

from sottovoce.errors import AttackError, PrivacyError
from sottovoce.graphs import Graph
from sottovoce.mechanisms import Algorithm, NoisyDSGD, ZeroSumDSGD
from sottovoce.privacy.adversaries import Adversary, CuriousAgents, View
from sottovoce.privacy.linear_group import Array, Flags, Group, Prior, Start
from sottovoce.privacy.linear_group import Posterior as Posterior
from sottovoce.privacy.linear_group import ShareModel as ShareModel
from sottovoce.stepsizes import Stepsize


def share_model(graph: Graph, algorithm: Algorithm) -> ShareModel:
    """The linear-Gaussian part of an algorithm; random coefficients stand at their mean."""
    zero_sum = algorithm.noise if isinstance(algorithm, ZeroSumDSGD) else 0.0
    on_step = algorithm.noise if isinstance(algorithm, NoisyDSGD) else 0.0
    return ShareModel(
        algorithm.expected_coefficients(graph.routes()).numpy(),
        np.full(graph.agents, zero_sum),
        np.full(graph.agents, on_step),
    )


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


class LinearView:
    """All that an adversary on given links can learn about the steps of each agent.

    graph, shares: see `share_model`. stepsizes: the public means λ̄, (rounds, agents), all above 0.
    sender, receiver: (links,), the seen links, in the order of the columns of every estimator.
    first_round: the round that the first row of `stepsizes` belongs to. start: what the adversary
    knows of the states in that round: "known" (a common public point), "unknown" (nothing), or the
    standard deviation of private jitter around a public point. prior: "unknown" (nothing is known
    about any step) or a number τ: steps are Gaussian of mean 0 and standard deviation τ λ̄.
    """

    def __init__(
        self,
        graph: Graph,
        shares: ShareModel,
        stepsizes: ArrayLike,
        sender: Sequence[int],
        receiver: Sequence[int],
        *,
        first_round: int = 1,
        start: Start = "unknown",
        prior: Prior = "unknown",
    ) -> None:
        self.graph, self.shares = graph, shares
        self.stepsizes: Array = np.asarray(stepsizes, dtype=np.float64)
        if self.stepsizes.ndim != 2 or self.stepsizes.shape[1] != graph.agents:
            raise PrivacyError(
                f"mean stepsizes have the shape {self.stepsizes.shape}; accepted: rounds x "
                f"{graph.agents} agents"
            )
        if not (np.isfinite(self.stepsizes).all() and (self.stepsizes > 0).all()):
            raise PrivacyError("a mean stepsize is not positive; the accountant needs all above 0")
        self.rounds = list(range(first_round, first_round + len(self.stepsizes)))
        self.links = list(zip(receiver, sender, strict=True))
        self.start, self.prior = start, prior
        for name, value, words in (
            ("start", start, ("known", "unknown")),
            ("prior", prior, ("unknown",)),
        ):
            number = not isinstance(value, str)
            if value not in words and not (number and 0 <= float(value) < math.inf):
                raise PrivacyError(
                    f"{name} is {value!r}; accepted: {', '.join(words)} or a standard deviation"
                )
        self._groups: dict[int, Group] = {}

    @classmethod
    def against(
        cls,
        graph: Graph,
        algorithm: Algorithm,
        stepsize: Stepsize,
        rounds: int,
        adversary: Adversary,
        *,
        start: Start = "known",
        prior: Prior = "unknown",
    ) -> LinearView:
        """Model rounds 1 to `rounds` as `adversary` sees them; links in a transcript's order."""
        sender, receiver = seen_links(graph, adversary)
        shares = share_model(graph, algorithm)
        means = mean_stepsizes(graph, stepsize, range(1, rounds + 1))
        return cls(graph, shares, means, sender, receiver, start=start, prior=prior)

    @classmethod
    def of(
        cls,
        view: View,
        *,
        shares: ShareModel | None = None,
        prior: Prior = "unknown",
    ) -> LinearView:
        """Model what a view holds, so that estimators apply to `view.messages`.

        Its rounds must follow one another. The starting point counts where round 1 is among them.
        """
        first = view.rounds[0]
        if view.rounds != list(range(first, first + len(view.rounds))):
            raise AttackError(
                f"rounds {view.rounds[:8]} were recorded; accepted: rounds without a gap"
            )
        start: Start = "unknown"
        if first == 1 and view.start is not None:
            start = view.private_start or "known"
        return cls(
            view.graph,
            shares or share_model(view.graph, view.algorithm),
            mean_stepsizes(view.graph, view.stepsize, view.rounds),
            view.sender.tolist(),
            view.receiver.tolist(),
            first_round=first,
            start=start,
            prior=prior,
        )

    def estimator(self, agent: int, rounds: Sequence[int] | None = None) -> Estimator:
        """The best linear estimate of an agent's steps in `rounds` (all, unless given).

        With flat priors it is the unbiased linear estimate of least variance, with a prior the
        posterior mean: `LinearView.of(view).estimator(j, [k]).apply(view.messages, view.start)`.
        """
        wanted = self.rounds if rounds is None else list(rounds)
        if missing := sorted(set(wanted).difference(self.rounds)):
            raise PrivacyError(
                f"round {missing[0]} is not among those seen, {self.rounds[0]} to {self.rounds[-1]}"
            )
        group = self._group(agent)
        weights, identified = group.solution(agent)
        at = [self.rounds.index(k) for k in wanted]
        on_messages, on_start = group.on_messages(weights[at])
        scale = self.stepsizes[at, agent]
        return Estimator(
            agent,
            wanted,
            on_messages * scale[:, None, None],
            on_start * scale * (self.start != "unknown"),
            identified[at],
        )

    def posterior(self, agent: int) -> Posterior:
        """What the messages leave unknown about the agent's steps."""
        return self._group(agent).posterior(agent)

    def posterior_sd(self, agent: int, round: int) -> float:
        """The posterior standard deviation of the agent's step in one round."""
        return float(self.posterior(agent).sd[self.rounds.index(round)])

    def given_all_else(self, agent: int) -> Posterior:
        """What is left unknown of each step for whoever knows every other step and all starts.

        This is the precision that differential privacy needs (`accountant`).
        """
        return self._group(agent).given_all_else(agent)

    def group(self, agent: int) -> list[int]:
        """The agents joined to `agent` by unseen links, itself included."""
        return self._group(agent).agents

    def _group(self, agent: int) -> Group:
        if not 0 <= agent < self.graph.agents:
            raise PrivacyError(
                f"there is no agent {agent}; agents are 0 to {self.graph.agents - 1}"
            )
        if agent not in self._groups:
            routes, seen = self.graph.routes(), set(self.links)
            ends = zip(routes.receiver.tolist(), routes.sender.tolist(), strict=True)
            unseen = np.array([pair for pair in ends if pair not in seen]).T
            joined = sparse.coo_array((np.ones(unseen.shape[1]), unseen), (self.graph.agents,) * 2)
            _, label = sparse.csgraph.connected_components(joined, directed=False)
            agents = np.flatnonzero(label == label[agent]).tolist()
            group = Group(
                self.graph,
                self.shares,
                self.links,
                agents,
                self.rounds,
                self.stepsizes[:, agents],
                self.start,
                self.prior,
            )
            self._groups |= dict.fromkeys(agents, group)
        return self._groups[agent]


def seen_links(graph: Graph, adversary: Adversary) -> tuple[list[int], list[int]]:
    """Senders and receivers of the links an adversary sees, in a transcript's order.

    Whoever holds agents sees the links from and to them; whoever holds none sees all.
    """
    if adversary.knows:
        raise PrivacyError(f"{adversary} has side information, which is not accounted for")
    own = adversary.agents if isinstance(adversary, CuriousAgents) else frozenset()
    if own and max(own) >= graph.agents:
        raise PrivacyError(f"there is no agent {max(own)}; agents are 0 to {graph.agents - 1}")
    routes = graph.routes()
    pairs = zip(routes.sender.tolist(), routes.receiver.tolist(), strict=True)
    seen = [(j, i) for j, i in pairs if i != j and (not own or own & {i, j})]
    return [j for j, _ in seen], [i for _, i in seen]


def mean_stepsizes(graph: Graph, stepsize: Stepsize, rounds: Sequence[int]) -> Array:
    """The public means λ̄, (rounds, agents)."""
    return np.array([[stepsize.mean(k, j) for j in range(graph.agents)] for k in rounds])
