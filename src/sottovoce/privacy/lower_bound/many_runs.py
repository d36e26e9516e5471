"""ε of a mechanism from below: thousands of simulated trainings with and without one record.

The view is that of the proofs: every perturbed step, everything drawn later being given away
(`privacy.revealed`). A curious agent knows the noise of its own edges, which is the same as a
network without it: the agents that are not the adversary's are simulated, with their edges.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from sottovoce.errors import PrivacyError
from sottovoce.graphs import Graph, as_graph, from_networkx
from sottovoce.mechanisms import Mechanism, as_mechanism
from sottovoce.privacy.adversaries import Adversary, Eavesdropper
from sottovoce.privacy.lower_bound.canary import Canary
from sottovoce.privacy.lower_bound.errors_to_epsilon import (
    EpsilonBounds,
    Errors,
    Sampled,
    epsilon_bounds,
    gaussian_mu,
    plain_epsilon,
)
from sottovoce.privacy.lower_bound.statistics import STATISTICS, Statistic, Watched
from sottovoce.privacy.revealed import step_noise
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Recording, Setting
from sottovoce.stepsizes import Stepsize, as_stepsize

_NUMBERS = 8_000_000
"""Numbers that a recording holds at a time."""
Score = Callable[[float, float], float]
_LIKELY = (0.9, 0.5)
"""Confidence of the error rates by which thresholds are chosen; the second decides between equals.

Above a half, since of many thresholds one in a tail, with few errors, looks best by chance.
"""
HUGE = 1e6
"""The canary's gradient before it is clipped, in units of the bound."""


@dataclass(frozen=True)
class CanarySettings:
    """The training that is simulated, and how often.

    rounds, rate, batch, stepsize: of the training; the rate is that of Poisson samples. pairs: how
    many trainings without and with the canary bound the errors; a quarter as many choose each
    statistic's threshold beforehand. clip: the norm that one record is said to contribute at most,
    which the statistics presume; the mechanism's own bound unless given. agent: whose record it is.
    sampled: whether to compute that bound, too, which takes longer than the trainings.
    """

    rounds: int
    rate: float = 1.0
    batch: int = 1
    pairs: int = 2000
    delta: float = 1e-5
    confidence: float = 0.95
    stepsize: Stepsize | str | None = None
    agent: int = 0
    clip: float | None = None
    sampled: bool = True
    insecure_seed: int | None = None

    def __post_init__(self) -> None:
        if self.pairs < 20 or self.rounds < 1 or not 0 < self.confidence < 1:
            raise PrivacyError(
                f"{self.pairs} pairs, {self.rounds} rounds and confidence {self.confidence}; "
                "accepted: at least 20 pairs, 1 round and a confidence between 0 and 1"
            )


@dataclass(frozen=True)
class Tested:
    """What one statistic found: its errors at two thresholds and what they say of ε.

    errors: at the threshold that a Gaussian trade-off is bounded best at, and for `plain` at the
    one that is best with nothing presumed.
    """

    statistic: str
    errors: Errors
    plain_errors: Errors
    bounds: EpsilonBounds

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class LowerBound:
    """ε from below, with its ceiling: the most that this number of pairs could have shown.

    bounds: the largest of all statistics, corrected for how many were tried. epsilon: the Gaussian
    bound, by which mechanisms are compared.
    """

    algorithm: str
    graph: str
    adversary: str
    agent: int
    rounds: int
    rate: float
    delta: float
    confidence: float
    pairs: int
    bounds: EpsilonBounds
    ceiling: EpsilonBounds
    tested: tuple[Tested, ...]

    @property
    def epsilon(self) -> float:
        return self.bounds.gaussian

    def exceeds(self, proved: float) -> bool:
        """Whether what was claimed is refuted: a bound of the kind that presumes least is above.

        The Gaussian and the sampled bound presume a shape, which a mechanism that does something
        else than claimed need not have; where they exceed the claim, the claim or the shape is
        wrong, and neither may stand.
        """
        found = (self.bounds.plain, self.bounds.gaussian, self.bounds.sampled or 0.0)
        return max(found) > proved

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "epsilon from below",
            **asdict(self),
            "epsilon": self.epsilon,
            "interval": [self.epsilon, None],
            "targets": self.pairs,
        }


