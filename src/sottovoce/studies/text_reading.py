"""One overheard training on speeches: what its messages give away, without a proof and with one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor, nn

from sottovoce.graphs import Graph
from sottovoce.mechanisms import Mechanism, parse_algorithm
from sottovoce.privacy.adversaries import Eavesdropper
from sottovoce.privacy.attacks import Attack, Chain, Elimination, Estimate
from sottovoce.privacy.attacks.smoothing import Smoothing
from sottovoce.privacy.auditor import intervals
from sottovoce.privacy.auditor.measures import Membership
from sottovoce.privacy.auditor.rows import EXACT, NOISE
from sottovoce.privacy.guarantee import ProofSettings
from sottovoce.privacy.knowledge import Inputs, Knowledge
from sottovoce.privacy.planning import Target, meet
from sottovoce.privacy.readers import Answer, Candidates, Passages, Support, identify
from sottovoce.privacy.readers.support import likeliest_support, score_support
from sottovoce.problems import ModuleProblem
from sottovoce.problems.data.shakespeare import load_plays
from sottovoce.randomness import private_streams
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Recording, Transcript
from sottovoce.stepsizes import parse_stepsize
from sottovoce.studies.workloads import text

Batch = tuple[Tensor, Tensor]
"""Passages (n, places) and the words after them (n,)."""
_SHOWN = 4
_AT_ONCE = 5
_CORRELATED = Smoothing(reach=1)
"""The posterior mean of the steps, which knows that noise cancels along edges."""
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Asked:
    """Which training is overheard, in which round, how often, with what batch and stepsize."""

    graph: Graph
    round: int
    runs: int
    insecure_seed: int | None
    batch: int
    stepsize: str

    @property
    def spec(self) -> dict[str, Any]:
        return {**vars(self), "graph": self.graph.spec}

    @property
    def agents(self) -> list[int]:
        """The agent of each run that is attacked: they take turns."""
        return [run % self.graph.agents for run in range(self.runs)]

    def problem(self, poisson: bool = False) -> tuple[ModuleProblem, Inputs]:
        problem, inputs = text().problem("transformer", self.graph.agents, self.batch)
        problem = problem.with_batches(self.batch, poisson=poisson)
        return problem, replace(inputs, batch_size=self.batch)


@dataclass(frozen=True, eq=False)
class _Heard:
    """A recorded training, the truth about the attacked agents, and what was in their batches."""

    problem: ModuleProblem
    inputs: Inputs
    transcript: Transcript
    answer: Answer
    batches: list[Batch]
    chosen: list[Tensor]


def read_plain(asked: Asked) -> dict[str, Any]:
    """What is read from PDSGD with batches of one size."""
    heard = _overhear(asked, *asked.problem(), parse_algorithm("pdsgd"), (Elimination(), Chain()))
    zeros, exact = (_estimate(one, heard, asked) for one in (Elimination(), Chain()))
    return {
        "batch": asked.batch,
        "stepsize": asked.stepsize,
        **_words(heard, zeros, noisy=False),
        **_passages(heard, exact),
    }


def read_proved(
    asked: Asked, epsilon: float, rounds: int, candidates: int, told_runs: int
) -> dict[str, Any]:
    """What is read from DECOR with a proved ε, beside the readers' controls and the proof.

    told_runs: trainings whose passages are told from others; `asked.runs` of them are read.
    """
    schedule = asked.stepsize.partition(":")[2] or asked.stepsize
    asked = replace(asked, stepsize=schedule)
    problem, inputs = asked.problem(poisson=True)
    training = ProofSettings.of(problem.sampling, rounds, stepsize=schedule)
    plan = meet(Target(epsilon=epsilon, training=training, graph=asked.graph, algorithm="decor"))
    heard = _overhear(asked, problem, inputs, plan.mechanism, (_CORRELATED,))
    noisy = _estimate(_CORRELATED, heard, asked)
    controls = Passages().controls(heard.answer)
    ranks, bare = _ranks_of_many(asked, plan.mechanism, told_runs, candidates)
    told, without = (
        Membership.of(
            [rank for of_run in one for rank in of_run],
            [run for run, of_run in enumerate(one) for _ in of_run],
            candidates + 1,
        )
        for one in (ranks, bare)
    )
    multiplier = plan.multiplier
    return {
        "mechanism": str(plan.mechanism),
        "epsilon": plan.epsilon,
        "delta": training.delta,
        "rounds": rounds,
        "batch": asked.batch,
        "candidates": candidates,
        **_words(heard, noisy, noisy=True),
        **_passages(heard, noisy),
        "control_exact": _passages(heard, controls[EXACT])["read"],
        "control_noise": _passages(heard, controls[NOISE])["read"],
        "told_runs": told_runs,
        "told_passages": told.targets,
        "auc": {"mean": told.auc, "low": told.low, "high": told.high},
        "top": {"mean": told.tpr, "low": told.tpr_low, "high": told.tpr_high},
        "top_by_luck": told.fpr,
        "auc_without_noise": {"mean": without.auc, "low": without.low, "high": without.high},
        "noise_multiplier": multiplier,
        "permitted_auc": permitted_area(multiplier, candidates),
        "permitted_top": _permitted(multiplier, told.fpr),
    }


def permitted_area(multiplier: float, candidates: int) -> float:
    """The largest AUC of a passage ranked among this many others, at a noise multiplier.

    Without the passage any of them is as likely to be among the best k as any other, with a
    probability of k / (candidates + 1), which the proof lets grow as `_permitted` says.
    """
    each = [_permitted(multiplier, k / (candidates + 1)) for k in range(1, candidates + 1)]
    return sum(each) / candidates


def _permitted(multiplier: float, chance: float) -> float:
    """The most true positives at this many false ones, the others in the batch being known.

    Of one round in which the passage was used, where no sampling hides whether it was: a test
    between two normal distributions with the means 0 and 1 / multiplier.
    """
    return _NORMAL.cdf(_NORMAL.inv_cdf(chance) + 1 / multiplier)


def _overhear(
    asked: Asked,
    problem: ModuleProblem,
    inputs: Inputs,
    mechanism: Mechanism,
    attacks: Sequence[Attack],
) -> _Heard:
    """Train, record the rounds that the attacks need, and keep the truth to score them with."""
    rounds = sorted({one for attack in attacks for one in attack.rounds(asked.round)})
    seed = 0 if asked.insecure_seed is None else asked.insecure_seed
    result = simulate(
        problem,
        mechanism,
        asked.graph,
        steps=rounds[-1],
        runs=asked.runs,
        stepsize=parse_stepsize(asked.stepsize),
        insecure_seed=seed,
        options=Options(measure=[rounds[-1]], record=Recording(rounds, range(asked.runs))),
    )
    made = result.transcript
    assert made is not None
    streams = private_streams(range(asked.runs), problem.agents, insecure_seed=seed)
    drawn = problem.sampling.draw(streams, asked.round)
    fed, labels = problem.samples(
        private_streams(range(asked.runs), problem.agents, insecure_seed=seed), asked.round
    )
    at, runs, agents = made.rounds.index(asked.round), range(asked.runs), asked.agents
    batches, chosen = [], []
    for run, agent in zip(runs, agents, strict=True):
        here = drawn.present[run, agent]
        batches.append((fed[run, agent][here].long(), labels[run, agent][here]))
        chosen.append(drawn.chosen[run, agent][here])
    truth = made.truth
    answer = Answer(
        fed[list(runs), agents],
        labels[list(runs), agents],
        truth.gradients[at, list(runs), agents],
        truth.states[at, list(runs), agents],
    )
    return _Heard(problem, inputs, made, answer, batches, chosen)


def _estimate(attack: Attack, heard: _Heard, asked: Asked) -> Estimate:
    """What an eavesdropper makes of the attacked agent of each run."""
    view = Eavesdropper().view(heard.transcript)
    each = {agent: attack.estimate(view, agent, asked.round) for agent in set(asked.agents)}
    places = [(each[agent], run) for run, agent in enumerate(asked.agents)]
    rounding = [one.rounding[run] for one, run in places if one.rounding is not None]
    return replace(
        places[0][0],
        gradient=torch.stack([one.gradient[run] for one, run in places]),
        state=torch.stack([one.state[run] for one, run in places]),
        step=None,
        rounding=torch.stack(rounding) if rounding else None,
    )


def _words(heard: _Heard, estimate: Estimate, noisy: bool) -> dict[str, Any]:
    """Precision and recall of the words of each batch, and of the best guess without messages."""
    support, inputs, runs = Support(), heard.inputs, list(range(len(heard.batches)))
    found = support.read(heard.problem.model, estimate, inputs, noisy)
    truth = torch.cat([support.truth(passages[None], inputs) for passages, _ in heard.batches])
    likeliest, _ = likeliest_support(text().public()[0], inputs)
    each = [score_support(a[None], b[None]) for a, b in zip(found, truth, strict=True)]
    blind = score_support(likeliest.expand_as(truth), truth)
    return {
        "precision": _mean([one.precision for one in each], runs),
        "recall": _mean([one.recall for one in each], runs),
        "blind": [blind.precision, blind.recall],
    }


def _passages(heard: _Heard, estimate: Estimate) -> dict[str, Any]:
    """The share of each batch's passages that are read with every word right, and some of them."""
    expected, bound = heard.inputs.batch_size, heard.transcript.algorithm.bound
    # A Poisson batch may have more passages than expected, by which its gradient is divided.
    size = max(expected, *(len(labels) for _, labels in heard.batches))
    reader, inputs = Passages(bound=bound), replace(heard.inputs, batch_size=size)
    whole = replace(estimate, gradient=estimate.gradient * (expected / size))
    found = reader.read(heard.problem.model, whole, inputs, 0.0)
    shares, shown, plays = [], [], load_plays()
    for images, labels, truth in zip(found.images, found.labels, heard.batches, strict=True):
        read, said = _lines((images.long(), labels)), _lines(truth)
        common = Counter(read) & Counter(said)
        if said:
            shares.append(common.total() / len(said))
            shown.append([plays.text(torch.tensor(_nearest(said[0], one))) for one in (said, read)])
    runs = list(range(len(shares)))
    return {
        "passages": sum(len(labels) for _, labels in heard.batches),
        "read": _mean(shares, runs),
        "shown": shown[:_SHOWN],
    }


