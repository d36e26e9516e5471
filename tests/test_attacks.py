"""Each attack is exact where its formula is, and refused where something is missing."""

import dataclasses
from functools import cache
from statistics import median

import pytest
import torch

from sottovoce import (
    DSGD,
    PDSGD,
    Experiment,
    NoisyDSGD,
    Power,
    Quadratic,
    Recording,
    Stepsize,
    Uniform,
    complete,
    grid,
    path,
    ring,
    simulate,
    star,
)
from sottovoce.errors import AttackError
from sottovoce.privacy.adversaries import CuriousAgents, Eavesdropper
from sottovoce.privacy.attacks import (
    Averaging,
    Chain,
    Conventional,
    Elimination,
    FirstRound,
    KnownState,
    LeastSquares,
    OwnState,
    attack_named,
    state_from_messages,
)
from sottovoce.privacy.readers.metrics import gradient_cosine, gradient_relative_error
from sottovoce.simulation.options import Options

GRAPHS = {"ring": ring(5), "complete": complete(4), "grid": grid(2, 3)}
ROUNDS = 8
EXPERIMENT = Experiment()


@cache
def recorded(algorithm, graph=GRAPHS["ring"], law=EXPERIMENT, d=200, noise=1.0):
    problem = Quadratic.random(graph.agents, d, noise=noise, seed=1)
    result = simulate(
        problem,
        algorithm,
        graph,
        steps=ROUNDS,
        runs=2,
        stepsize=Stepsize(Power(), law) if str(algorithm).startswith("pdsgd") else None,
        insecure_seed=11,
        options=Options(record=Recording(range(1, ROUNDS + 1), range(2))),
    )
    assert result.transcript is not None
    return result.transcript


def truth(transcript, kind, target, round):
    return getattr(transcript.truth, kind)[round - 1][:, target]


def error(estimate, transcript, kind, target, round, scale_free=False):
    exact = truth(transcript, kind, target, round)
    return gradient_relative_error(estimate, exact, scale_free=scale_free).max().item()


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("round", [1, 5])
def test_conventional_returns_the_gradient_of_dsgd(graph, round):
    transcript = recorded(DSGD(), GRAPHS[graph])
    for target in range(transcript.graph.agents):
        found = Conventional().estimate(Eavesdropper().view(transcript), target, round)
        assert error(found.gradient, transcript, "gradients", target, round) < 1e-9
        if round > 1:
            assert error(found.state, transcript, "states", target, round) < 1e-9


def test_conventional_on_pdsgd_finds_mostly_the_next_rounds_gradient():
    transcript = recorded(PDSGD())
    view = Eavesdropper().view(transcript)
    cosines = {5: [], 6: []}
    for target in range(5):
        found = Conventional().estimate(view, target, 5).gradient
        for k, kept in cosines.items():
            kept += gradient_cosine(found, truth(transcript, "gradients", target, k)).tolist()
    assert abs(median(cosines[5])) < 0.5
    assert median(cosines[6]) > 0.8


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("law", [Experiment(), Uniform()], ids=lambda law: law.name)
@pytest.mark.parametrize("mixing", ["uniform", "dirichlet"])
def test_elimination_returns_the_step_up_to_a_scalar(graph, law, mixing):
    transcript = recorded(PDSGD(mixing), GRAPHS[graph], law)
    for target in range(transcript.graph.agents):
        found = Elimination().estimate(Eavesdropper().view(transcript), target, 5)
        assert not found.scale_known
        assert error(found.gradient, transcript, "steps", target, 5, scale_free=True) < 1e-9


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("law", [Experiment(), Uniform()], ids=lambda law: law.name)
@pytest.mark.parametrize("round", [1, 2, 5])
def test_chain_returns_state_and_step_themselves(graph, law, round):
    transcript = recorded(PDSGD(), GRAPHS[graph], law)
    for target in range(transcript.graph.agents):
        everyone = Eavesdropper()
        colluding = CuriousAgents(transcript.graph.neighbours(target))
        for adversary in (everyone, colluding):
            found = Chain().estimate(adversary.view(transcript), target, round)
            assert found.scale_known
            assert found.step is not None
            assert error(found.step, transcript, "steps", target, round) < 1e-9
            if round > 1:
                assert error(found.state, transcript, "states", target, round) < 1e-9


