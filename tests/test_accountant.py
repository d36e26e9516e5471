"""The accountant against closed forms, a dense brute force and the real algorithm's messages."""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from sottovoce.cli import app as cli_app
from sottovoce.errors import AttackError, PrivacyError
from sottovoce.graphs import Graph, complete, erdos_renyi, grid, path, ring, star
from sottovoce.mechanisms import (
    DSGD,
    PDSGD,
    Clock,
    Flow,
    Mechanism,
    NoisyDSGD,
    Part,
    Place,
    Scope,
    Shares,
    ZeroSumDSGD,
    ZeroSumNoise,
    parse_algorithm,
)
from sottovoce.mechanisms.reference import by_messages, exchange, take_step
from sottovoce.privacy.accountant import AccountSettings, account
from sottovoce.privacy.adversaries import Adversary, CuriousAgents, Eavesdropper, parse_adversary
from sottovoce.privacy.columns import Seen
from sottovoce.privacy.composition import gaussian_delta, gaussian_epsilon
from sottovoce.privacy.message_law import MessageLaw, seen_links
from sottovoce.problems import Quadratic
from sottovoce.randomness import private_streams
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Recording, Setting, Transcript, Truth
from sottovoce.stepsizes import parse_stepsize

CONSTANT = parse_stepsize("0.1")
FALLING = parse_stepsize("0.5/(k+2)")
TWO = CuriousAgents([0, 2])
SIZE = 0.7
GRAPHS = [ring(5), star(5), erdos_renyi(7, 0.4)]


def multipliers(view: MessageLaw, agent: int) -> np.ndarray:
    return view.posterior(agent).sd / view.stepsizes[:, agent]


def recorded(
    graph: Graph, algorithm: Mechanism, rounds: int, jitter: float = 0.0, entries: int = 30_000
) -> Transcript:
    """Rounds of the real share rule on Gaussian gradients; entries are independent samples."""
    draw = torch.Generator().manual_seed(5)
    routes, agents = graph.routes(), graph.agents
    streams = private_streams(1, agents, insecure_seed=5)

    def normal() -> torch.Tensor:
        return torch.randn(1, agents, entries, generator=draw, dtype=torch.float64)

    start = torch.full((1, entries), 3.0, dtype=torch.float64)
    state = start[:, None] + jitter * normal()
    states, steps, messages = [], [], []
    flow = Flow(state, state, routes, streams, FALLING, Clock(1))
    see = by_messages(algorithm, lambda v: messages.append(v[:, ~routes.own]))
    for k in range(1, rounds + 1):
        flow.at, flow.s = Clock(k), SIZE * normal()
        states.append(flow.x)
        steps.append(FALLING.mean(k) * flow.s)
        take_step(algorithm, flow)
        exchange(algorithm, flow, see)
    return Transcript(
        Setting(graph, algorithm, FALLING, jitter),
        list(range(1, rounds + 1)),
        [0],
        routes.sender[~routes.own],
        routes.receiver[~routes.own],
        torch.stack(messages),
        Truth(torch.stack(states), torch.stack(steps), torch.stack(steps)),
        start,
    )


def deviations(transcript: Transcript, adversary: Adversary, model: MessageLaw) -> np.ndarray:
    """Observed error of every determined step's estimate, relative to what the model says."""
    view = adversary.view(transcript)
    found = []
    for agent in adversary.targets(transcript.graph):
        estimator, posterior = model.estimator(agent), model.posterior(agent)
        assert (np.isfinite(posterior.sd) == estimator.identified).all()
        error = estimator.apply(view.messages, view.start) - transcript.truth.steps[:, :, agent]
        observed = error.square().mean((1, 2)).sqrt().numpy()
        found.append(observed[estimator.identified] / posterior.sd[estimator.identified])
    return np.concatenate(found)


@pytest.mark.parametrize("adversary", [Eavesdropper(), TWO], ids=str)
@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_the_posterior_is_the_error_of_the_estimate_on_real_messages(
    graph: Graph, adversary: Adversary
) -> None:
    jitter = 0.2 if graph.name == "star:5" else 0.0
    transcript = recorded(graph, ZeroSumDSGD(0.3), 4, jitter)
    view = adversary.view(transcript)
    for prior in ("unknown", SIZE):
        found = deviations(transcript, adversary, MessageLaw.of(view, prior=prior))
        assert len(found) >= 3
        assert found == pytest.approx(1.0, abs=0.02)