def _lines(batch: Batch) -> list[tuple[int, ...]]:
    return [tuple(row) for row in torch.cat([batch[0], batch[1][:, None]], 1).tolist()]


def _nearest(line: tuple[int, ...], others: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The one of several lines that agrees with a line in most places."""
    return max(others, key=lambda one: sum(a == b for a, b in zip(one, line, strict=True)))


def _ranks_of_many(
    asked: Asked, mechanism: Mechanism, runs: int, candidates: int
) -> tuple[list[list[float]], list[list[float]]]:
    """The ranks of every run's passages by what was overheard, and by their exact gradients."""
    problem, inputs = asked.problem(poisson=True)
    noisy, bare = [], []
    # A few at a time, because a recording holds every message.
    for first in range(0, runs, _AT_ONCE):
        seed = (asked.insecure_seed or 0) + first
        some = replace(asked, runs=min(_AT_ONCE, runs - first), insecure_seed=seed)
        heard = _overhear(some, problem, inputs, mechanism, (_CORRELATED,))
        exact = Estimate(heard.answer.gradient.double(), True, heard.answer.state.double())
        noisy += _ranks(heard, _estimate(_CORRELATED, heard, some), some, candidates)
        bare += _ranks(heard, exact, some, candidates)
    return noisy, bare


def _ranks(heard: _Heard, estimate: Estimate, asked: Asked, candidates: int) -> list[list[float]]:
    """For each run the rank of every passage of the batch among others of its agent."""
    bound = heard.transcript.algorithm.bound
    found = []
    known = Knowledge(
        heard.problem.model,
        nn.functional.cross_entropy,
        heard.inputs,
        *text().public(),
        bound,
    )
    for at, (agent, own) in enumerate(zip(asked.agents, heard.chosen, strict=True)):
        inputs, labels = text().held(heard.problem.agents, agent)
        mixed = torch.Generator().manual_seed((asked.insecure_seed or 0) + at)
        rest = torch.randperm(len(labels), generator=mixed)
        rest = rest[~torch.isin(rest, own)][:candidates]
        both = torch.cat([own, rest])
        one = replace(estimate, gradient=estimate.gradient[[at]], state=estimate.state[[at]])
        listed = Candidates(inputs[both], labels[both])
        scores = identify(known, replace(one, rounding=None), listed, 0.0)[0]
        members, others = scores[: len(own), None], scores[len(own) :]
        better = (others > members).double() + 0.5 * (others == members)
        found.append((1 + better.sum(1)).tolist())
    return found


def _mean(values: Sequence[float], runs: Sequence[int]) -> dict[str, float]:
    low, high = intervals.mean(values, list(runs)[: len(values)])
    return {"mean": sum(values) / len(values), "low": low, "high": high}
