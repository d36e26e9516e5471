"""Records found among candidates are subtracted, and what is left gives the attacked one away."""

import statistics
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from sottovoce import ModuleProblem, Recording, simulate
from sottovoce.errors import AttackError
from sottovoce.graphs import as_graph
from sottovoce.privacy.adversaries import CuriousAgents, Eavesdropper
from sottovoce.privacy.attacks import Estimate, LeastSquares, Refined, Restart, sent_again
from sottovoce.privacy.knowledge import Candidates, Inputs, Knowledge
from sottovoce.privacy.readers.identification import identify
from sottovoce.privacy.readers.posterior import Posterior
from sottovoce.privacy.readers.prior import GaussianPrior
from sottovoce.privacy.readers.reader import Answer
from sottovoce.problems.data import sets as datasets
from sottovoce.randomness import private_streams
from sottovoce.simulation.options import Options
from sottovoce.studies.masked_sums import MaskedSums, neighbours_from_sums

INPUTS = Inputs((1, 28, 28), mean=0.1307, std=0.3081)
AGENTS, EACH, ROUND, REACH = 5, 30, 12, 2
MEMBERS = AGENTS * EACH


@cache
def images() -> tuple[Tensor, Tensor]:
    data = datasets.load("subset").training
    order = torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(0))[:900]
    pixels = (data.images[order] / 255).view(-1, 1, 28, 28)
    return INPUTS.standardise(pixels), data.labels[order].long()


class Trained:
    """Softmax regression on images, one a batch, by an algorithm on a ring of five."""

    def __init__(self, algorithm: str, stepsize: str) -> None:
        records, labels = images()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
        data = [(records[i:MEMBERS:AGENTS], labels[i:MEMBERS:AGENTS]) for i in range(AGENTS)]
        problem = ModuleProblem(self.model, nn.functional.cross_entropy, data, batch=1)
        result = simulate(
            problem,
            algorithm,
            as_graph("ring:5"),
            steps=ROUND + REACH,
            runs=1,
            stepsize=stepsize,
            insecure_seed=3,
            options=Options(
                measure=[ROUND], record=Recording(range(ROUND - REACH, ROUND + REACH + 1), [0])
            ),
        )
        assert result.transcript is not None
        self.transcript = result.transcript
        streams = private_streams(range(1), AGENTS, insecure_seed=3)
        drawn, told = problem.samples(streams, ROUND)
        truth = self.transcript.truth
        at = self.transcript.rounds.index(ROUND)
        self.answer = Answer(
            INPUTS.pixels(drawn[0]), told[0], truth.gradients[at][0], truth.states[at][0]
        )
        self.places = (drawn[0].flatten(1)[:, None] == records.flatten(1)).all(2).double().argmax(1)
        self.knowledge = Knowledge(
            self.model, nn.functional.cross_entropy, INPUTS, records[MEMBERS:], labels[MEMBERS:]
        )
        self.candidates = Candidates(records[:MEMBERS], labels[:MEMBERS])

    def error(self, found: Estimate) -> float:
        """Root mean square over all agents."""
        return float((found.gradient - self.answer.gradient).square().mean().sqrt())

    def ranks(self, found: Estimate) -> Tensor:
        scores = identify(self.knowledge, found, self.candidates, 0.0)
        own = scores.gather(1, self.places[:, None])
        return 1 + (scores > own).sum(1)


@cache
def zero_sum() -> Trained:
    return Trained("zero-sum:0.3", "0.05/k")


def every_agent(attack, view) -> Estimate:
    each = [attack.estimate(view, agent, ROUND) for agent in range(AGENTS)]
    return Estimate(
        torch.cat([one.gradient for one in each]), True, torch.cat([one.state for one in each])
    )


@cache
def estimates() -> tuple[Estimate, Estimate]:
    """Of all agents, by least squares and after subtraction."""
    trained = zero_sum()
    view = Eavesdropper().view(trained.transcript)
    refined = Refined(reach=REACH).informed(trained.knowledge, trained.candidates, 0.0)
    return every_agent(LeastSquares(), view), every_agent(refined, view)


def test_subtracting_what_is_found_leaves_less_noise() -> None:
    trained = zero_sum()
    plain, refined = estimates()
    before, after = trained.error(plain), trained.error(refined)
    assert after < 0.8 * before
    slope = (refined.gradient * trained.answer.gradient).sum()
    slope /= trained.answer.gradient.double().square().sum()
    assert abs(float(slope) - 1) < 0.1
    assert float(trained.ranks(refined).double().median()) == 1


def test_without_the_records_among_candidates_nothing_is_made_worse() -> None:
    trained = zero_sum()
    view = Eavesdropper().view(trained.transcript)
    others = Candidates(trained.knowledge.records[:150], trained.knowledge.labels[:150])
    found = every_agent(
        Refined(reach=REACH, sweeps=2).informed(trained.knowledge, others, 0.0), view
    )
    plain = every_agent(LeastSquares(), view)
    assert trained.error(found) < trained.error(plain)


