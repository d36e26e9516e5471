"""Membership by shadow models: many trainings at once, each on a random half of the records.

Every run of one simulation is trained on half of each agent's records, drawn for that run. Even
runs are attacked with the odd ones as shadows, and odd runs with the even ones. The attacker knows
the algorithm and records like those used, and sees the models, which all who hear the messages can
follow.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from sottovoce.errors import AttackError
from sottovoce.graphs import Graph
from sottovoce.mechanisms import Mechanism
from sottovoce.privacy.membership.rates import Membership, told_apart
from sottovoce.problems.gradients.layout import ParameterLayout
from sottovoce.problems.module import ModuleProblem
from sottovoce.problems.sampling import Batch, Sampling
from sottovoce.randomness import Streams
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.stepsizes import Stepsize

_AT_ONCE = 2_000_000
"""Scores that are computed together."""
_LEAST_RUNS = 8
_HALVES = 2
_LEAST_DEVIATION = 1e-3
_TIE = 1e-9
"""Weight of the ratio itself among records that beat equally many others."""
_OWN_DEVIATIONS = 64
"""With fewer shadows on a side, all records share one deviation (Carlini et al. 2022)."""


@dataclass(frozen=True)
class HalfSampling(Sampling):
    """Draw batches from the half of an agent's records that a run may use.

    samples: the size of the halves. used: (runs, agents, half), the numbers of these records.
    """

    used: Tensor = field(default_factory=lambda: torch.zeros(0), compare=False)

    def draw(self, streams: Streams, round: int) -> Batch:
        chosen, present = super().draw(streams, round)
        rows = self.used[streams.runs.start : streams.runs.stop].to(chosen.device)
        return Batch(rows.gather(2, chosen), present)


@dataclass(frozen=True)
class ShadowSettings:
    """How many trainings, for how long.

    runs: trainings, half of them the shadows of the other half. records: of each agent, the
    first ones, of which each training uses a random half; all others are left out. seed: draws the
    halves. insecure_seed: of the trainings.
    """

    rounds: int
    runs: int = 64
    records: int = 100
    stepsize: Stepsize | str | None = None
    seed: int = 0
    insecure_seed: int | None = None

    def require(self, problem: ModuleProblem) -> None:
        """Raise unless there are enough runs and every agent has the records."""
        most = min(problem.sampling.samples)
        if self.runs < _LEAST_RUNS or not 2 <= self.records <= most:
            raise AttackError(
                f"{self.runs} runs and {self.records} records of an agent; accepted: at least "
                f"{_LEAST_RUNS} runs, and 2 to {most} records"
            )


@dataclass(frozen=True, eq=False)
class Shadows:
    """What the models of all runs say of all records.

    likelihood: (runs, records), the probability that a run's model gives to a record's label;
    member: (runs, records) bool, whether the record was used.
    """

    likelihood: Tensor
    member: Tensor

    @property
    def finite(self) -> "Shadows":
        """The runs whose models say a probability of every record: those that did not diverge.

        Raise where fewer than 8 are left.
        """
        kept = self.likelihood.isfinite().all(1)
        if int(kept.sum()) < _LEAST_RUNS:
            raise AttackError(
                f"{int((~kept).sum())} of {len(kept)} trainings diverged; accepted: at least "
                f"{_LEAST_RUNS} that did not, as with a smaller stepsize"
            )
        return self if bool(kept.all()) else Shadows(self.likelihood[kept], self.member[kept])

    @property
    def logits(self) -> Tensor:
        """log p/(1 - p), which is nearly Gaussian over trainings (Carlini et al. 2022)."""
        p = self.likelihood.double()
        return p.clamp_min(1e-30).log() - (1 - p).clamp_min(1e-12).log()


def train_shadows(
    problem: ModuleProblem, algorithm: Mechanism | str, graph: Graph | str, settings: ShadowSettings
) -> Shadows:
    """Train many models, each on halves of the records, and score every record by its owner's.

    problem: a classifier trained by cross entropy. The problem's own sampling is put back.
    """
    settings.require(problem)
    whole, count = problem.sampling, settings.records
    generator = torch.Generator().manual_seed(settings.seed)
    order = torch.rand(settings.runs, problem.agents, count, generator=generator).argsort(2)
    used, _ = order[..., : count // 2].sort(2)
    member = torch.zeros(order.shape, dtype=torch.bool).scatter_(2, used, True)
    halves = (count // 2,) * problem.agents
    problem.sampling = HalfSampling(halves, min(whole.batch, count // 2), whole.poisson, used)
    try:
        result = simulate(
            problem,
            algorithm,
            graph,
            steps=settings.rounds,
            runs=settings.runs,
            stepsize=settings.stepsize,
            insecure_seed=settings.insecure_seed,
            options=Options(measure=[settings.rounds]),
        )
    finally:
        problem.sampling = whole
    inputs, labels = problem.records()
    shared = len(labels) < sum(whole.samples)
    firsts = [0 if shared else sum(whole.samples[:agent]) for agent in range(problem.agents)]
    found = [
        likelihoods(problem.model, result.final[:, agent], inputs[at], labels[at])
        for agent, at in enumerate(slice(first, first + count) for first in firsts)
    ]
    return Shadows(torch.cat(found, 1), member.flatten(1))


def likelihoods(model: nn.Module, states: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    """The probability that models (runs, d) give to the labels of records: (runs, records)."""
    layout = ParameterLayout(model)
    model.eval()

    def scores(vector: Tensor, fed: Tensor) -> Tensor:
        answer: Tensor = functional_call(model, layout.views(vector), (fed,))
        return answer

    size = max(1, _AT_ONCE // max(1, states.shape[1] + inputs[0].numel() * len(inputs)))
    parts = [vmap(scores, in_dims=(0, None))(part, inputs) for part in states.split(size)]
    chosen = labels[None, :, None].expand(len(states), -1, 1)
    with torch.no_grad():
        return torch.cat(parts).softmax(-1).gather(2, chosen)[..., 0].cpu()


def lira(shadows: Shadows) -> Tensor:
    """The likelihood ratio of a record's logit, members against others: (runs, records).

    Carlini, Chien, Nasr, Song, Terzis and Tramèr (2022), online: for each record the logits of
    shadows with and without it are taken as two Gaussians.
    """
    logits, member = shadows.logits, shadows.member
    densities = []
    for side in (member, ~member):
        mean, deviation = _of_shadows(logits, side)
        z = (logits - mean) / deviation
        densities.append(-z.square() / 2 - deviation.log())
    return densities[0] - densities[1]


def rmia(shadows: Shadows, gamma: float = 1.0) -> Tensor:
    """The share of other records that the model prefers less than this one: (runs, records).

    Zarifzadeh, Liu and Shokri (2024): p(x | θ) / p(x) against the same ratio of population records
    z, with p(x) the mean over shadows with and without x. Records that the run did not use are the
    population; x itself counts against nobody.
    """
    p, member = shadows.likelihood.double(), shadows.member
    used, unused = (_of_shadows(p, side)[0] for side in (member, ~member))
    ratios = p.clamp_min(1e-30) / ((used + unused) / 2).clamp_min(1e-30)
    scores = torch.empty_like(ratios)
    for run, (ratio, inside) in enumerate(zip(ratios, member, strict=True)):
        population, _ = ratio[~inside].sort()
        beaten = torch.searchsorted(population, ratio / gamma, right=True).double()
        # A record of the population is not compared with itself.
        others = (len(population) - (~inside).double()).clamp_min(1.0)
        scores[run] = (beaten - (~inside).double()) / others + _TIE * ratio.log()
    return scores


def _of_shadows(values: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation over the shadows on a side: (runs, records) each.

    The shadows of even runs are the odd ones, and the other way round. To leave out the attacked
    run alone would bias its score: the mean of the rest falls where its own value is high.
    """
    mean, deviation = torch.empty_like(values), torch.empty_like(values)
    for own, others in ((0, 1), (1, 0)):
        seen, chosen = values[others::2], side[others::2].double()
        count = chosen.sum(0).clamp_min(1.0)
        centre = (seen * chosen).sum(0) / count
        spread = ((seen - centre).square() * chosen).sum(0) / (count - 1).clamp_min(1.0)
        if float(count.min()) < _OWN_DEVIATIONS:
            spread = spread.mean().expand_as(spread)
        mean[own::2], deviation[own::2] = centre, spread.sqrt().clamp_min(_LEAST_DEVIATION)
    return mean, deviation


def shadow_membership(shadows: Shadows) -> list[Membership]:
    """What each shadow attack reaches on all runs: LiRA, RMIA and the plain loss.

    The intervals hold for all of them together. Runs that diverged are left out.
    """
    shadows = shadows.finite
    found = {"lira": lira(shadows), "rmia": rmia(shadows), "loss": shadows.logits}
    return [
        told_apart(name, scores, shadows.member, tried=len(found), folds=_HALVES)
        for name, scores in found.items()
    ]
