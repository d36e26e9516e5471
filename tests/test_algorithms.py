"""What every share rule keeps: each algorithm passes the same tests, on random connected graphs."""

import math

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sottovoce.errors import AlgorithmError
from sottovoce.graphs import WEIGHT_RULES, Graph, complete, from_networkx, grid, ring, star
from sottovoce.mechanisms import (
    ALGORITHMS,
    DSGD,
    MIXINGS,
    PDSGD,
    Algorithm,
    NoisyDSGD,
    ZeroSumDSGD,
    has_scalar_shares,
    parse_algorithm,
    receive,
)
from sottovoce.randomness import private_streams
from sottovoce.simulation.rounds import DenseMixer, SparseMixer
from sottovoce.stepsizes import Deterministic, Power, Stepsize

EVERY = [
    *(make() for name, make in ALGORITHMS.items() if name != "pdsgd"),
    *(PDSGD(mixing) for mixing in MIXINGS),
    ZeroSumDSGD(2.0, "uniform"),
]
STEPSIZE = Stepsize(Power(0.5))
EXACT = {"rtol": 0.0, "atol": 1e-12}
CPU = torch.device("cpu")


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A connected graph of up to nine agents: a random tree with random further links."""
    agents = draw(st.integers(1, 9))
    parents = [draw(st.integers(0, child - 1)) for child in range(1, agents)]
    links = nx.Graph(enumerate(parents, start=1))
    links.add_nodes_from(range(agents))
    for i, j in nx.non_edges(links.copy()):
        if draw(st.booleans()):
            links.add_edge(i, j)
    rule = draw(st.sampled_from([rule for rule in WEIGHT_RULES if rule != "best-constant"]))
    return from_networkx(links, rule)


def drawn(graph: Graph, seed: int, runs: int = 2, d: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """States and steps of all agents: (runs, agents, d) each."""
    generator = torch.Generator().manual_seed(seed)
    shape = (runs, graph.agents, d)
    state, step = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(2))
    return state, step


@pytest.mark.parametrize("algorithm", EVERY, ids=str)
@settings(max_examples=200)
@given(graph=graphs(), seed=st.integers(0, 2**32), round=st.integers(1, 10**6))
def test_invariants_on_random_graphs(
    algorithm: Algorithm, graph: Graph, seed: int, round: int
) -> None:
    state, step = drawn(graph, seed)
    streams = private_streams(2, graph.agents, insecure_seed=seed)
    routes = graph.routes()
    m = graph.agents

    shares = algorithm.shares(step, routes, streams, round, STEPSIZE)
    assert shares.shape == (2, len(routes.sender), 3)
    total = torch.zeros_like(step).index_add_(1, routes.sender, shares)
    assert torch.allclose(total, step, **EXACT), "shares of an agent sum to its step"

    messages = algorithm.messages(state, step, routes, streams, round, STEPSIZE)
    after = receive(messages, routes, m)
    mean = state.mean(1) - step.mean(1)
    assert torch.allclose(after.mean(1), mean, **EXACT), "the average moves by the mean step"

    if not has_scalar_shares(algorithm):
        return
    b = algorithm.coefficients(routes, streams, round)
    assert b.dtype == torch.float64
    assert bool((b >= 0).all())
    B = torch.zeros(2, m, m, dtype=torch.float64)
    B[:, routes.receiver, routes.sender] = b
    assert torch.allclose(B.sum(1), torch.ones(2, m, dtype=torch.float64), **EXACT)
    W = torch.from_numpy(graph.mixing.toarray())
    assert bool((B[:, W == 0] == 0).all()), "nothing travels off the graph"
    assert torch.allclose(after, W @ state - B @ step, **EXACT)
    if algorithm.keeps_whole_step:
        assert torch.equal(B, torch.eye(m, dtype=torch.float64).expand_as(B))

    whole = None if algorithm.keeps_whole_step else b
    for mixer in (DenseMixer, SparseMixer):
        fused = torch.full_like(state, torch.nan)
        mixer(graph, 2, torch.float64, CPU).combine(state, step, fused, whole)
        assert torch.allclose(fused, after, **EXACT), mixer.__name__


@pytest.mark.parametrize("algorithm", EVERY, ids=str)
def test_one_agent_alone_computes_the_bits_of_all_together(algorithm: Algorithm) -> None:
    graph = grid(2, 3)
    state, step = drawn(graph, 3)
    together = algorithm.messages(
        state, step, graph.routes(), private_streams(2, 6, insecure_seed=1), 9, STEPSIZE
    )
    whole = graph.routes()
    for agent in range(graph.agents):
        routes = graph.routes(agent)
        alone = algorithm.messages(
            state[:, agent : agent + 1],
            step[:, agent : agent + 1],
            routes,
            private_streams(2, [agent], insecure_seed=1),
            9,
            STEPSIZE,
        )
        of_agent = whole.sender == agent
        assert whole.receiver[of_agent].tolist() == routes.receiver.tolist()
        assert torch.equal(alone, together[:, of_agent])


@pytest.mark.parametrize("algorithm", EVERY, ids=str)
def test_inputs_are_left_alone(algorithm: Algorithm) -> None:
    graph = star(4)
    state, step = drawn(graph, 5)
    before = state.clone(), step.clone()
    algorithm.messages(state, step, graph.routes(), private_streams(2, 4), 1, STEPSIZE)
    assert torch.equal(state, before[0])
    assert torch.equal(step, before[1])


@pytest.mark.parametrize("algorithm", EVERY, ids=str)
def test_text_reads_back_as_the_same_algorithm(algorithm: Algorithm) -> None:
    assert parse_algorithm(str(algorithm)) == algorithm
    assert algorithm.describe()["name"] == algorithm.name


def test_conventional_messages_reveal_the_state() -> None:
    graph = ring(5)
    state, step = drawn(graph, 1)
    routes = graph.routes()
    messages = DSGD().messages(state, step, routes, private_streams(2, 5), 1, STEPSIZE)
    sent = ~routes.own
    assert torch.allclose(messages[:, sent], state[:, routes.sender[sent]] / 3, **EXACT)


def coefficients(mixing: str, rounds: int = 1500) -> np.ndarray:
    """b of the sender 0 of a complete graph of three, over many rounds: (samples, 3)."""
    routes = complete(3).routes()
    streams = private_streams(8, 3, insecure_seed=2)
    rows = [PDSGD(mixing).coefficients(routes, streams, k) for k in range(1, rounds + 1)]
    return torch.cat(rows)[:, routes.sender == 0].numpy()


def test_dirichlet_coefficients_are_flat_on_the_simplex() -> None:
    """Each of three coefficients is then Beta(1, 2)."""
    sample = coefficients("dirichlet")
    for column in sample.T:
        assert stats.kstest(column, stats.beta(1, 2).cdf).pvalue > 1e-3


def test_uniform_coefficients_are_uniform_numbers_over_their_sum() -> None:
    sample = coefficients("uniform")
    rng = np.random.default_rng(0)
    raw = rng.random((20_000, 3))
    reference = raw / raw.sum(1, keepdims=True)
    for column in range(3):
        found = stats.ks_2samp(sample[:, column], reference[:, column])
        assert found.pvalue > 1e-3


def test_equal_coefficients_are_one_over_the_neighbourhood() -> None:
    routes = star(4).routes()
    sizes = torch.tensor([4.0, 2.0, 2.0, 2.0], dtype=torch.float64)
    for algorithm in (PDSGD("equal"), NoisyDSGD()):
        found = algorithm.coefficients(routes, private_streams(1, 4), 1)
        assert torch.equal(found[0], 1 / sizes[routes.sender])


def test_coefficients_of_agents_and_rounds_are_independent() -> None:
    graph = complete(3)
    routes = graph.routes()
    streams = private_streams(400, 3, insecure_seed=2)
    first, second = (PDSGD().coefficients(routes, streams, k).clone() for k in (1, 2))
    kept = [first[:, routes.own][:, agent] for agent in range(3)]
    rows = torch.stack([*kept, second[:, routes.own][:, 0]]).numpy()
    assert np.abs(np.corrcoef(rows) - np.eye(4)).max() < 4 / math.sqrt(400)


@pytest.mark.parametrize("d", [2, 1000])
def test_noise_has_the_stated_deviation(d: int) -> None:
    gradient = torch.zeros(20, 5, d, dtype=torch.float64)
    NoisyDSGD(0.3).perturb_(gradient, private_streams(20, 5, insecure_seed=3), 1)
    assert stats.kstest(gradient.numpy().ravel() / 0.3, "norm").pvalue > 1e-3


@pytest.mark.parametrize("algorithm", [DSGD(), PDSGD(), NoisyDSGD(0.0)], ids=str)
def test_the_others_leave_gradients_alone(algorithm: Algorithm) -> None:
    gradient = torch.ones(2, 5, 3)
    algorithm.perturb_(gradient, private_streams(2, 5), 1)
    assert torch.equal(gradient, torch.ones(2, 5, 3))


def test_the_papers_stepsizes_are_the_defaults() -> None:
    assert str(PDSGD().default_stepsize) == "experiment:1/k:coordinate"
    assert str(DSGD().default_stepsize) == "deterministic:1/k:coordinate"
    assert str(NoisyDSGD().default_stepsize) == "deterministic:1/k:coordinate"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sgd", r"'sgd' is not known; accepted: dsgd, pdsgd"),
        ("dsgd:0.1", r"'dsgd:0\.1' is not known"),
        ("pdsgd:gauss", r"mixing 'gauss' is not known; accepted: uniform, dirichlet, equal"),
        ("zero-sum:0.1:gauss", r"mixing 'gauss' is not known; accepted: uniform, dirichlet"),
        ("zero-sum:0.1:coordinate", r"mixing 'coordinate' is not known"),
        ("noisy-dsgd:much", r"the noise in 'noisy-dsgd:much' is not a number"),
        ("noisy-dsgd:-1", r"noise is -1\.0; it must be finite and not negative"),
        ("zero-sum:nan", r"noise is nan; it must be finite and not negative"),
        ("noisy-dsgd:1:2", r"'noisy-dsgd:1:2' is not known"),
    ],
)
def test_unknown_algorithms_are_refused(text: str, message: str) -> None:
    with pytest.raises(AlgorithmError, match=message):
        parse_algorithm(text)


def test_impossible_noise_is_refused() -> None:
    for make in (NoisyDSGD, ZeroSumDSGD):
        for noise in (-1.0, math.inf, math.nan):
            with pytest.raises(AlgorithmError, match="finite and not negative"):
                make(noise)


@pytest.mark.parametrize("algorithm", EVERY, ids=str)
def test_expected_coefficients_are_the_mean_of_the_shares(algorithm: Algorithm) -> None:
    graph = star(3)
    routes = graph.routes()
    streams = private_streams(4000, 3, insecure_seed=5)
    ones = torch.ones(4000, 3, 2, dtype=torch.float64)
    found = algorithm.shares(ones, routes, streams, 1, STEPSIZE)
    expected = algorithm.expected_coefficients(routes)
    error = found.std((0, 2)) / math.sqrt(8000) * 5 + 1e-12
    assert bool(((found.mean((0, 2)) - expected).abs() <= error).all())
    if algorithm.coefficients_are_public and not isinstance(algorithm, ZeroSumDSGD):
        assert torch.allclose(found, expected[:, None].expand_as(found), **EXACT)


def test_coordinate_mixing_draws_anew_at_every_coordinate() -> None:
    routes = complete(3).routes()
    ones = torch.ones(1, 3, 5000, dtype=torch.float64)
    found = PDSGD("coordinate").shares(
        ones, routes, private_streams(1, 3, insecure_seed=1), 1, STEPSIZE
    )[0]
    raw = np.random.default_rng(0).random((5000, 3))
    law = (raw / raw.sum(1, keepdims=True))[:, 0]
    for share in found.numpy():
        assert stats.ks_2samp(share, law).pvalue > 1e-3
    of_one = found[routes.sender == 0].numpy()
    assert abs(np.corrcoef(of_one)[0, 1] + 0.5) < 0.05, "only their sum ties them: -1/(n-1)"
    with pytest.raises(AlgorithmError, match="no one coefficient"):
        PDSGD("coordinate").coefficients(routes, private_streams(1, 3), 1)


def test_zero_sum_noise_has_the_stated_size_and_cancels() -> None:
    graph = star(4)
    routes = graph.routes()
    nothing = torch.zeros(1, 4, 20_000, dtype=torch.float64)
    schedule = Stepsize(Power((0.1, 0.2, 0.2, 0.4)), Deterministic())
    streams = private_streams(1, 4, insecure_seed=1)
    noise = ZeroSumDSGD(0.5).shares(nothing, routes, streams, 1, schedule)[0]
    for agent, (scale, members) in enumerate(zip((0.1, 0.2, 0.2, 0.4), (4, 2, 2, 2), strict=True)):
        of_agent = noise[routes.sender == agent]
        assert float(of_agent.sum(0).abs().max()) < 1e-12
        size = 0.5 * scale * math.sqrt(1 - 1 / members)
        for share in of_agent.numpy():
            assert stats.kstest(share / size, "norm").pvalue > 1e-3
    again = ZeroSumDSGD(0.5).shares(nothing, routes, streams, 2, schedule)[0]
    assert abs(np.corrcoef(noise[0], again[0])[0, 1]) < 0.04
