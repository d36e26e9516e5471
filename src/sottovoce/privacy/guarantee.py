"""What is proved for one record: (ε, δ) for any chain, graph, stepsize and adversary.

`prove` gives the adversary everything but the noise on the steps (`revealed`), so that rounds
compose adaptively whatever the graph does with the steps later. A round then is a Gaussian release
whose multiplier is the noise left on a gradient, divided by the most that one record contributes
to it, C / B. With Poisson samples the rate q = B / n is credited; dp-accounting composes.

Where that view leaves no noise, as with noise that sums to zero over a neighbourhood, the figure of
the messages alone is shown (`message_law`). It takes the gradients as given beforehand, credits no
sampling and is called non-adaptive, not proved. Weaker views, such as encrypted links or masked
sums, inherit the ε of the view above.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy.stats import binom

from sottovoce.errors import PrivacyError
from sottovoce.graphs import Graph, as_graph
from sottovoce.mechanisms import Mechanism, as_mechanism, check
from sottovoce.privacy.adversaries import Adversary, Eavesdropper, parse_adversary
from sottovoce.privacy.columns import Array, Seen
from sottovoce.privacy.composition import Release, epsilon_of, gaussian_epsilon
from sottovoce.privacy.message_law import MessageLaw, seen_links
from sottovoce.privacy.promise import AGAIN
from sottovoce.privacy.promise import AgentGuarantee as AgentGuarantee
from sottovoce.privacy.promise import Guarantee as Guarantee
from sottovoce.privacy.promise import ProofSettings as ProofSettings
from sottovoce.privacy.revealed import reveal, stepsize_range
from sottovoce.simulation.transcript import Setting
from sottovoce.stepsizes import as_stepsize

_MOST_ROWS = 3000
"""Rounds times agents up to which the law of the messages is computed."""
_DISTINCT = 8
_WIDTH = 0.005
"""Where rounds have many multipliers, they are rounded down to steps of this ratio."""


def prove(
    algorithm: Mechanism | str,
    graph: Graph | str,
    adversary: Adversary | str = "eavesdropper",
    settings: ProofSettings | None = None,
) -> Guarantee:
    """What is proved for every agent that the adversary does not hold, and for whom nothing is.

    A curious agent counts as one that overhears everything and holds the numbers of its edges. For
    the neighbour of an agent that restarts, one round counts as executed twice.
    """
    if settings is None:
        raise PrivacyError("a guarantee needs ProofSettings: rounds, samples and batch")
    mechanism, graph = as_mechanism(algorithm), as_graph(graph)
    adversary = parse_adversary(adversary) if isinstance(adversary, str) else adversary
    if adversary.hears_again and not (settings.repeated or settings.redone):
        settings = replace(settings, repeated=1)
    given = settings.stepsize
    stepsize = mechanism.default_stepsize if given is None else as_stepsize(given)
    if len(settings.counts) not in (1, graph.agents):
        raise PrivacyError(
            f"samples are given for {len(settings.counts)} agents and {graph.name} has "
            f"{graph.agents}; accepted: one number, or one for each agent"
        )
    check(mechanism, graph)
    seen_links(graph, adversary)
    return _Proof(Setting(graph, mechanism, stepsize), adversary, settings).guarantee()


class _Proof:
    """One training against one adversary."""

    def __init__(self, setting: Setting, adversary: Adversary, settings: ProofSettings) -> None:
        self.setting, self.adversary, self.settings = setting, adversary, settings
        bound = setting.algorithm.bound
        self.clip = None if bound is None else float(bound.norm)
        self.rounds = list(range(1, settings.rounds + 1))
        self.targets = adversary.targets(setting.graph)
        self.reasons: list[str] = []

    def guarantee(self) -> Guarantee:
        agents = self._refused() or [self._agent(agent) for agent in self.targets]
        settings = self.settings
        return Guarantee(
            str(self.setting.algorithm),
            self.setting.graph.name,
            str(self.setting.stepsize),
            str(self.adversary),
            settings.rounds,
            settings.repeated,
            settings.delta,
            settings.records,
            settings.batch,
            self.clip,
            settings.poisson,
            tuple(agents),
            tuple(self.reasons),
            settings.redone,
        )

    def _refused(self) -> list[AgentGuarantee]:
        if self.clip is None:
            self.reasons.append(
                f"{self.setting.algorithm} does not bound what one record contributes: put a clip "
                "in front, such as clip:1.0"
            )
            return [AgentGuarantee(agent, "refused") for agent in self.targets]
        own, settings = self.adversary.own, self.settings
        self.view = reveal(self.setting, self.rounds, own)
        self.bare = reveal(self.setting, self.rounds, own, False) if settings.repeated else None
        if self.view.faults:
            self.reasons.append(
                "Rounds are not independent where everything is revealed: "
                + "; ".join(self.view.faults)
                + ". Sampling is not credited."
            )
        self.again, self.delta = 1, settings.delta
        if not settings.poisson:
            self._count_repetitions()
        return []

    def _count_repetitions(self) -> None:
        """Fixed batches are drawn with replacement: how often one record counts in a round."""
        settings = self.settings
        executed = settings.rounds + settings.redone + settings.repeated
        share = AGAIN * settings.delta / executed
        most = max(settings.rate(agent) for agent in self.targets) / settings.batch
        # A batch has room for no more copies than it has places.
        self.again = min(settings.batch, int(binom.isf(share, settings.batch, most)) + 1)
        self.delta = (1 - AGAIN) * settings.delta
        self.reasons.append(
            "Batches are not Poisson samples, so that sampling is not credited: every round counts "
            f"in full, with one record drawn up to {self.again} time{'s' * (self.again > 1)}. Such "
            "batches leave no room for adding a record: what is hidden is whether its contribution "
            "is set to 0 in the same batches; to hide which of two records is there, double the "
            "noise."
        )

    def _agent(self, agent: int) -> AgentGuarantee:
        settings, clip = self.settings, self.clip or 0.0
        alone = not set(self.setting.graph.neighbours(agent)).intersection(self.targets)
        noise = self.view.noise[:, agent]
        if self.view.faults or not noise.all():
            return self._from_messages(agent, alone)
        scale = settings.batch / (clip * self.again)
        rate = settings.rate(agent) if settings.poisson else 1.0
        releases = _releases(noise * scale, rate)
        if settings.redone:
            least = min(one.multiplier for one in releases)
            releases += (Release(least, rate, settings.redone),)
        if self.bare is not None:
            again = float(self.bare.noise[:, agent].min()) * scale
            if not again:
                self.reasons.append(
                    f"A repeated round shows the edge noise of agent {agent}: nothing is left."
                )
                return AgentGuarantee(agent, "unprotected", neighbours_collude=alone)
            # Both times count with edges' numbers known; the first time stays in, too.
            releases += (Release(again, rate, 2 * settings.repeated),)
        epsilon = epsilon_of(releases, self.delta, settings.records)
        least = min(one.multiplier for one in releases)
        return AgentGuarantee(agent, "proved", epsilon, least, releases, alone)

    def _from_messages(self, agent: int, alone: bool) -> AgentGuarantee:
        settings = self.settings
        if not all(part.linear and part.by_coordinate for part in self.setting.algorithm.parts):
            self._once(
                "The chain is not linear at every coordinate alike: the law of its messages is not "
                "known."
            )
            return AgentGuarantee(agent, "refused", neighbours_collude=alone)
        total = float(self._total_mu(agent))
        if math.isinf(total):
            return AgentGuarantee(agent, "unprotected", neighbours_collude=alone)
        if self._law().rounds != self.rounds or settings.repeated or settings.redone:
            self._once(
                "The steps have no noise of their own; the law of the messages is computed for up "
                f"to {_MOST_ROWS} rounds times agents, without repeated rounds."
            )
            return AgentGuarantee(agent, "refused", neighbours_collude=alone)
        self._once(
            "Gradients depend on states that the messages do not show, and their noise is not "
            "independent between rounds: the figure counts every round in full and takes the "
            "gradients as given beforehand."
        )
        epsilon = gaussian_epsilon(total * settings.records, self.delta)
        return AgentGuarantee(agent, "non-adaptive", epsilon, 1 / total, (), alone)

    def _total_mu(self, agent: int) -> float:
        """μ over all rounds of what is seen of all links, all else known; infinite if exact."""
        posterior = self._law().given_all_else(agent)
        if posterior.exact:
            return math.inf
        clip, ranges = self.clip or 0.0, stepsize_range
        most = [ranges(self.setting.stepsize, k, agent)[1] for k in self._law().rounds]
        change = np.array(most) * clip * self.again / self.settings.batch
        return math.sqrt(float(change @ np.abs(posterior.precision) @ change))

    def _law(self) -> MessageLaw:
        if not hasattr(self, "_message_law"):
            links = seen_links(self.setting.graph, Eavesdropper())
            # What a part of the rounds gives away, all of them give away.
            rounds = self.rounds[: max(2, _MOST_ROWS // self.setting.graph.agents)]
            published = self.settings.publishes == "final" and rounds == self.rounds
            own = self.adversary.own
            seen = Seen(self.setting, rounds, links, "known", own=own, published=published)
            self._message_law = MessageLaw(seen)
        return self._message_law

    def _once(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)


def _releases(multipliers: Array, rate: float) -> tuple[Release, ...]:
    """Rounds with equal multipliers together; many different ones are rounded down."""
    finite = multipliers[np.isfinite(multipliers)]
    values, counts = np.unique(np.round(finite, 12), return_counts=True)
    if len(values) > _DISTINCT:
        steps = np.floor(np.log(finite) / _WIDTH + 1e-9)
        values, counts = np.unique(steps, return_counts=True)
        values = np.exp(values * _WIDTH)
    pairs = zip(values.tolist(), counts.tolist(), strict=True)
    return tuple(Release(value, rate, count) for value, count in pairs)
