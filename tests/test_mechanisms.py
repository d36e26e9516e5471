"""What every chain keeps: each one passes the same tests, on random connected graphs."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from chains import EDGES, GOSSIP, MOMENTUM
from sottovoce.errors import AlgorithmError
from sottovoce.graphs import WEIGHT_RULES, Graph, complete, from_networkx, grid, ring, star
from sottovoce.mechanisms import (
    ALGORITHMS,
    DECOR,
    DSGD,
    PDSGD,
    Clip,
    Clock,
    Flow,
    GradientNoise,
    Mechanism,
    NoisyDSGD,
    Part,
    Place,
    Scope,
    SentNoise,
    Shares,
    ZeroSumDSGD,
    ZeroSumNoise,
    check,
    check_dimension,
    in_blocks,
    mechanism_from,
    parse_algorithm,
    public_split,
)
from sottovoce.mechanisms.parts import RULES
from sottovoce.mechanisms.reference import (
    by_messages,
    exchange,
    make_messages,
    receive,
    split_step,
    take_step,
)
from sottovoce.randomness import Streams, private_streams
from sottovoce.simulation.mixers import DenseMixer, SparseMixer
from sottovoce.simulation.rounds import Blocks, Product
from sottovoce.stepsizes import Deterministic, Power, Stepsize

NAMED = [
    *(make() for name, make in ALGORITHMS.items() if name != "pdsgd"),
    *(PDSGD(rule) for rule in RULES),
    ZeroSumDSGD(2.0, "uniform"),
    ZeroSumDSGD(0.5, "coordinate"),
    DECOR(0.1, 0.2, 1.0, "coordinate"),
    parse_algorithm("gradient-noise:0.1+pdsgd+zero-sum-noise:0.2"),
]
EVERY = [
    *NAMED,
    EDGES,
    GOSSIP,
    MOMENTUM,
    Mechanism("sent-noise", (Shares("keep"), SentNoise())),
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


def flow_of(
    graph: Graph,
    state: torch.Tensor,
    step: torch.Tensor,
    streams: Streams | None = None,
    round: int = 1,
    stepsize: Stepsize = STEPSIZE,
) -> Flow:
    streams = streams or private_streams(len(state), graph.agents, insecure_seed=1)
    return Flow(state, step, graph.routes(), streams, stepsize, Clock(round))


def messages_of(mechanism: Mechanism, flow: Flow) -> torch.Tensor:
    make_messages(mechanism, flow)
    return flow.v


def shares_of(mechanism: Mechanism, flow: Flow) -> torch.Tensor:
    split_step(mechanism, flow)
    return flow.shares


@pytest.mark.parametrize("mechanism", NAMED, ids=str)
@settings(max_examples=40)
@given(graph=graphs(), seed=st.integers(0, 2**32), round=st.integers(1, 10**6))
def test_invariants_on_random_graphs(
    mechanism: Mechanism, graph: Graph, seed: int, round: int
) -> None:
    state, step = drawn(graph, seed)
    streams = private_streams(2, graph.agents, insecure_seed=seed)
    routes, m = graph.routes(), graph.agents
    flow = flow_of(graph, state, step, streams, round)

    shares = shares_of(mechanism, flow)
    assert shares.shape == (2, len(routes.sender), 3)
    total = torch.zeros_like(step).index_add_(1, routes.sender, shares)
    assert torch.allclose(total, step, **EXACT), "shares of an agent sum to its step"

    after = receive(messages_of(mechanism, flow), routes, m)
    mean = state.mean(1) - step.mean(1)
    if all(part.keeps_average for part in mechanism.at("messages")):
        assert torch.allclose(after.mean(1), mean, **EXACT), "the average moves by the mean step"

    if not mechanism.plain:
        return
    b = mechanism.split.coefficients(flow)[..., 0]
    assert b.dtype == torch.float64
    assert bool((b >= 0).all())
    B = torch.zeros(2, m, m, dtype=torch.float64)
    B[:, routes.receiver, routes.sender] = b
    assert torch.allclose(B.sum(1), torch.ones(2, m, dtype=torch.float64), **EXACT)
    W = torch.from_numpy(graph.mixing.toarray())
    assert bool((B[:, W == 0] == 0).all()), "nothing travels off the graph"
    assert torch.allclose(after, W @ state - B @ step, **EXACT)
    for mixer in (DenseMixer, SparseMixer):
        fused = torch.full_like(state, torch.nan)
        mixer(graph, 2, torch.float64, CPU).combine(state, step, fused, b)
        assert torch.allclose(fused, after, **EXACT), mixer.__name__


@pytest.mark.parametrize("backend", [Product, Blocks], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("graph", [ring(5), star(6), grid(6, 6)], ids=lambda graph: graph.name)
@pytest.mark.parametrize("mechanism", EVERY, ids=str)
def test_every_backend_computes_what_the_reference_does(
    mechanism: Mechanism, graph: Graph, backend: type
) -> None:
    if mechanism.at("messages") or (backend is Product and not mechanism.plain):
        pytest.skip("this backend does not serve this chain")
    state, gradient = drawn(graph, 4)
    flows = [flow_of(graph, state.clone(), gradient.clone()) for _ in range(2)]
    gathers = [by_messages(mechanism), backend(mechanism, graph, flows[1])]
    for round in (1, 2, 3):
        for flow, gather in zip(flows, gathers, strict=True):
            flow.at, flow.s = Clock(round), gradient.clone()
            take_step(mechanism, flow)
            exchange(mechanism, flow, gather)
        assert torch.allclose(flows[0].x, flows[1].x, **EXACT)


@pytest.mark.parametrize("mechanism", EVERY, ids=str)
def test_shares_of_many_rounds_at_once_are_those_of_each(mechanism: Mechanism) -> None:
    if not mechanism.split.timeless:
        pytest.skip("its shares are computed round by round")
    state, gradient = drawn(grid(2, 3), 5)
    flow = flow_of(grid(2, 3), state, gradient)
    each = [mechanism.split.coefficients(replace(flow, at=Clock(k))) for k in (7, 8, 9)]
    assert torch.equal(mechanism.split.coefficients(flow.of_rounds(7, 3)), torch.cat(each))


@pytest.mark.parametrize("mechanism", EVERY, ids=str)
def test_one_agent_alone_computes_the_bits_of_all_together(mechanism: Mechanism) -> None:
    graph = grid(2, 3)
    state, gradient = drawn(graph, 3)
    together = flow_of(graph, state, gradient.clone(), round=9)
    take_step(mechanism, together)
    messages = messages_of(mechanism, together)
    whole = graph.routes()
    for agent in range(graph.agents):
        one = slice(agent, agent + 1)
        routes, streams = graph.routes(agent), private_streams(2, [agent], insecure_seed=1)
        alone = Flow(state[:, one], gradient[:, one].clone(), routes, streams, STEPSIZE, Clock(9))
        take_step(mechanism, alone)
        of_agent = whole.sender == agent
        assert whole.receiver[of_agent].tolist() == routes.receiver.tolist()
        assert torch.equal(messages_of(mechanism, alone), messages[:, of_agent])


@pytest.mark.parametrize("mechanism", EVERY, ids=str)
def test_inputs_are_left_alone(mechanism: Mechanism) -> None:
    graph = star(4)
    state, step = drawn(graph, 5)
    before = state.clone(), step.clone()
    messages_of(mechanism, flow_of(graph, state, step))
    assert torch.equal(state, before[0])
    assert torch.equal(step, before[1])


@pytest.mark.parametrize("mechanism", NAMED, ids=str)
def test_text_and_spec_build_the_same_mechanism(mechanism: Mechanism) -> None:
    assert parse_algorithm(str(mechanism)) == mechanism
    assert mechanism_from(mechanism.spec) == mechanism
    changed = {**mechanism.spec, "exchanges": 2}
    with pytest.raises(AlgorithmError, match="its options or its code differ"):
        mechanism_from(changed)


def test_a_sum_of_parts_is_named_by_its_text() -> None:
    joined = GradientNoise(0.2) + PDSGD() + ZeroSumNoise(0.3)
    assert str(joined) == "gradient-noise:0.2+pdsgd:uniform+zero-sum-noise:0.3"
    assert parse_algorithm(str(joined)) == joined
    assert str(PDSGD() + ZeroSumNoise()) == "pdsgd:uniform+zero-sum-noise"


def test_conventional_messages_reveal_the_state() -> None:
    graph = ring(5)
    state, step = drawn(graph, 1)
    routes = graph.routes()
    messages = messages_of(DSGD(), flow_of(graph, state, step))
    sent = ~routes.own
    assert torch.allclose(messages[:, sent], state[:, routes.sender[sent]] / 3, **EXACT)


def test_both_ends_of_an_edge_hold_the_same_number_and_nobody_else_does() -> None:
    graph = grid(2, 3)
    state, step = drawn(graph, 1)
    routes = graph.routes()
    flow = flow_of(graph, state, step)
    numbers = flow.normal(Scope.EDGE, "test")
    assert bool((numbers[:, routes.own] == 0).all())
    ends = list(zip(routes.receiver.tolist(), routes.sender.tolist(), strict=True))
    back = [ends.index((j, i)) for i, j in ends]
    assert torch.equal(numbers, numbers[:, back])
    once = numbers[0, routes.sign > 0]
    assert len(torch.unique(once)) == once.numel() == 3 * len(graph.links)
    earlier = flow.normal(Scope.EDGE, "test", round=7)
    flow.at = Clock(7)
    assert torch.equal(flow.normal(Scope.EDGE, "test"), earlier), "earlier rounds come again"
    flow.at = Clock(7, 1)
    assert not torch.equal(flow.normal(Scope.EDGE, "test"), earlier), "exchanges draw anew"


@pytest.mark.parametrize("graph", [ring(5), star(6), grid(6, 6)], ids=lambda graph: graph.name)
@pytest.mark.parametrize("mechanism", EVERY, ids=str)
def test_what_a_chain_claims_holds(mechanism: Mechanism, graph: Graph) -> None:
    check(mechanism, graph)


def test_what_must_be_played_as_a_whole() -> None:
    names = {str(one): in_blocks(one, ring(5)) for one in EVERY}
    assert [name for name, found in names.items() if not found] == [
        "decor:0.005:0.01:1.0:weights",
        "dp-pdsgd:0.005:0.01:1.0:uniform",
        "muffliato:0.01:5:0.1:1.0",
        "decor:0.1:0.2:1.0:coordinate",
        "edge-noise:0.5+shares:weights",
        "gossip",
        "momentum",
    ]


class _False(Part):
    """A part that claims everything."""

    place: ClassVar[Place] = "shares"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True


@dataclass(frozen=True)
class Doubled(_False):
    def __call__(self, flow: Flow) -> None:
        flow.shares = 2 * flow.shares


@dataclass(frozen=True)
class Clipped(_False):
    keeps_average: ClassVar[bool] = False

    def __call__(self, flow: Flow) -> None:
        flow.shares = flow.shares / flow.shares.norm(dim=-1, keepdim=True)


@dataclass(frozen=True)
class Signed(_False):
    keeps_average: ClassVar[bool] = False

    def __call__(self, flow: Flow) -> None:
        flow.shares = flow.shares.sign()


@dataclass(frozen=True)
class Uneven(_False):
    """Uniform noise counts for nothing in a Gaussian account, so it is not linear."""

    keeps_average: ClassVar[bool] = False

    def __call__(self, flow: Flow) -> None:
        flow.shares = flow.shares + flow.uniform(Scope.LINK, "uneven")


@dataclass(frozen=True)
class Careless(_False):
    keeps_average: ClassVar[bool] = False

    def __call__(self, flow: Flow) -> None:
        flow.shares = flow.shares + torch.randn_like(flow.shares)


@dataclass(frozen=True)
class Broken(_False):
    keeps_average: ClassVar[bool] = False

    def __call__(self, flow: Flow) -> None:
        flow.shares = flow.shares / 0.0


@dataclass(frozen=True)
class Fading(Shares):
    def coefficients(self, flow: Flow) -> torch.Tensor:
        found = super().coefficients(flow)
        return found if flow.at.round < 3 else self.mean(flow.routes).unsqueeze(-1).expand_as(found)


@dataclass(frozen=True)
class Drawn(Part):
    """Noise that is not alike at all coordinates; none of it may pass for noise at each of them."""

    place: ClassVar[Place] = "step"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True
    keeps_average: ClassVar[bool] = False
    how: str = "first"

    def __call__(self, flow: Flow) -> None:
        z = flow.exact_normal(Scope.AGENT, "drawn")
        place = torch.arange(z.shape[-1])
        flow.s = flow.s + {
            "first": z * (place < 1000),
            "last": z * (place >= 60_000),
            "half": z * (2 * place >= z.shape[-1]),
            "whole": z / z.shape[-1] ** 0.5,
            "one": z[..., :1].expand_as(z),
            "centred": z - z.mean(-1, keepdim=True),
            "walk": z.cumsum(-1),
            "late": z * (place < 70_000),
            "all": z,
        }[self.how].to(flow.s.dtype)


@pytest.mark.parametrize("how", ["first", "last", "half", "whole", "one", "centred", "walk"])
def test_noise_that_coordinates_share_or_lack_is_refused(how: str) -> None:
    chain = Mechanism("drawn", (Clip(), Drawn(how), Shares("keep")))
    with pytest.raises(
        AlgorithmError, match=r"Drawn (does not treat all|says that it works by co)"
    ):
        check(chain, ring(5))


def test_a_model_of_more_coordinates_is_looked_at_in_full() -> None:
    chain = Mechanism("late", (Clip(), Drawn("late"), Shares("keep")))
    check(chain, ring(5))
    check_dimension(chain, ring(5), 69_999)
    with pytest.raises(AlgorithmError, match="treat all of 80,000 coordinates alike"):
        check_dimension(chain, ring(5), 80_000)
    check_dimension(Mechanism("all", (Clip(), Drawn("all"), Shares("keep"))), ring(5), 80_000)


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        (Doubled(), r"Doubled says that it keeps the average, but two rounds moved the average by"),
        (Clipped(), r"Clipped says that it is linear.*Clipped says that it works by coordinate"),
        (Signed(), r"Signed says that it is linear, but twice the input is not twice the output"),
        (Uneven(), r"Uneven says that it is linear"),
        (Careless(), r"Careless gives other messages for the same private numbers; draw"),
        (Broken(), r"Broken gives numbers that are not finite"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_false_claim_is_refused_by_name(part: Part, fault: str) -> None:
    with pytest.raises(AlgorithmError, match=fault):
        check(PDSGD() + part, ring(5))
    honest = replace(PDSGD(), parts=(Shares(),))
    check(honest, ring(5))


def test_a_split_that_changes_with_the_rounds_must_not_be_timeless() -> None:
    with pytest.raises(AlgorithmError, match="Fading says that it is timeless, but the coeffic"):
        check(Mechanism("fading", (Fading(),)), ring(5))


def test_impossible_chains_are_refused() -> None:
    for parts in ((), (Shares(), Shares("equal"))):
        with pytest.raises(AlgorithmError, match="parts that split the step"):
            Mechanism("wrong", parts)
    with pytest.raises(AlgorithmError, match="is not a part"):
        Mechanism("wrong", (Shares(), "noise"))  # type: ignore[arg-type]


def coefficients(mixing: str, rounds: int = 1500) -> np.ndarray:
    """b of the sender 0 of a complete graph of three, over many rounds: (samples, 3)."""
    graph, streams = complete(3), private_streams(8, 3, insecure_seed=2)
    state, step = drawn(graph, 0, runs=8)
    rows = [
        PDSGD(mixing).split.coefficients(flow_of(graph, state, step, streams, k))[..., 0]
        for k in range(1, rounds + 1)
    ]
    return torch.cat(rows)[:, graph.routes().sender == 0].numpy()


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
    for mechanism in (PDSGD("equal"), NoisyDSGD()):
        found = mechanism.split.coefficients(flow_of(star(4), *drawn(star(4), 0)))[..., 0]
        assert torch.equal(found[0], 1 / sizes[routes.sender])


def test_coefficients_of_agents_and_rounds_are_independent() -> None:
    graph = complete(3)
    routes = graph.routes()
    streams = private_streams(400, 3, insecure_seed=2)
    state, step = drawn(graph, 0, runs=400)
    first, second = (
        PDSGD().split.coefficients(flow_of(graph, state, step, streams, k))[..., 0] for k in (1, 2)
    )
    kept = [first[:, routes.own][:, agent] for agent in range(3)]
    rows = torch.stack([*kept, second[:, routes.own][:, 0]]).numpy()
    assert np.abs(np.corrcoef(rows) - np.eye(4)).max() < 4 / math.sqrt(400)


@pytest.mark.parametrize("d", [2, 1000])
def test_noise_has_the_stated_deviation(d: int) -> None:
    gradient = torch.zeros(20, 5, d, dtype=torch.float64)
    flow = flow_of(ring(5), gradient.clone(), gradient, stepsize=Stepsize(law=Deterministic()))
    take_step(NoisyDSGD(0.3), flow)
    assert stats.kstest(gradient.numpy().ravel() / 0.3, "norm").pvalue > 1e-3


@pytest.mark.parametrize("mechanism", [DSGD(), PDSGD(), NoisyDSGD(0.0)], ids=str)
def test_the_others_leave_gradients_alone(mechanism: Mechanism) -> None:
    gradient = torch.ones(2, 5, 3)
    take_step(
        mechanism,
        flow_of(ring(5), gradient.clone(), gradient, stepsize=Stepsize(law=Deterministic())),
    )
    assert torch.equal(gradient, torch.ones(2, 5, 3))


def test_the_papers_stepsizes_are_the_defaults() -> None:
    assert str(PDSGD().default_stepsize) == "experiment:1/k:coordinate"
    assert str(DSGD().default_stepsize) == "deterministic:1/k:coordinate"
    assert str(NoisyDSGD().default_stepsize) == "deterministic:1/k:coordinate"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sgd", r"'sgd' is not known; accepted: dsgd, pdsgd"),
        ("dsgd:0.1", r"'dsgd:0\.1' has 1 options; accepted are at most 0"),
        ("pdsgd:gauss", r"share rule 'gauss' is not known; accepted: uniform, dirichlet, equal"),
        ("zero-sum:0.1:gauss", r"share rule 'gauss' is not known"),
        ("noisy-dsgd:much", r"the option noise in 'noisy-dsgd:much' is 'much', which is not a num"),
        ("noisy-dsgd:-1", r"noise is -1\.0; it must be finite and not negative"),
        ("zero-sum:nan", r"noise is nan; it must be finite and not negative"),
        ("noisy-dsgd:1:2", r"'noisy-dsgd:1:2' has 2 options; accepted are at most 1 \(noise\)"),
        ("dsgd+pdsgd", r"'dsgd\+pdsgd' is not known"),
        ("gradient-noise:0.1", r"0 parts that split the step"),
        ("no_such_file.py:rule", r"no_such_file\.py cannot be read"),
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


@pytest.mark.parametrize("mechanism", NAMED, ids=str)
def test_expected_coefficients_are_the_mean_of_the_shares(mechanism: Mechanism) -> None:
    graph = star(3)
    ones = torch.ones(4000, 3, 2, dtype=torch.float64)
    flow = flow_of(graph, ones, ones.clone())
    mechanism.split(flow)
    expected = mechanism.split.mean(graph.routes())
    error = flow.shares.std((0, 2)) / math.sqrt(8000) * 5 + 1e-12
    assert bool(((flow.shares.mean((0, 2)) - expected).abs() <= error).all())
    if public_split(mechanism, graph):
        assert torch.allclose(flow.shares, expected[:, None].expand_as(flow.shares), **EXACT)


def test_coordinate_mixing_draws_anew_at_every_coordinate() -> None:
    routes = complete(3).routes()
    ones = torch.ones(1, 3, 5000, dtype=torch.float64)
    found = shares_of(PDSGD("coordinate"), flow_of(complete(3), ones, ones.clone()))[0]
    raw = np.random.default_rng(0).random((5000, 3))
    law = (raw / raw.sum(1, keepdims=True))[:, 0]
    for share in found.numpy():
        assert stats.ks_2samp(share, law).pvalue > 1e-3
    of_one = found[routes.sender == 0].numpy()
    assert abs(np.corrcoef(of_one)[0, 1] + 0.5) < 0.05, "only their sum ties them: -1/(n-1)"
    assert not PDSGD("coordinate").plain


def test_zero_sum_noise_has_the_stated_size_and_cancels() -> None:
    graph = star(4)
    routes = graph.routes()
    nothing = torch.zeros(1, 4, 20_000, dtype=torch.float64)
    schedule = Stepsize(Power((0.1, 0.2, 0.2, 0.4)), Deterministic())
    streams = private_streams(1, 4, insecure_seed=1)
    flow = flow_of(graph, nothing, nothing.clone(), streams, 1, schedule)
    noise = shares_of(ZeroSumDSGD(0.5), flow)[0]
    for agent, (scale, members) in enumerate(zip((0.1, 0.2, 0.2, 0.4), (4, 2, 2, 2), strict=True)):
        of_agent = noise[routes.sender == agent]
        assert float(of_agent.sum(0).abs().max()) < 1e-12
        size = 0.5 * scale * math.sqrt(1 - 1 / members)
        for share in of_agent.numpy():
            assert stats.kstest(share / size, "norm").pvalue > 1e-3
    flow = flow_of(graph, nothing, nothing.clone(), streams, 2, schedule)
    again = shares_of(ZeroSumDSGD(0.5), flow)[0]
    assert abs(np.corrcoef(noise[0], again[0])[0, 1]) < 0.04
