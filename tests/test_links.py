"""What links leave to each adversary: masked sums, encrypted links, far agents, repeated rounds."""

import dataclasses
from functools import cache

import pytest
import torch

from sottovoce import DSGD, PDSGD, Quadratic, Recording, ZeroSumDSGD, path, ring, simulate, star
from sottovoce.errors import AttackError
from sottovoce.privacy.adversaries import CuriousAgents, Eavesdropper, parse_adversary
from sottovoce.privacy.attacks import ATTACKS, LongRange, OwnState, Restart, sent_again
from sottovoce.privacy.readers.metrics import gradient_cosine
from sottovoce.simulation.options import Options

DSGD_, PDSGD_, RING = DSGD(), PDSGD(), ring(5)


@cache
def recorded(algorithm=DSGD_, graph=RING, rounds=12, first=1, noise=3.0):
    problem = Quadratic.random(graph.agents, 300, noise=noise, seed=2)
    result = simulate(
        problem,
        algorithm,
        graph,
        steps=rounds,
        runs=2,
        stepsize="0.05/k^0.5",
        insecure_seed=5,
        options=Options(record=Recording(range(first, rounds + 1), range(2))),
    )
    assert result.transcript is not None
    return result.transcript


def cosine(estimate, transcript, target, round):
    at = transcript.rounds.index(round)
    truth = transcript.truth.gradients[at][:, target].double()
    return gradient_cosine(estimate.gradient, truth)


def noise_in_place_of_messages(transcript):
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(transcript.messages.shape, generator=generator, dtype=torch.float64)
    return dataclasses.replace(transcript, messages=drawn * transcript.messages.std())


def test_an_eavesdropper_on_encrypted_links_sees_nothing_and_every_attack_says_so():
    view = Eavesdropper(links="encrypted").view(recorded())
    assert view.blind
    assert not view.messages.numel()
    for attack in ATTACKS.values():
        with pytest.raises(AttackError, match=r"encrypted|known-state needs the target's state"):
            attack.estimate(view, 1, 4)


def test_curious_agents_on_encrypted_links_see_what_they_receive():
    plain, encrypted = (CuriousAgents({0}, links=links) for links in ("plain", "encrypted"))
    assert torch.equal(plain.view(recorded()).messages, encrypted.view(recorded()).messages)
    assert str(encrypted) == "agents:0 on encrypted links"


def test_the_receiver_of_masked_sums_sees_the_sum_and_no_message_of_others():
    transcript = recorded()
    view = parse_adversary("agents:1", links="masked").view(transcript)
    assert view.sums is not None
    assert (view.sums.receivers, view.sums.senders) == ([1], [[0, 2]])
    assert set(view.sender.tolist()) == {1}
    received = [at for at, (i, _) in enumerate(transcript.ends()) if i == 1]
    expected = transcript.messages[:, :, received].double().sum(2)
    torch.testing.assert_close(view.sums.values[:, :, 0], expected)


def test_a_sum_of_one_unknown_message_is_that_message():
    """Masks need two senders: a leaf of a star, or a receiver whose other senders collude."""
    leaf = CuriousAgents({1}, links="masked")
    assert set(leaf.seen_links(star(4))) == {(0, 1), (1, 0)}
    assert not leaf.seen_sums(star(4))
    colluding = CuriousAgents({0, 1}, links="masked").view(recorded())
    assert {(0, 4), (1, 2)} <= set(colluding.ends())
    assert colluding.sums is None


def test_attacks_on_single_messages_name_what_masks_hide():
    view = CuriousAgents({0}, links="masked").view(recorded(PDSGD_))
    for attack in ATTACKS.values():
        if attack.name not in ("long-range", "refined", "known-state"):
            with pytest.raises(AttackError, match="masked"):
                attack.estimate(view, 1, 4)


def test_who_adds_up_all_masked_messages_of_a_ring_computes_every_gradient_of_dsgd():
    """Masks cancel in each receiver's sum, also for an eavesdropper: masks are no encryption."""
    transcript = recorded()
    view = Eavesdropper(links="masked").view(transcript)
    for target in range(5):
        found = LongRange().estimate(view, target, 6)
        assert cosine(found, transcript, target, 6).min() > 0.999
    blind = noise_in_place_of_messages(transcript)
    found = LongRange().estimate(Eavesdropper(links="masked").view(blind), 1, 6)
    assert cosine(found, transcript, 1, 6).abs().max() < 0.3


def test_a_receiver_of_sums_learns_the_mean_step_of_its_two_neighbours():
    transcript = recorded(first=3)
    view = CuriousAgents({0}, links="masked").view(transcript)
    left, right = (LongRange().estimate(view, j, 8) for j in (1, 4))
    torch.testing.assert_close(left.gradient, right.gradient, rtol=1e-4, atol=1e-4)
    both = transcript.truth.gradients[transcript.rounds.index(8)][:, [1, 4]].mean(1).double()
    assert gradient_cosine(left.gradient, both).min() > 0.8


def test_a_step_reaches_a_curious_agent_over_links_that_it_does_not_see():
    """Agent 0 at the end of a path sees agent 1 alone; whole data sets make steps steady."""
    graph = path(4)
    transcript = recorded(DSGD_, graph, noise=0.0)
    view = CuriousAgents({0}).view(transcript)
    assert not view.links_from(2) + view.links_from(3)
    for target in (1, 2, 3):
        found = LongRange().estimate(view, target, 6)
        assert cosine(found, transcript, target, 6).min() > 0.9
    noise = CuriousAgents({0}).view(noise_in_place_of_messages(transcript))
    assert cosine(LongRange().estimate(noise, 2, 6), transcript, 2, 6).abs().max() < 0.3


def test_noise_of_a_public_size_is_weighed():
    transcript = recorded(ZeroSumDSGD(1.0))
    view = CuriousAgents({0}).view(transcript)
    small = LongRange().estimate(view, 1, 6).gradient.norm()
    assert small < 2 * transcript.truth.gradients[5][:, 1].norm()


def test_one_repeated_round_gives_the_gradient_to_a_single_neighbour():
    transcript = recorded(PDSGD_)
    again = sent_again(transcript, 6, insecure_seed=9)
    view = CuriousAgents({0}).view(transcript, again)
    assert cosine(Restart().estimate(view, 1, 6), transcript, 1, 6).abs().min() > 0.95
    alone = OwnState().estimate(view, 1, 6)
    assert cosine(alone, transcript, 1, 6).abs().min() < 0.5
    with pytest.raises(AttackError, match="sent once"):
        Restart().estimate(CuriousAgents({0}).view(transcript), 1, 6)
    same = dataclasses.replace(again, messages=transcript.messages[5:6])
    with pytest.raises(AttackError, match="same bytes"):
        Restart().estimate(CuriousAgents({0}).view(transcript, same), 1, 6)


def test_unknown_links_are_refused_with_what_is_accepted():
    with pytest.raises(AttackError, match="plain, encrypted, masked"):
        parse_adversary("eavesdropper", links="tls")