def test_noise_on_the_gradient_is_what_the_estimate_is_off_by() -> None:
    transcript = recorded(grid(2, 2), NoisyDSGD(0.3), 3)
    view = Eavesdropper().view(transcript)
    assert deviations(transcript, Eavesdropper(), MessageLaw.of(view)) == pytest.approx(1, abs=0.02)


def test_a_wrong_noise_level_or_coefficient_is_noticed() -> None:
    transcript = recorded(ring(5), ZeroSumDSGD(0.3), 4)
    view = Eavesdropper().view(transcript)
    louder = MessageLaw.of(view, algorithm=ZeroSumDSGD(0.33))
    found = deviations(transcript, Eavesdropper(), louder)
    assert found == pytest.approx(0.3 / 0.33, abs=0.02)
    wrong = MessageLaw.of(view, algorithm=ZeroSumDSGD(0.33, "keep"))
    found = deviations(transcript, Eavesdropper(), wrong)
    assert (np.abs(found - 1) > 0.5).all()


def test_a_ring_by_hand() -> None:
    zero_sum = MessageLaw.against(Setting(ring(5), ZeroSumDSGD(0.2), CONSTANT), 8, Eavesdropper())
    one = math.sqrt(1.5) * 0.2
    expected = [one, *[math.sqrt(2) * one] * 7]
    assert multipliers(zero_sum, 3) == pytest.approx(expected)
    noisy = MessageLaw.against(Setting(ring(5), NoisyDSGD(0.2), CONSTANT), 8, Eavesdropper())
    assert multipliers(noisy, 3) == pytest.approx(0.2)


def test_one_round_alone_sees_more_noise_than_consecutive_rounds() -> None:
    def of_rounds(rounds: int) -> np.ndarray:
        unequal, algorithm = grid(3, 3), ZeroSumDSGD(0.2, "equal")
        view = MessageLaw.against(
            Setting(unequal, algorithm, CONSTANT), rounds, Eavesdropper(), start="unknown"
        )
        return multipliers(view, 1)

    assert of_rounds(8)[3] < 0.5 * of_rounds(1)[0] < math.inf


def test_an_unknown_start_hides_the_first_step_alone() -> None:
    for start, first in (("unknown", math.inf), (0.05, math.hypot(0.5, math.sqrt(1.5) * 0.2))):
        view = MessageLaw.against(
            Setting(ring(5), ZeroSumDSGD(0.2), CONSTANT), 5, Eavesdropper(), start=start
        )
        expected = [first, *[math.sqrt(3) * 0.2] * 4]
        assert multipliers(view, 0) == pytest.approx(expected)
        assert view.posterior_sd(0, 1) == pytest.approx(0.1 * first)


def brute_force(
    graph: Graph, noise: float, rounds: int, adversary: Adversary, prior: float
) -> np.ndarray:
    """Posterior deviations of s / λ̄ by one dense covariance of all steps, noises and messages."""
    m, weight = graph.agents, graph.mixing.toarray()
    routes = [(i, j) for j in range(m) for i in range(m) if weight[i, j]]
    size = rounds * (m + len(routes))
    state = np.zeros((m, size))
    seen_pairs = set(seen_links(graph, adversary))
    targets, seen = [], []
    for k in range(rounds):
        first = k * (m + len(routes))
        step = prior * 0.1 * np.eye(size)[first : first + m]
        z = dict(zip(routes, np.eye(size)[first + m :], strict=False))
        targets.append(step)
        after = np.zeros_like(state)
        for j in range(m):
            members = [i for i in range(m) if weight[i, j]]
            centre = sum(z[i, j] for i in members) / len(members)
            for i in members:
                share = weight[i, j] * step[j] + 0.1 * noise * (z[i, j] - centre)
                message = weight[i, j] * state[j] - share
                after[i] += message
                if (i, j) in seen_pairs:
                    seen.append(message)
        state = after
    y, s = np.array(seen), np.stack(targets, 1).reshape(-1, size)
    gain = s @ y.T @ np.linalg.pinv(y @ y.T, rcond=1e-12)
    left = s @ s.T - gain @ y @ s.T
    return np.sqrt(np.clip(np.diag(left), 0, None)).reshape(m, rounds) / 0.1


