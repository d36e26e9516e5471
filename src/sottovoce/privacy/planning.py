"""From a target to a setting: the noise that ε asks for, and how to divide it between two kinds.

Independent noise σ and edge noise σ_c protect agent i as one noise of variance 1 / (Σ^-1)_ii with
Σ = σ² S₁ + σ_c² S₂ over the agents that are not the adversary's (S₁ = I, S₂ = L for DECOR, both
played). With the effective noise fixed by ε, each ratio r = σ_c / effective has one least
a = σ / effective. Training feels

    cost(r) = a² K₁ + r² K₂        K = M · (variance on the average) + (variance about it)

where the variance about the average is that of the agents' models once the mixing has settled
(a discrete Lyapunov equation of the played round), averaged over agents. The average forgets its
noise over about M rounds, as far as the loss is curved; `MEMORY` rounds are counted. The optimum
depends little on that number (about its fifth root), and a setting within 1 % of it with the least
edge noise is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from scipy import linalg
from scipy.optimize import brentq

from sottovoce.errors import PrivacyError
from sottovoce.graphs import Graph, as_graph
from sottovoce.mechanisms import DECOR, LDPDSGD, Mechanism, PrivatePDSGD
from sottovoce.mechanisms.fixed_point import require_sums
from sottovoce.privacy.adversaries import Adversary, CuriousAgents, parse_adversary
from sottovoce.privacy.columns import Array, one_round
from sottovoce.privacy.composition import multiplier_for
from sottovoce.privacy.guarantee import Guarantee, ProofSettings, prove
from sottovoce.privacy.revealed import step_noise, stepsize_range
from sottovoce.simulation.transcript import Setting
from sottovoce.stepsizes import Deterministic, Power, Stepsize, as_stepsize

MEMORY = 100
"""Rounds over which the average of the agents keeps its noise."""
MOST_SETS = 5000
"""Sets of colluding agents up to which all of them are tried."""
_SPARE = 1.01
_RATIOS = np.geomspace(0.02, 8.0, 80)
_UNIT = Stepsize(Power(1.0, 0.0), Deterministic())

Make = Callable[[float, float, float, str], Mechanism]


@dataclass(frozen=True)
class Family:
    """A named chain with its noise left open: make(independent, edge, clip, shares)."""

    make: Make
    shares: tuple[str, ...]
    edge: bool = True


FAMILIES: dict[str, Family] = {
    "ldp-dsgd": Family(
        lambda own, edge, clip, shares: LDPDSGD(own, clip, shares), ("keep", "weights"), False
    ),
    "decor": Family(DECOR, ("keep", "weights")),
    "dp-pdsgd": Family(PrivatePDSGD, ("uniform",)),
}


def family(name: str) -> Family:
    """The family of a named chain."""
    if name not in FAMILIES:
        raise PrivacyError(
            f"{name!r} has no noise to plan; accepted: {', '.join(FAMILIES)}, which clip and "
            "add noise; `sottovoce check --algorithm` judges another chain"
        )
    return FAMILIES[name]


def adversaries(text: str, graph: Graph, links: str = "plain") -> list[Adversary]:
    """Who is meant: `eavesdropper`, `agents:1,3`, or `any:2` for every set of two agents."""
    kind, _, number = text.partition(":")
    if kind != "any":
        return [_hearing_once(parse_adversary(text, links=links))]
    if not number.isdecimal() or not 0 < int(number) < graph.agents:
        raise PrivacyError(
            f"the adversary is {text!r}; accepted: any:1 to any:{graph.agents - 1}, eavesdropper, "
            "agents:1,3"
        )
    if math.comb(graph.agents, int(number)) > MOST_SETS:
        raise PrivacyError(
            f"{text} of {graph.agents} agents are {math.comb(graph.agents, int(number)):,} sets; "
            f"up to {MOST_SETS:,} are tried; name the agents, as in agents:1,3"
        )
    sets = combinations(range(graph.agents), int(number))
    return [CuriousAgents(some, links=links) for some in sets]


def _hearing_once(adversary: Adversary) -> Adversary:
    if adversary.hears_again:
        raise PrivacyError(
            f"a plan is made for rounds that are sent once, not for {adversary}; accepted: "
            "eavesdropper, agents:1,3, any:1; `sottovoce bound --samples --adversary restart:1` "
            "says what is proved where a round is sent again"
        )
    return adversary


@dataclass(frozen=True)
class Division:
    """How noise is divided, in units of the effective noise, and what training feels of it.

    independent, edge: the two deviations. shares: the rule for shares. on_average, on_models: the
    deviations that one round puts on the agents' average, and that the agents' models have about
    it, in units of effective noise times stepsize. cost: as above, that of independent noise alone
    under the same rule being `without`.
    """

    independent: float
    edge: float
    shares: str
    on_average: float
    on_models: float
    cost: float
    without: float


class Noises:
    """The two kinds of noise of a family on a graph, played once each."""

    def __init__(self, kind: Family, graph: Graph, who: Sequence[Adversary]) -> None:
        self.kind, self.graph, self.who = kind, graph, who
        self.keep = [[i for i in range(graph.agents) if i not in one.own] for one in who]
        self.own = self._covariances(1.0, 0.0)
        self.edge = self._covariances(0.0, 1.0) if kind.edge else [0 * one for one in self.own]

    def _covariances(self, own: float, edge: float) -> list[Array]:
        setting = Setting(self.graph, self.kind.make(own, edge, 1.0, self.kind.shares[0]), _UNIT)
        each = [step_noise(setting, one.own) for one in self.who]
        return [noise[np.ix_(keep, keep)] for noise, keep in zip(each, self.keep, strict=True)]

    def effective(self, own: float, edge: float) -> list[Array]:
        """√(1 / (Σ^-1)_ii) of every agent that is not the adversary's, for each adversary."""
        found = []
        for first, second in zip(self.own, self.edge, strict=True):
            inverse = np.linalg.inv(own**2 * first + edge**2 * second)
            found.append(1 / np.sqrt(np.diag(inverse)))
        return found

    def independent(self, edge: float) -> float:
        """The least independent noise with which the effective noise is 1 for everybody."""

        def missing(own: float) -> float:
            return float(min(one.min() for one in self.effective(own, edge))) - 1.0

        return 1.0 if missing(1.0) <= 1e-12 else float(brentq(missing, 1e-4, 1.0, xtol=1e-10))

    def felt(self, shares: str) -> tuple[Array, Array]:
        """Variances that training feels of each kind: on the average, and about it."""
        average, about = np.zeros(2), np.zeros(2)
        kinds = ((1.0, 0.0), (0.0, 1.0)) if self.kind.edge else ((1.0, 0.0),)
        m = self.graph.agents
        for place, (own, edge) in enumerate(kinds):
            setting = Setting(self.graph, self.kind.make(own, edge, 1.0, shares), _UNIT)
            forward, noise = one_round(setting)
            apart = noise - noise.mean(0)
            settled = linalg.solve_discrete_lyapunov(forward - 1 / m, apart @ apart.T)
            average[place] = float((noise.mean(0) ** 2).sum())
            about[place] = max(0.0, float(np.trace(settled)) / m)
        return average, about

    def best(self, shares: Sequence[str], memory: int) -> Division:
        """The division, and the rule among `shares`, of which training feels least."""
        ratios = [0.0, *_RATIOS.tolist()] if self.kind.edge else [0.0]
        needed = [self.independent(ratio) for ratio in ratios]
        squares = np.array([np.square(needed), np.square(ratios)])
        found = []
        for rule in shares:
            average, about = self.felt(rule)
            costs = (memory * average + about) @ squares
            at = int(np.argmax(costs <= _SPARE * costs.min()))
            felt = [math.sqrt(float(one @ squares[:, at])) for one in (average, about)]
            cost, without = float(costs[at]), float(costs[0])
            found.append(Division(needed[at], ratios[at], rule, felt[0], felt[1], cost, without))
        return min(found, key=lambda one: one.cost)