def test_chain_is_refused_where_the_target_has_one_link():
    for graph, target in ((path(4), 0), (star(5), 3)):
        view = Eavesdropper().view(recorded(PDSGD(), graph))
        with pytest.raises(AttackError, match=f"chain needs 2 messages of agent {target}"):
            Chain().estimate(view, target, 3)
        with pytest.raises(AttackError, match="elimination needs 2 messages"):
            Elimination().estimate(view, target, 3)


def test_chain_is_refused_to_agents_that_hold_only_some_links():
    view = CuriousAgents({0}).view(recorded(PDSGD()))
    with pytest.raises(AttackError, match="sees 1 of its 2 links"):
        Chain().estimate(view, 1, 3)
    view = CuriousAgents({0, 2}).view(recorded(PDSGD(), GRAPHS["complete"]))
    with pytest.raises(AttackError, match="all messages from and to agent 1"):
        Chain().estimate(view, 1, 3)


def test_chain_needs_the_rounds_before_and_after():
    view = Eavesdropper().view(recorded(PDSGD()))
    with pytest.raises(AttackError, match=f"chain needs round {ROUNDS + 1}"):
        Chain().estimate(view, 1, ROUNDS)


def test_nothing_can_be_eliminated_from_dsgd_or_from_equal_shares_with_equal_weights():
    with pytest.raises(AttackError, match="dsgd sends none"):
        Elimination().estimate(Eavesdropper().view(recorded(DSGD())), 1, 3)
    with pytest.raises(AttackError, match="finds no difference"):
        Elimination().estimate(Eavesdropper().view(recorded(NoisyDSGD(0.0))), 1, 3)


@pytest.mark.parametrize("algorithm", [DSGD(), NoisyDSGD(0.0), PDSGD("equal")], ids=str)
def test_least_squares_is_exact_where_the_coefficients_are_public(algorithm):
    transcript = recorded(algorithm)
    found = LeastSquares().estimate(Eavesdropper().view(transcript), 2, 5)
    free = algorithm == PDSGD("equal")
    kind = "steps" if free else "gradients"
    assert error(found.gradient, transcript, kind, 2, 5, scale_free=free) < 1e-9
    assert error(found.state, transcript, "states", 2, 5) < 1e-9


def test_least_squares_comes_near_on_pdsgd_and_is_refused_without_the_sums():
    transcript = recorded(PDSGD())
    view = Eavesdropper().view(transcript)
    cosines = [
        gradient_cosine(
            LeastSquares().estimate(view, agent, round).gradient,
            truth(transcript, "gradients", agent, round),
        )
        for agent in range(5)
        for round in range(2, ROUNDS)
    ]
    assert torch.cat(cosines).median() > 0.9
    with pytest.raises(AttackError, match="cannot tell the step of agent 2"):
        LeastSquares().estimate(CuriousAgents({1}).view(transcript), 2, 5)


def test_a_known_start_gives_the_first_step_from_one_message():
    transcript = recorded(PDSGD())
    found = FirstRound().estimate(CuriousAgents({0}).view(transcript), 1, 1)
    assert error(found.gradient, transcript, "steps", 1, 1, scale_free=True) < 1e-9
    exact = FirstRound().estimate(Eavesdropper().view(recorded(NoisyDSGD(0.0))), 1, 1)
    assert exact.scale_known
    assert error(exact.gradient, recorded(NoisyDSGD(0.0)), "gradients", 1, 1) < 1e-9
    with pytest.raises(AttackError, match="needs round 1, not round 2"):
        FirstRound().estimate(Eavesdropper().view(transcript), 1, 2)