@pytest.mark.parametrize("graph", [grid(2, 3), path(4), complete(4)], ids=lambda g: g.name)
@pytest.mark.parametrize("adversary", [Eavesdropper(), CuriousAgents([1])], ids=str)
def test_a_dense_brute_force_finds_the_same_posterior(graph: Graph, adversary: Adversary) -> None:
    for prior in (0.5, 2.0):
        view = MessageLaw.against(
            Setting(graph, ZeroSumDSGD(0.3), CONSTANT), 4, adversary, prior=prior
        )
        expected = brute_force(graph, 0.3, 4, adversary, prior)
        for agent in adversary.targets(graph):
            assert multipliers(view, agent) == pytest.approx(expected[agent], rel=1e-6)


@pytest.mark.parametrize("adversary", [Eavesdropper(), TWO], ids=str)
def test_knowing_nothing_about_steps_is_the_limit_of_a_wide_prior(adversary: Adversary) -> None:
    graph = erdos_renyi(7, 0.4)
    flat = MessageLaw.against(Setting(graph, ZeroSumDSGD(0.3), FALLING), 5, adversary)
    wide = MessageLaw.against(Setting(graph, ZeroSumDSGD(0.3), FALLING), 5, adversary, prior=1e3)
    for agent in adversary.targets(graph):
        found, limit = multipliers(flat, agent), multipliers(wide, agent)
        known = np.isfinite(found)
        assert found[known] == pytest.approx(limit[known], rel=1e-3)
        assert (limit[~known] > 100).all()


def test_without_noise_steps_are_known_exactly_or_not_at_all() -> None:
    for algorithm, expected in ((DSGD(), [0, 0, 0, math.inf]), (PDSGD("equal"), [0, 0, 0, 0])):
        posterior = MessageLaw.against(
            Setting(ring(5), algorithm, CONSTANT), 4, Eavesdropper()
        ).posterior(2)
        assert posterior.exact
        assert posterior.sd.tolist() == expected


def test_the_estimator_reads_a_recorded_window_in_the_order_of_its_view() -> None:
    problem = Quadratic.random(6, 20)
    result = simulate(
        problem,
        ZeroSumDSGD(0.0),
        grid(2, 3),
        steps=7,
        stepsize=CONSTANT,
        insecure_seed=1,
        options=Options(record=Recording(rounds=range(3, 8))),
    )
    transcript = result.transcript
    assert transcript is not None
    for adversary in (Eavesdropper(), CuriousAgents([1, 3])):
        view = adversary.view(transcript)
        links = list(zip(view.receiver.tolist(), view.sender.tolist(), strict=True))
        assert seen_links(grid(2, 3), adversary) == links
        found = MessageLaw.of(view).estimator(0, [5]).apply(view.messages)
        truth = transcript.truth.steps[2, :, 0].double()
        assert (found[0] - truth).abs().max() < 1e-6 * truth.abs().max() + 1e-9