def divide(
    name: str,
    graph: Graph | str,
    adversary: str = "eavesdropper",
    shares: str | None = None,
    memory: int = MEMORY,
) -> Division:
    """How a named chain divides its noise best on a graph, against whom."""
    kind, graph = family(name), as_graph(graph)
    noises = Noises(kind, graph, adversaries(adversary, graph))
    return noises.best([shares] if shares else kind.shares, memory)


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is to hold: ε for one record (or a person's `records`) against an adversary.

    algorithm: a name of `FAMILIES`. shares: the rule for shares, chosen unless given. clip: the
    most that one record's gradient may be. training: rounds, samples, batch, δ and stepsize. links:
    what protects messages on their way; the proof counts what it hides as seen.
    """

    epsilon: float
    training: ProofSettings
    graph: Graph
    algorithm: str = "decor"
    adversary: str = "eavesdropper"
    shares: str | None = None
    clip: float = 1.0
    links: str = "plain"

    def __post_init__(self) -> None:
        if self.links == "masked":
            require_sums(self.graph)


@dataclass(frozen=True)
class Plan:
    """A setting that meets a target.

    multiplier: the noise multiplier z of the effective noise z C / B. noise, edge_noise: the
    standard deviations of the parts. guarantees: ε against the target's adversary, then against an
    eavesdropper, the worst single agent and, where there are enough agents, the worst two.
    """

    target: Target
    multiplier: float
    division: Division
    noise: float
    edge_noise: float
    mechanism: Mechanism
    guarantees: dict[str, Guarantee]

    @property
    def epsilon(self) -> float | None:
        """The ε that is reached against the target's adversary."""
        return self.guarantees[self.target.adversary].epsilon

    def to_json(self) -> dict[str, Any]:
        target, training, division = self.target, self.target.training, self.division
        return {
            "kind": "plan",
            "algorithm": str(self.mechanism),
            "graph": target.graph.name,
            "weights": target.graph.weights,
            "adversary": target.adversary,
            "links": target.links,
            "epsilon": self.epsilon,
            "delta": training.delta,
            "unit": self.guarantees[target.adversary].unit,
            "rounds": training.rounds,
            "samples": training.samples,
            "batch_size": training.batch,
            "noise_multiplier": self.multiplier,
            "effective_noise": self.multiplier * target.clip / training.batch,
            "independent_over_effective": division.independent,
            "edge_over_effective": division.edge,
            "noise": self.noise,
            "edge_noise": self.edge_noise,
            "clip": target.clip,
            "shares": division.shares,
            "felt": {
                "on_average": division.on_average,
                "on_models": division.on_models,
                "over_independent": division.cost / division.without,
            },
            "against": {
                who: {"adversary": one.adversary, "epsilon": one.epsilon}
                for who, one in self.guarantees.items()
            },
        }


def meet(target: Target) -> Plan:
    """The setting of a named chain that meets a target with the least noise felt in training."""
    kind, training, graph = family(target.algorithm), target.training, target.graph
    if not 0 < target.clip < math.inf:
        raise PrivacyError(f"the clip is {target.clip}; accepted: a positive number")
    rate = max(training.rate(agent) for agent in range(graph.agents))
    if not training.poisson:
        raise PrivacyError("a plan is made for Poisson samples; fixed batches are not credited")
    multiplier = multiplier_for(
        target.epsilon, training.delta, rate, training.rounds, training.records
    )
    noises = Noises(kind, graph, adversaries(target.adversary, graph, target.links))
    memory = min(MEMORY, training.rounds)
    division = noises.best([target.shares] if target.shares else kind.shares, memory)
    effective = multiplier * target.clip / training.batch * _largest(target, kind)
    own, edge = _upward(division.independent * effective), _upward(division.edge * effective)
    mechanism = kind.make(own, edge, target.clip, division.shares)
    plan = Plan(target, multiplier, division, own, edge, mechanism, {})
    return replace(plan, guarantees=guarantees_of(target, mechanism))


def _largest(target: Target, kind: Family) -> float:
    """The largest stepsize relative to its public mean, in any round of any agent."""
    given = target.training.stepsize
    stepsize = kind.make(1.0, 1.0, 1.0, kind.shares[0]).default_stepsize
    stepsize = stepsize if given is None else as_stepsize(given)
    return max(
        stepsize_range(stepsize, k, agent)[1] / stepsize.mean(k, agent)
        for k in range(1, target.training.rounds + 1)
        for agent in range(target.graph.agents)
    )


def guarantees_of(target: Target, mechanism: Mechanism) -> dict[str, Guarantee]:
    """What a chain proves against the target's adversary, then in the order of `Plan`."""
    graph, found = target.graph, {}
    texts = [target.adversary, "eavesdropper", "any:1", "any:2"]
    for text in dict.fromkeys(texts):
        try:
            who = adversaries(text, graph, target.links)
        except PrivacyError:
            if text == target.adversary:
                raise
            continue
        worst = worst_of(who, mechanism, graph, target.training)
        each = [prove(mechanism, graph, one, target.training) for one in worst]
        found[text] = max(each, key=lambda one: math.inf if one.epsilon is None else one.epsilon)
    return found


def worst_of(
    who: Sequence[Adversary], mechanism: Mechanism, graph: Graph, training: ProofSettings
) -> list[Adversary]:
    """Among these is the adversary with the largest ε: one for each sampling rate of agents.

    Of agents with one rate the one with the least noise has the largest ε.
    """
    rates = np.array([training.rate(agent) for agent in range(graph.agents)])

    def variances(one: Adversary) -> Array:
        keep = [i for i in range(graph.agents) if i not in one.own]
        noise = step_noise(Setting(graph, mechanism, _UNIT), one.own)[np.ix_(keep, keep)]
        found = np.full(graph.agents, np.inf)
        singular = np.linalg.matrix_rank(noise, hermitian=True) < len(keep)
        found[keep] = 0.0 if singular else 1 / np.diag(np.linalg.inv(noise))
        return found

    if len(who) == 1:
        return list(who)
    left = np.array([variances(one) for one in who])
    places = [int(left[:, rates == rate].min(1).argmin()) for rate in np.unique(rates)]
    return [who[place] for place in dict.fromkeys(places)]


def _upward(value: float) -> float:
    """The next number of six digits that is not below."""
    if not value:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(value)) - 5)
    return float(f"{math.ceil(value / step - 1e-9) * step:.6g}")
