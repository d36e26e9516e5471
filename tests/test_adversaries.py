"""Adversaries see their part of a transcript, and no attack sees more."""

import dataclasses
from functools import cache

import pytest
import torch

from sottovoce import DSGD, PDSGD, NoisyDSGD, Quadratic, Recording, complete, ring, simulate
from sottovoce.errors import AttackError
from sottovoce.privacy.adversaries import Adversary, CuriousAgents, Eavesdropper, parse_adversary
from sottovoce.privacy.attacks import ATTACKS
from sottovoce.simulation.options import Options
from sottovoce.simulation.transcript import Transcript, Truth

NAN = float("nan")


PRIVATE = PDSGD()


@cache
def recorded(algorithm=PRIVATE, graph=ring) -> Transcript:
    network = graph(5)
    problem = Quadratic.random(network.agents, 30, noise=1.0)
    rounds = Recording(range(1, 7), range(2))
    result = simulate(
        problem,
        algorithm,
        network,
        steps=6,
        runs=2,
        insecure_seed=7,
        options=Options(record=rounds),
    )
    assert result.transcript is not None
    return result.transcript


def blinded(transcript: Transcript, adversary: Adversary) -> Transcript:
    """The same transcript with NaN in every place that the adversary does not see."""
    own = sorted(getattr(adversary, "agents", ()))
    touched = torch.isin(transcript.sender, torch.tensor(own, dtype=torch.long)) | torch.isin(
        transcript.receiver, torch.tensor(own, dtype=torch.long)
    )
    messages = transcript.messages.clone()
    if isinstance(adversary, CuriousAgents):
        messages[:, :, ~touched] = NAN
    truth = {}
    for field in dataclasses.fields(Truth):
        hidden = torch.full_like(getattr(transcript.truth, field.name), NAN)
        hidden[:, :, own] = getattr(transcript.truth, field.name)[:, :, own]
        truth[field.name] = hidden
    return dataclasses.replace(transcript, messages=messages, truth=Truth(**truth))


def outcome(attack, adversary, transcript, round):
    """An estimate, or the reason why there is none."""
    try:
        return attack.estimate(adversary.view(transcript), 1, round)
    except AttackError as error:
        return str(error)


@pytest.mark.parametrize("algorithm", [DSGD(), PDSGD(), NoisyDSGD(0.01)], ids=str)
@pytest.mark.parametrize(
    "adversary", [Eavesdropper(), CuriousAgents({0}), CuriousAgents({0, 2})], ids=str
)
def test_no_attack_reads_what_its_adversary_does_not_see(algorithm, adversary):
    whole = recorded(algorithm)
    hidden = blinded(whole, adversary)
    assert hidden.truth.states.isnan().any()
    ran = 0
    for attack in ATTACKS.values():
        for round in (1, 4):
            expected, found = (outcome(attack, adversary, t, round) for t in (whole, hidden))
            if isinstance(expected, str):
                assert found == expected
                continue
            assert torch.equal(found.gradient, expected.gradient)
            assert torch.equal(found.state, expected.state)
            assert found.gradient.isfinite().all()
            ran += 1
    assert ran > 0 or isinstance(algorithm, DSGD)


def test_an_eavesdropper_sees_every_link_and_no_inside():
    transcript = recorded()
    view = Eavesdropper().view(transcript)
    assert view.messages.shape == transcript.messages.shape
    assert not view.inside
    assert view.states is None
    assert view.stepsizes is None
    assert all(view.sees_all_links_of(agent) for agent in range(5))


def test_curious_agents_see_their_links_and_themselves():
    transcript = recorded()
    view = CuriousAgents({1, 3}).view(transcript)
    pairs = set(zip(view.sender.tolist(), view.receiver.tolist(), strict=True))
    assert pairs == {(a, b) for a in (1, 3) for b in (a - 1, a + 1)} | {
        (b % 5, a) for a in (1, 3) for b in (a - 1, a + 1)
    } - {(5, 3)}
    assert set(view.inside) == {1, 3}
    assert torch.equal(view.inside[3].steps, transcript.truth.steps[:, :, 3])
    assert view.sees_all_links_of(2)
    assert not view.sees_all_links_of(0)
    assert CuriousAgents({1, 3}).targets(transcript.graph) == [0, 2, 4]


def test_side_information_is_what_it_says():
    transcript = recorded()
    view = Eavesdropper(knows={"state", "stepsizes"}).view(transcript)
    assert view.states is not None
    assert view.stepsizes is not None
    assert torch.equal(view.states, transcript.truth.states)
    product = view.stepsizes * transcript.truth.gradients
    torch.testing.assert_close(product, transcript.truth.steps, rtol=1e-12, atol=0)


def test_a_public_stepsize_as_side_information_carries_no_noise():
    view = Eavesdropper(knows="stepsizes").view(recorded(NoisyDSGD(1.0)))
    assert view.stepsizes is not None
    for at, round in enumerate(view.rounds):
        assert torch.equal(view.stepsizes[at], torch.full_like(view.stepsizes[at], 1 / round))


def test_weights_of_links_are_those_of_the_mixing_matrix():
    view = Eavesdropper().view(recorded(graph=complete))
    links = list(range(len(view.sender)))
    expected = view.graph.mixing.toarray()[view.receiver.numpy(), view.sender.numpy()]
    assert torch.equal(view.weights(links), torch.from_numpy(expected))


@pytest.mark.parametrize(
    ("text", "name"), [("eavesdropper", "eavesdropper"), ("agents:3,1", "agents:1,3")]
)
def test_adversaries_are_read_from_text(text, name):
    assert str(parse_adversary(text)) == name


@pytest.mark.parametrize("text", ["agents:", "agents:a", "eve", "eavesdropper:1", "agents:-1"])
def test_unknown_adversaries_are_refused(text):
    with pytest.raises(AttackError, match="accepted: eavesdropper, agents:1, agents:1,3"):
        parse_adversary(text)


def test_refusals_name_what_was_given():
    with pytest.raises(AttackError, match="cannot know gradients"):
        Eavesdropper(knows={"gradients"})
    with pytest.raises(AttackError, match="one agent number or more"):
        CuriousAgents([])
    with pytest.raises(AttackError, match="no agent 9"):
        CuriousAgents([9]).view(recorded())