def test_rounds_with_a_gap_side_information_and_unknown_agents_are_refused() -> None:
    transcript = recorded(ring(5), DSGD(), 4, entries=1)
    view = Eavesdropper().view(transcript)
    gap = type(view)(**{**vars(view), "rounds": [1, 2, 4, 5]})
    with pytest.raises(AttackError, match="without a gap"):
        MessageLaw.of(gap)
    with pytest.raises(PrivacyError, match="side information"):
        seen_links(ring(5), Eavesdropper(knows=["state"]))
    with pytest.raises(PrivacyError, match="no agent 9"):
        seen_links(ring(5), CuriousAgents([9]))
    with pytest.raises(PrivacyError, match="no agent 5"):
        MessageLaw.of(view).posterior(5)
    with pytest.raises(PrivacyError, match="round 6"):
        MessageLaw.of(view).estimator(0, [6])
    with pytest.raises(AttackError, match="starting point"):
        MessageLaw.of(view).estimator(0).apply(view.messages)


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
def test_delta_is_the_hockey_stick_divergence(mu: float, epsilon: float) -> None:
    def excess(x: float) -> float:
        return max(0.0, norm.pdf(x, mu) - math.exp(epsilon) * norm.pdf(x))

    edge = epsilon / mu + mu / 2
    expected, _ = quad(excess, edge, edge + 12, epsabs=0.0, limit=200)
    assert gaussian_delta(mu, epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_epsilon_inverts_delta_from_tiny_to_huge() -> None:
    for mu in (1e-3, 0.5, 4.0, 100.0, 5000.0):
        epsilon = gaussian_epsilon(mu, 1e-5)
        assert epsilon == 0.0 or gaussian_delta(mu, epsilon) == pytest.approx(1e-5, rel=1e-3)
    assert gaussian_epsilon(1.0, 1e-5) == pytest.approx(4.3771, abs=1e-3)
    assert gaussian_epsilon(0.0, 1e-5) == gaussian_epsilon(1e-6, 1e-5) == 0.0
    assert gaussian_epsilon(math.inf, 1e-5) == math.inf
    for mu, delta in ((1.0, 0.0), (-1.0, 0.1)):
        with pytest.raises(PrivacyError):
            gaussian_epsilon(mu, delta)


def test_noise_on_the_gradient_composes_over_rounds_and_noise_that_sums_to_zero_does_not() -> None:
    rounds, noise = 12, 2.0
    noisy = account(
        NoisyDSGD(noise), ring(5), Eavesdropper(), AccountSettings(rounds=rounds, stepsize=CONSTANT)
    )
    kept = noisy.agents[0]
    assert kept.guaranteed
    assert kept.all_else.round_mu == pytest.approx(1 / noise)
    assert kept.all_else.total_mu == pytest.approx(math.sqrt(rounds) / noise)
    assert kept.sum_sd == pytest.approx(0.1 * noise * math.sqrt(rounds))
    zero_sum = account(
        ZeroSumDSGD(noise), ring(5), Eavesdropper(), AccountSettings(rounds, stepsize=CONSTANT)
    )
    kept = zero_sum.agents[0]
    assert kept.guaranteed
    assert kept.sum_sd == pytest.approx(0.1 * noise * math.sqrt(1.5))
    squares = sum(k**2 for k in range(1, rounds + 1))
    assert kept.all_else.total_mu == pytest.approx(math.sqrt(squares / 1.5) / noise)
    assert kept.all_else.round_mu == pytest.approx(math.sqrt(rounds / 1.5) / noise)


def test_the_size_of_gradients_leads_from_nothing_known_to_all_known() -> None:
    def median(gradient: float) -> float:
        settings = AccountSettings(20, CONSTANT, gradient=gradient)
        found = account(ZeroSumDSGD(1.0), ring(5), Eavesdropper(), settings).agents[0]
        assert found.size_known is not None
        assert found.all_else.median <= found.size_known.median <= found.nothing_else.median
        return found.size_known.median / found.nothing_else.median

    assert median(1e3) == pytest.approx(1.0, abs=1e-3)
    assert median(1.0) == pytest.approx(1.283 / math.sqrt(3), abs=1e-3)
    assert median(0.03) < 0.3


def test_the_account_names_who_is_unprotected_and_who_is_surrounded() -> None:
    found = account(ZeroSumDSGD(0.1), ring(5), TWO, AccountSettings(6))
    by_agent = {one.agent: one for one in found.agents}
    assert sorted(by_agent) == [1, 3, 4]
    assert by_agent[1].all_links_seen
    assert by_agent[1].neighbours_collude
    assert by_agent[1].guaranteed
    assert by_agent[3].joined == [4]
    assert not by_agent[3].guaranteed
    assert [[one.agent for one in alike] for alike in found.alike()] == [[1], [3, 4]]
    assert any("neighbours collude against agent 1." in text for text in found.findings())
    alone = account("zero-sum:0.1", "ring:5", "eavesdropper", AccountSettings(6)).agents[1]
    assert by_agent[1].nothing_else == alone.nothing_else
    for algorithm in (DSGD(), PDSGD(), ZeroSumDSGD(0.0)):
        bare = account(algorithm, ring(5), TWO, AccountSettings(6))
        assert bare.findings()[0].startswith("UNPROTECTED: agents 1, 3, 4")
        assert all(one.nothing_else.total_epsilon is None for one in bare.agents)


def test_an_account_is_json(tmp_path: Path) -> None:
    found = account(DSGD(), path(3), parse_adversary("agents:0"), AccountSettings(3))
    found.save(tmp_path / "account.json")
    assert json.loads((tmp_path / "account.json").read_text()) == found.describe()


def test_the_command_line_accounts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> str:
        given = ["sottovoce", "bound", "--algorithm", "zero-sum:0.1", "--rounds", "6", *arguments]
        monkeypatch.setattr(sys, "argv", given)
        with pytest.raises(SystemExit) as stopped:
            cli_app.main()
        assert not stopped.value.code
        return capsys.readouterr().out

    found = json.loads(run("--adversary", "agents:0,2", "--stepsize", "0.1", "--json"))
    assert [one["agent"] for one in found["agents"]] == [1, 3, 4]
    assert found["agents"][0]["nothing_else"]["multiplier"][3] == pytest.approx(0.1 * 3**0.5)
    assert "all else" in run("--gradient", "0.1", "--start", "0.1")


DECOR = parse_algorithm("decor:0.55:1.0")


def laplacian(weights: np.ndarray) -> np.ndarray:
    links = (weights > 0) & ~np.eye(len(weights), dtype=bool)
    return np.diag(links.sum(1)) - links.astype(float)


@pytest.mark.parametrize("graph", [ring(5), star(5), grid(2, 3)], ids=lambda graph: graph.name)
def test_edge_noise_protects_as_its_closed_form_says(graph: Graph) -> None:
    """1 / (Σ^-1)_ii with Σ = σ²I + σ_c² L, on every round alike; nobody declared it."""
    law = MessageLaw.against(Setting(graph, DECOR, CONSTANT), 4, Eavesdropper())
    found = np.linalg.inv(0.55**2 * np.eye(graph.agents) + laplacian(graph.mixing.toarray()))
    for agent in range(graph.agents):
        given = law.given_all_else(agent)
        assert np.diag(given.precision) * 0.1**2 == pytest.approx(found[agent, agent])


def test_a_curious_agent_knows_the_noise_of_its_own_edges() -> None:
    everything = seen_links(ring(5), Eavesdropper())
    setting = Setting(ring(5), DECOR, CONSTANT)
    law = MessageLaw(Seen(setting, [1, 2, 3, 4], everything, "known", own=frozenset([0])))
    found = np.linalg.inv(0.55**2 * np.eye(4) + laplacian(path(4).mixing.toarray()))
    for place, agent in enumerate((1, 2, 3, 4)):
        given = law.given_all_else(agent)
        assert np.diag(given.precision) * 0.1**2 == pytest.approx(found[place, place])


@dataclass(frozen=True)
class EdgeShares(Part):
    """Noise of an edge on the share that crosses it, taken back from the share that stays."""

    place: ClassVar[Place] = "shares"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True

    def __call__(self, flow: Flow) -> None:
        sent = flow.normal(Scope.EDGE, "edge shares")
        back = flow.by_route(flow.over_routes(sent)) * flow.routes.own[:, None]
        flow.shares = flow.shares + flow.by_route(flow.mean_stepsize) * (sent - back)


@pytest.mark.parametrize("adversary", [Eavesdropper(), CuriousAgents([0])], ids=str)
@pytest.mark.parametrize(
    "algorithm",
    [ZeroSumDSGD(0.3, "uniform"), DECOR, PDSGD("weights") + EdgeShares() + ZeroSumNoise(0.2)],
    ids=["zero-sum", "decor", "edge shares"],
)
def test_what_is_left_out_of_many_messages_says_nothing(
    algorithm: Mechanism, adversary: Adversary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents with many links keep few combinations of their messages; all of them say the same."""

    def found() -> list[np.ndarray]:
        law = MessageLaw.against(Setting(complete(6), algorithm, FALLING), 4, adversary)
        each = [(law.posterior(j), law.given_all_else(j)) for j in adversary.targets(complete(6))]
        return [np.concatenate([a.sd, b.sd, b.precision.ravel()]) for a, b in each]

    few = found()
    whole = "sottovoce.privacy.columns._sufficient"
    monkeypatch.setattr(whole, lambda sent, elsewhere, fresh: np.eye(len(sent)))
    for one, other in zip(few, found(), strict=True):
        assert one == pytest.approx(other, rel=1e-7)


def test_a_rule_that_adds_no_noise_is_not_called_guaranteed() -> None:
    """The law is played, not declared: what a chain is called does not matter."""

    @dataclass(frozen=True)
    class Silent(ZeroSumNoise):
        def __call__(self, flow: Flow) -> None:
            pass

    silent = Mechanism("zero-sum:2.0:weights", (Shares("weights"), Silent(2.0)))
    for one in account(silent, ring(5), Eavesdropper(), AccountSettings(6)).agents:
        assert not one.guaranteed
        assert one.exposed == list(range(1, 7))