def epsilon_from_below(
    algorithm: Mechanism | str,
    graph: Graph | str,
    settings: CanarySettings,
    adversary: Adversary | None = None,
    statistics: Sequence[Statistic] = STATISTICS,
) -> LowerBound:
    """Bound ε of a mechanism from below by playing it with and without a canary."""
    mechanism, graph = as_mechanism(algorithm), as_graph(graph)
    adversary = adversary or Eavesdropper()
    given = settings.stepsize
    stepsize = mechanism.default_stepsize if given is None else as_stepsize(given)
    honest, agent = _honest(graph, adversary, settings.agent)
    clip = settings.clip or (mechanism.bound.norm if mechanism.bound else 1.0)
    watched = Watched(
        agent,
        step_noise(Setting(honest, mechanism, stepsize)),
        clip / settings.batch,
        settings.rate,
    )
    found = _values(mechanism, honest, stepsize, settings, watched, statistics)
    pilot = 2 * (settings.pairs // 4)
    confidence = 1 - (1 - settings.confidence) / len(statistics)
    family = Sampled(settings.rate, settings.rounds) if settings.sampled else None
    tested = []
    for statistic, values in zip(statistics, found, strict=True):
        tests = [
            best_test(values[:pilot], score, settings.pairs, confidence)
            for score in (gaussian_mu, by_plain)
        ]
        errors = [errors_at(values[pilot:], *test) for test in tests]
        shaped, plain = (epsilon_bounds(one, settings.delta, confidence) for one in errors)
        bounds = EpsilonBounds(plain.plain, shaped.gaussian, None)
        tested.append(Tested(statistic.name, errors[0], errors[1], bounds))
    best = max(tested, key=lambda one: one.bounds.gaussian)
    bounds = epsilon_bounds(best.errors, settings.delta, confidence, family)
    ceiling = epsilon_bounds(best.errors.perfect, settings.delta, confidence, family)
    return LowerBound(
        str(mechanism),
        graph.name,
        str(adversary),
        settings.agent,
        settings.rounds,
        settings.rate,
        settings.delta,
        settings.confidence,
        settings.pairs,
        replace(bounds, plain=max(one.bounds.plain for one in tested)),
        ceiling,
        tuple(tested),
    )


def _honest(graph: Graph, adversary: Adversary, agent: int) -> tuple[Graph, int]:
    """The agents that are not the adversary's with their edges, and the place of one of them."""
    honest = adversary.targets(graph)
    if agent not in honest:
        raise PrivacyError(f"agent {agent} is one of the adversary's; its own are {adversary.own}")
    if len(honest) == graph.agents:
        return graph, agent
    edges = [(i, j) for i in honest for j in graph.neighbours(i) if i < j and j in honest]
    joined = nx.Graph(edges)
    joined.add_node(agent)
    # Agents that no edge joins to this one share no noise with it.
    kept = sorted(nx.node_connected_component(joined, agent))
    place = {one: at for at, one in enumerate(kept)}
    network = nx.relabel_nodes(joined.subgraph(kept), place)
    return from_networkx(network), place[agent]


def _values(
    mechanism: Mechanism,
    graph: Graph,
    stepsize: Stepsize,
    settings: CanarySettings,
    watched: Watched,
    statistics: Sequence[Statistic],
) -> list[Tensor]:
    """Every statistic of every run: (runs,) each, runs with the canary at odd places."""
    norm = HUGE if mechanism.bound else 1.0
    problem = Canary(graph.agents, watched.agent, settings.rate, batch=settings.batch, norm=norm)
    rounds = range(1, settings.rounds + 1)
    each = [[stepsize.mean(k, j) for j in range(graph.agents)] for k in rounds]
    means = torch.tensor(each, dtype=torch.float64)
    total = 2 * (settings.pairs + settings.pairs // 4)
    links = 4 * graph.agents + 2 * len(graph.routes().sender)
    at_once = max(2, 2 * (_NUMBERS // (2 * settings.rounds * links)))
    found: list[list[Tensor]] = [[] for _ in statistics]
    for first in range(0, total, at_once):
        runs = range(first, min(total, first + at_once))
        result = simulate(
            problem,
            mechanism,
            graph,
            steps=settings.rounds,
            runs=runs,
            stepsize=stepsize,
            insecure_seed=settings.insecure_seed,
            options=Options(
                measure=[settings.rounds], record=Recording(rounds, runs), keep_final=False
            ),
        )
        assert result.transcript is not None
        steps = result.transcript.truth.steps[..., 0].double() / means[:, None]
        for values, statistic in zip(found, statistics, strict=True):
            values.append(statistic(steps, watched))
    return [torch.cat(values) for values in found]


def by_plain(fpr: float, fnr: float) -> float:
    return plain_epsilon(fpr, fnr, 0.0)


def best_test(values: Tensor, score: Score, trials: int, confidence: float) -> tuple[float, float]:
    """The sign and threshold that promise the highest score of the errors in these trials."""
    without, within = values[0::2].numpy(), values[1::2].numpy()
    best: tuple[list[float], float, float] = ([-np.inf], 1.0, 0.0)
    levels = np.unique(values.numpy())
    middles = np.concatenate([levels[:1] - 1, (levels[1:] + levels[:-1]) / 2, levels[-1:] + 1])
    if len(middles) > 400:
        middles = np.quantile(middles, np.linspace(0, 1, 400))
    for sign in (1.0, -1.0):
        for level in middles:
            wrong = int((sign * without > sign * level).sum())
            missed = int((sign * within <= sign * level).sum())
            seen = Errors(wrong, len(without), missed, len(within))
            scores = []
            for likely in _LIKELY:
                counts = [round(trials * rate) for rate in seen.at_most(likely)]
                rates = Errors(counts[0], trials, counts[1], trials).at_most(confidence)
                scores.append(score(*rates))
            best = max(best, (scores, sign, float(level)))
    return best[1], best[2]


def errors_at(values: Tensor, sign: float, level: float) -> Errors:
    without, within = sign * values[0::2], sign * values[1::2]
    wrong, missed = int((without > sign * level).sum()), int((within <= sign * level).sum())
    return Errors(wrong, len(without), missed, len(within))