def test_refined_needs_to_be_informed_of_few_candidates_and_near_stepsizes() -> None:
    trained = zero_sum()
    view = Eavesdropper().view(trained.transcript)
    known, count = trained.knowledge, 10**5
    among = Candidates(torch.zeros(1).expand(count, 1, 28, 28), torch.zeros(count))
    with pytest.raises(AttackError, match="stepsizes of std/mean"):
        Refined().informed(known, trained.candidates, 0.5).estimate(view, 0, ROUND)
    with pytest.raises(AttackError, match="give fewer candidates"):
        Refined().informed(known, among, 0.0).estimate(view, 0, ROUND)
    with pytest.raises(AttackError, match="needs a model and candidates"):
        Refined().estimate(view, 0, ROUND)


def errors(found: Tensor) -> Tensor:
    return (found - zero_sum().answer.images).flatten(1).square().sum(1)


def guesses() -> tuple[float, float]:
    """Median errors of the mean record and of the mean of the right class."""
    trained = zero_sum()
    pixels, labels = INPUTS.pixels(trained.knowledge.records), trained.knowledge.labels
    by_label = torch.stack([pixels[labels == one].mean(0) for one in range(10)])
    told = by_label[trained.answer.labels]
    return float(errors(pixels.mean(0).expand_as(told[:, 0])[:, None]).median()), float(
        errors(told).median()
    )


def test_the_posterior_reads_images_from_estimates_with_noise() -> None:
    trained = zero_sum()
    blind, label = guesses()
    reader = Posterior(components=40).informed(trained.knowledge)
    found = reader.read(trained.model, estimates()[1], INPUTS, 0.0)
    assert float(errors(found.images).median()) < min(blind, label) / 2
    assert int((found.labels == trained.answer.labels).sum()) >= AGENTS - 1


def test_the_posterior_reads_the_exact_gradient_and_nothing_from_noise() -> None:
    trained = zero_sum()
    reader = Posterior(components=40).informed(trained.knowledge)
    exact, noise = reader.controls(trained.answer).values()
    assert errors(reader.read(trained.model, exact, INPUTS, 0.0).images).max() < 5
    found = reader.read(trained.model, noise, INPUTS, 0.0)
    assert float(errors(found.images).median()) >= 0.9 * min(guesses())


@pytest.mark.parametrize("signs_known", [True, False])
def test_the_posterior_reads_through_private_factors(signs_known: bool) -> None:
    trained = zero_sum()
    generator = torch.Generator().manual_seed(0)
    exact = trained.answer.gradient.double()
    factors = 2 * torch.rand(exact.shape, generator=generator)
    if not signs_known:
        factors *= 2.0 * torch.randint(0, 2, exact.shape, generator=generator) - 1
    seen = Estimate(factors * exact, False, trained.answer.state.double(), signs_known=signs_known)
    reader = Posterior(components=40).informed(trained.knowledge)
    found = reader.read(trained.model, seen, INPUTS, 0.58)
    assert float(errors(found.images).median()) < min(guesses())


def test_a_prior_has_the_moments_of_the_records() -> None:
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(5, 5, generator=generator).double()
    records = torch.randn(4000, 5, generator=generator).double() @ mixing + 3
    labels = torch.arange(4000) % 2
    prior = GaussianPrior.learn(records + labels[:, None], labels, components=5)
    torch.testing.assert_close(
        prior.means[1] - prior.means[0], torch.ones(5).double(), atol=0.3, rtol=0
    )
    own = prior.directions[0]
    torch.testing.assert_close(own.T @ own, torch.cov(records[::2].T, correction=0))
    with pytest.raises(AttackError, match="real numbers"):
        GaussianPrior.learn(labels[:, None], labels, 2)


def test_no_prior_is_learnt_from_tokens() -> None:
    tokens = torch.arange(12).view(6, 2)
    model = nn.Linear(2, 2)
    known = Knowledge(model, nn.functional.cross_entropy, Inputs((2,)), tokens, tokens[:, 0])
    reader = Posterior().informed(known)
    nothing = Estimate(torch.zeros(1, 6).double(), True, torch.zeros(1, 6).double())
    assert not reader.suits(model, known.inputs, nothing, True)


def test_one_repeated_round_names_the_record_to_a_single_neighbour() -> None:
    trained = Trained("pdsgd", "experiment:0.05/k")
    again = sent_again(trained.transcript, ROUND, insecure_seed=9)
    view = CuriousAgents({0}).view(trained.transcript, again)
    found = Restart().estimate(view, 1, ROUND)
    truth = trained.answer.gradient[1:2].double()
    assert float(nn.functional.cosine_similarity(found.gradient, truth).abs()) > 0.95
    scores = identify(trained.knowledge, found, trained.candidates, 0.0)[0]
    assert int(scores.argmax()) == int(trained.places[1])


@pytest.mark.slow
def test_masked_sums_name_the_images_of_both_neighbours_on_a_ring() -> None:
    found = neighbours_from_sums(MaskedSums(insecure_seed=1))
    ranks = [one[0] for one in found.lined[0].ranks if one is not None]
    assert len(ranks) == 16
    assert statistics.median(ranks) <= 2
