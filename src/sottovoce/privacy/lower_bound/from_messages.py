"""ε of one round from below, from what an adversary sees: messages, sums, its own agents' insides.

`many_runs` gives the adversary everything but the noise on the steps, as the proofs do. Here it has
its own view, noise on messages, masks and unseen links included. One record is in the batch of one
round or not, everything else is known; what tells both apart is learnt from other simulated runs
(Fisher's discriminant). What the errors of that test say of ε presumes Gaussian noise, unless the
chain itself says that its randomness is of another kind: then nothing is presumed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sottovoce.errors import PrivacyError
from sottovoce.graphs import Graph
from sottovoce.mechanisms import Mechanism
from sottovoce.privacy.adversaries import Adversary, View
from sottovoce.privacy.attacks import sent_again
from sottovoce.privacy.lower_bound.canary import Canary
from sottovoce.privacy.lower_bound.errors_to_epsilon import epsilon_bounds, gaussian_mu
from sottovoce.privacy.lower_bound.many_runs import HUGE, best_test, by_plain, errors_at
from sottovoce.randomness import Streams
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Recording
from sottovoce.stepsizes import Stepsize

_STATISTICS = 2
_RIDGE = 1e-9
"""Noise that is added to what was seen, in units of the canary's effect: no variance is 0."""


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """Which round, and how often it is simulated.

    agent: whose record it is. norm: of the record's gradient, where the mechanism does not bound
    it; batch: what gradients are divided by. reach: rounds before and after that are seen. pairs:
    runs without and with the record that bound the errors, at least 4; as many more train the test.
    """

    round: int
    agent: int
    norm: float
    stepsize: Stepsize
    batch: int = 1
    reach: int = 3
    pairs: int = 1000
    delta: float = 1e-5
    confidence: float = 0.95
    insecure_seed: int | None = None

    def __post_init__(self) -> None:
        if self.pairs < 4:
            raise PrivacyError(f"{self.pairs} pairs; accepted: at least 4")


@dataclass(frozen=True)
class FromMessages:
    """ε from below and its ceiling at `delta`; norm: of the canary.

    gaussian: whether Gaussian noise is presumed. Else both are bounds that presume nothing, which
    are far lower for the same errors.
    """

    epsilon: float
    ceiling: float
    delta: float
    pairs: int
    norm: float
    gaussian: bool = True


class _OneRound(Canary):
    """A canary that is in the batch of one round alone."""

    def __init__(self, graph: Graph, settings: RoundSettings, norm: float) -> None:
        super().__init__(graph.agents, settings.agent, 1.0, batch=settings.batch, norm=norm)
        self.round = settings.round

    def _fill(self, streams: Streams, round: int, out: Tensor, size: float) -> Tensor:
        return super()._fill(streams, round, out, size if round == self.round else 0.0)


def epsilon_from_messages(
    mechanism: Mechanism, graph: Graph, adversary: Adversary, settings: RoundSettings
) -> FromMessages:
    """Bound from below the ε of one record in one round against an adversary's own view."""
    bound, k = mechanism.bound, settings.round
    problem = _OneRound(graph, settings, HUGE if bound else settings.norm)
    rounds = range(max(1, k - settings.reach), k + settings.reach + 1)
    runs = range(4 * settings.pairs)
    result = simulate(
        problem,
        mechanism,
        graph,
        steps=rounds[-1],
        runs=runs,
        stepsize=settings.stepsize,
        insecure_seed=settings.insecure_seed,
        options=Options(
            measure=[rounds[-1]], record=Recording(list(rounds), runs), keep_final=False
        ),
    )
    assert result.transcript is not None
    again = None
    if adversary.hears_again:
        seed = settings.insecure_seed
        fresh = None if seed is None else seed + 1  # Not the numbers of the first messages.
        again = sent_again(result.transcript, k, insecure_seed=fresh)
    seen = _everything(adversary.view(result.transcript, again))
    # Runs without and with the canary take turns: an odd number would exchange them.
    even = settings.pairs // 2 * 2
    training, rest = seen[:even], seen[even:]
    confidence = 1 - (1 - settings.confidence) / _STATISTICS
    gaussian = _gaussian(mechanism, settings)
    score = gaussian_mu if gaussian else by_plain
    found = []
    for values in _statistics(training, rest):
        pilot, tested = values[:even], values[even : even + 2 * settings.pairs]
        test = best_test(pilot, score, settings.pairs, confidence)
        found.append(errors_at(tested, *test))
    bounds = [epsilon_bounds(one, settings.delta, confidence) for one in found]
    most = epsilon_bounds(found[0].perfect, settings.delta, confidence)
    least, ceiling = (
        (max(one.gaussian for one in bounds), most.gaussian)
        if gaussian
        else (max(one.plain for one in bounds), most.plain)
    )
    norm = float(bound.norm) if bound else settings.norm
    return FromMessages(least, ceiling, settings.delta, settings.pairs, norm, gaussian)


def _gaussian(mechanism: Mechanism, settings: RoundSettings) -> bool:
    """Whether the chain does not say that its randomness is of another kind than Gaussian."""
    linear = all(part.linear for part in mechanism.parts)
    return linear and not settings.stepsize.std(settings.round, settings.agent)


def _everything(view: View) -> Tensor:
    """All numbers that a view holds of one coordinate: (runs, numbers)."""
    parts = [view.messages[..., 0]]
    # Links on which nothing came twice hold no numbers.
    parts += [one[None, ..., 0].nan_to_num(0) for one in view.again.values()]
    if view.sums is not None:
        parts.append(view.sums.values[..., 0])
    for inside in view.inside.values():
        parts += [inside.states, inside.steps]
    runs = len(view.runs)
    found = [one.double().transpose(0, 1).reshape(runs, -1) for one in parts]
    return torch.cat(found, 1)


def _statistics(training: Tensor, rest: Tensor) -> list[Tensor]:
    """Fisher's discriminant and the squared distance from where the canary is not: (runs,) each."""
    without, within = training[0::2], training[1::2]
    centre, effect = without.mean(0), within.mean(0) - without.mean(0)
    apart = torch.cat([without - centre, within - within.mean(0)])
    tiny = _RIDGE * float(effect.square().sum()) + torch.finfo(torch.float64).tiny
    covariance = apart.T @ apart / len(apart) + tiny * torch.eye(len(effect), dtype=torch.float64)
    direction = torch.linalg.lstsq(covariance, effect[:, None]).solution[:, 0]
    alone = without - centre
    spread = alone.square().mean(0) + tiny
    moved = (rest - centre).square() / spread
    return [(rest - centre) @ direction, moved.sum(1)]