def test_a_neighbours_own_state_is_a_poor_substitute_until_consensus():
    transcript = recorded(PDSGD())
    view = CuriousAgents({0}).view(transcript)
    first, later = (
        error(OwnState().estimate(view, 1, k).gradient, transcript, "steps", 1, k, scale_free=True)
        for k in (1, 5)
    )
    assert first < 1e-9
    assert later > 0.1
    with pytest.raises(AttackError, match="curious neighbour of agent 3"):
        OwnState().estimate(view, 3, 5)


def test_with_state_and_stepsizes_known_b_leaves_one_scalar_to_a_neighbour_and_nothing_to_all():
    transcript = recorded(PDSGD(), law=Uniform())
    both = {"state", "stepsizes"}
    neighbour = KnownState().estimate(CuriousAgents({0}, both).view(transcript), 1, 5)
    assert not neighbour.scale_known
    assert error(neighbour.gradient, transcript, "gradients", 1, 5, scale_free=True) < 1e-9
    everyone = KnownState().estimate(Eavesdropper(both).view(transcript), 1, 5)
    assert everyone.scale_known
    assert error(everyone.gradient, transcript, "gradients", 1, 5) < 1e-9
    with pytest.raises(AttackError, match="knows="):
        KnownState().estimate(Eavesdropper().view(transcript), 1, 5)


def test_known_stepsizes_turn_elimination_and_chain_into_the_gradient():
    transcript = recorded(PDSGD(), law=Uniform())
    view = Eavesdropper("stepsizes").view(transcript)
    direction = Elimination().estimate(view, 1, 5)
    assert error(direction.gradient, transcript, "gradients", 1, 5, scale_free=True) < 1e-9
    whole = Chain().estimate(view, 1, 5)
    assert error(whole.gradient, transcript, "gradients", 1, 5) < 1e-9


def test_averaging_helps_where_the_gradient_stays_and_not_where_it_changes():
    still = recorded(PDSGD(), law=Uniform(), noise=0.0)
    moving = recorded(PDSGD(), law=Uniform(), noise=5.0)
    for transcript, helps in ((still, True), (moving, False)):
        view = Eavesdropper().view(transcript)
        once, mean = (
            gradient_cosine(a.estimate(view, 1, 7).gradient, truth(transcript, "gradients", 1, 7))
            .abs()
            .min()
            for a in (Elimination(), Averaging())
        )
        assert (mean > once) == helps


def test_states_read_from_messages_are_off_by_a_step_while_the_chain_is_exact():
    transcript = recorded(PDSGD())
    view = Eavesdropper().view(transcript)
    read = state_from_messages(view, 1, 4)
    exact = truth(transcript, "states", 1, 5)
    step = truth(transcript, "steps", 1, 5)
    off = (read - exact).norm(dim=1) / step.norm(dim=1)
    assert ((off > 0.3) & (off < 3)).all()


def test_targets_outside_the_graph_or_inside_the_adversary_are_refused():
    view = CuriousAgents({0}).view(recorded(PDSGD()))
    with pytest.raises(AttackError, match="one of the curious agents"):
        FirstRound().estimate(view, 0, 1)
    with pytest.raises(AttackError, match="no agent 7"):
        FirstRound().estimate(view, 7, 1)
    with pytest.raises(AttackError, match="'guess' is not known"):
        attack_named("guess")


def test_a_run_with_nothing_to_eliminate_leaves_the_others_open():
    transcript = recorded(PDSGD())
    messages = transcript.messages.clone()
    first, second = (transcript.sender == 1).nonzero().flatten().tolist()
    messages[4, 0, second] = messages[4, 0, first]
    view = Eavesdropper().view(dataclasses.replace(transcript, messages=messages))
    found = Elimination().estimate(view, 1, 5).gradient[1:]
    exact = truth(transcript, "steps", 1, 5)[1:]
    assert gradient_relative_error(found, exact, scale_free=True).max() < 1e-9
