"""The demo's third training, with a proof, and which images one round of each gives away."""

from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sottovoce.graphs import Graph
from sottovoce.privacy.adversaries import Eavesdropper, View
from sottovoce.privacy.attacks import Attack, Conventional, Elimination, Estimate
from sottovoce.privacy.auditor.public import relative_spread
from sottovoce.privacy.guarantee import ProofSettings
from sottovoce.privacy.knowledge import Inputs, Knowledge
from sottovoce.privacy.planning import Plan, Target, meet
from sottovoce.privacy.readers.identification import Candidates, identify
from sottovoce.problems import ModuleProblem
from sottovoce.problems.data import models
from sottovoce.problems.module import Samples
from sottovoce.randomness import private_streams
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Recording, Transcript, Truth
from sottovoce.storage.execution import Execution

NAME = "dp-pdsgd"
CONTROL = "dp-pdsgd without its noise"
_BATCH = 128
_SCALE = 2.0
_NORMAL = NormalDist()


@dataclass(frozen=True, eq=False)
class Overheard:
    """A training of which an eavesdropper has a round: by which attack it is read.

    data: the agents' own images and labels.
    """

    data: list[Samples]
    problem: ModuleProblem
    transcript: Transcript
    round: int
    attack: Attack


def guaranteed(
    graph: Graph,
    data: list[Samples],
    validation: list[Samples],
    size: tuple[float, int, int],
    execution: Execution,
) -> tuple[dict[str, Any], Overheard]:
    """Train the paper's algorithm with a proof on the same images, as JSON, and what is overheard.

    size: ε, rounds and the seed.
    """
    epsilon, rounds, seed = size
    problem = ModuleProblem(
        models.tanh_cnn(),
        cross_entropy,
        data,
        validation,
        batch=_BATCH,
        poisson=True,
        initialise=partial(models.initialise, activation="tanh"),
    )
    stepsize = f"{_SCALE:g}:falling={rounds}"
    training = ProofSettings.of(problem.sampling, rounds, stepsize=stepsize)
    plan = meet(Target(epsilon=epsilon, training=training, graph=graph, algorithm=NAME))
    middle = max(2, rounds // 2)
    execution.say(
        f"Training with {NAME}, the paper's algorithm with a proof: ε = {plan.epsilon:.3g}, "
        f"{rounds:,} rounds, batches of {_BATCH} ..."
    )
    result = simulate(
        problem,
        plan.mechanism,
        graph,
        steps=rounds,
        stepsize=stepsize,
        insecure_seed=seed,
        options=Options(
            measure=[rounds],
            record=Recording([middle - 1, middle, middle + 1]),
            progress=execution.progress,
        ),
    )
    assert result.transcript is not None
    found = {
        **_promised(plan),
        "stepsize": stepsize,
        "accuracy": float(result.metric("validation_accuracy")[-1].mean()),
        "training_accuracy": float(result.metric("training_accuracy")[-1].mean()),
    }
    return found, Overheard(data, problem, result.transcript, middle, Elimination())


def _promised(plan: Plan) -> dict[str, Any]:
    known = plan.to_json()
    names = ("algorithm", "epsilon", "delta", "unit", "rounds", "batch_size", "noise_multiplier")
    against = {who.replace(":", "_"): one["epsilon"] for who, one in known["against"].items()}
    return {**{name: known[name] for name in names}, "against": against}


@dataclass(frozen=True)
class Exact(Attack):
    """The control of the ranking: the gradient itself, clipped and without noise."""

    name: ClassVar[str] = "exact"
    truth: Truth

    def estimate(self, view: View, target: int, round: int) -> Estimate:
        at = view.position(round, self.name)
        gradient, state = (
            values[at, :, target].double() for values in (self.truth.gradients, self.truth.states)
        )
        return Estimate(gradient, False, state)


def identified(
    one: Overheard, inputs: Inputs, validation: list[Samples], seed: int
) -> dict[str, Any]:
    """Every agent's own images ranked by how likely they were in its batch of the round.

    An image of the batch is compared with all that were not in it. first: how many of them rank
    before all others.
    """
    view, agents = Eavesdropper().view(one.transcript), one.problem.agents
    streams = private_streams(1, agents, insecure_seed=seed)
    drawn = one.problem.sampling.draw(streams, one.round)
    public = [torch.cat(part) for part in zip(*map(_tensors, validation), strict=True)]
    bound = one.transcript.algorithm.bound
    records, labels = public
    knowledge = Knowledge(one.problem.model, cross_entropy, inputs, records, labels, bound)
    spread = relative_spread(one.transcript.stepsize, one.round)
    ranks, others = [], []
    for agent, (images, labels) in enumerate(map(_tensors, one.data)):
        estimate = one.attack.estimate(view, agent, one.round)
        scores = identify(knowledge, estimate, Candidates(images, labels), spread)[0]
        members = drawn.chosen[0, agent][drawn.present[0, agent]].unique()
        rest = torch.ones(len(images), dtype=torch.bool)
        rest[members] = False
        ranks.append(_ranks(scores[members], scores[rest]))
        others.append(int(rest.sum()))
    every = torch.cat(ranks)
    return {
        "round": one.round,
        "attack": one.attack.name,
        "records": len(every),
        "others": min(others),
        "first": int((every == 1).sum()),
        "median_rank": float(every.double().quantile(0.5)),
    }


def permitted(multiplier: float, others: int) -> dict[str, float]:
    """What the proof permits an observer of one round who knows all else.

    A test of one record has at most Φ(Φ^-1(f) + 1/z) true positives at f false ones. The share of
    records that rank before `others` equals that of a test with f = 1 / (1 + others) on average.
    """
    chance = 1 / (1 + others)
    first = _NORMAL.cdf(_NORMAL.inv_cdf(chance) + 1 / multiplier)
    return {
        "chance": chance,
        "first": first,
        "median_rank": 1 + others * _NORMAL.cdf(-1 / multiplier),
    }


def _tensors(held: Samples) -> tuple[Tensor, Tensor]:
    """Images and labels, which the demo holds as tensors."""
    assert isinstance(held, tuple)
    return held


def _ranks(members: Tensor, rest: Tensor) -> Tensor:
    """The rank of each member among the rest and itself, 1 being the likeliest; ties are halved."""
    above = (rest[None] > members[:, None]).sum(1)
    return 1 + above + (rest[None] == members[:, None]).sum(1) // 2


def overheard(
    data: list[Samples], problem: ModuleProblem, transcripts: dict[str, Transcript], round: int
) -> dict[str, Overheard]:
    """The trainings without a guarantee, each with the attack that reads it."""
    attacks: dict[str, Attack] = {"DSGD": Conventional(), "PDSGD": Elimination()}
    return {
        name: Overheard(data, problem, transcript, round, attacks[name])
        for name, transcript in transcripts.items()
    }
