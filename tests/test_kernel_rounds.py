"""Rounds by the GPU's kernels are those of the reference: any graph, and noise drawn inside them.

Without a GPU they run through Triton's interpreter where TRITON_INTERPRET=1 asks for it.
"""

import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from kernels import CPU, DEVICE, needs_triton
from sottovoce import (
    Deterministic,
    Experiment,
    Graph,
    Mechanism,
    Power,
    Stepsize,
    complete,
    parse_algorithm,
    random_regular,
    ring,
    star,
)
from sottovoce.kernels import philox
from sottovoce.kernels.mixing import Links, mix_sparse
from sottovoce.kernels.noise import Terms, add_normals_
from sottovoce.mechanisms import Clock, Flow
from sottovoce.mechanisms.reference import by_messages, exchange, take_step
from sottovoce.randomness import DeviceStreams
from sottovoce.randomness.streams import to_normal
from sottovoce.simulation.rounds import Kernel, Product

RUNS = range(3, 5)
STEPSIZES = {
    "public": Stepsize(Power(0.5), Deterministic()),
    "random": Stepsize(law=Experiment()),
    "per agent": Stepsize(law=Experiment(), per="agent"),
}


def flow_of(graph: Graph, stepsize: Stepsize, device: torch.device, d: int, round: int = 2) -> Flow:
    generator = torch.Generator().manual_seed(d)
    x, s = (torch.randn(2, graph.agents, d, generator=generator).to(device) for _ in range(2))
    streams = DeviceStreams(RUNS, range(graph.agents), 1, device)
    return Flow(x, s, graph.routes().to(device), streams, stepsize, Clock(round))


def by_reference(mechanism: Mechanism, flow: Flow) -> Tensor:
    take_step(mechanism, flow)
    return exchange(mechanism, flow, by_messages(mechanism))


def by_kernel(mechanism: Mechanism, graph: Graph, flow: Flow) -> Tensor:
    kernel = Kernel.of(mechanism, graph, flow)
    assert kernel is not None
    bad = torch.zeros(flow.x.shape[:2], dtype=torch.int32, device=flow.x.device)
    kernel.advance_(flow, bad)
    assert not bad.any()
    return flow.x


@needs_triton
@pytest.mark.parametrize("graph", [ring(5), star(9)], ids=str)
@pytest.mark.parametrize(
    ("text", "stepsize"),
    [
        ("dsgd", "public"),
        ("dsgd", "random"),
        ("pdsgd", "random"),
        ("pdsgd", "per agent"),
        ("noisy-dsgd:0.3", "public"),
        ("clip:1.0+noisy-dsgd:0.3", "public"),
        ("zero-sum-noise:0.2+zero-sum:0.4:uniform", "random"),
        ("ldp-dsgd:0.5", "public"),
        ("decor:0.2:0.5", "public"),
        ("dp-pdsgd:0.2:0.5", "random"),
        ("mafalda:0.5:1.0:5", "public"),
    ],
)
def test_a_round_is_the_references(text: str, graph: Graph, stepsize: str) -> None:
    mechanism = parse_algorithm(text)
    expected = by_reference(mechanism, flow_of(graph, STEPSIZES[stepsize], CPU, 37))
    found = by_kernel(mechanism, graph, flow_of(graph, STEPSIZES[stepsize], DEVICE, 37))
    torch.testing.assert_close(found.cpu(), expected, rtol=2e-6, atol=2e-6)


@needs_triton
def test_successor_states_of_many_agents_take_turns() -> None:
    graph, mechanism = random_regular(4, 12), parse_algorithm("pdsgd")
    kept = flow_of(graph, STEPSIZES["random"], DEVICE, 10)
    expected = flow_of(graph, STEPSIZES["random"], CPU, 10)
    kernel = Kernel(mechanism, graph, kept)
    bad = torch.zeros(2, 12, dtype=torch.int32, device=DEVICE)
    gradient = expected.s.clone()
    for round in range(2, 5):
        kept.at = expected.at = Clock(round)
        kept.s, expected.s = gradient.to(DEVICE, copy=True), gradient.clone()
        kernel.advance_(kept, bad)
        by_reference(mechanism, expected)
        torch.testing.assert_close(kept.x.cpu(), expected.x, rtol=2e-6, atol=2e-6)


@needs_triton
def test_a_dense_graph_of_many_agents_is_left_to_matrix_products() -> None:
    flow = flow_of(complete(40), STEPSIZES["public"], DEVICE, 3)
    assert Kernel.of(parse_algorithm("dsgd"), complete(40), flow) is None
    assert Product(parse_algorithm("dsgd"), complete(40), flow)


def test_states_in_float64_and_chains_with_more_than_shares_are_left_to_others() -> None:
    flow = flow_of(ring(5), STEPSIZES["public"], DEVICE, 3)
    for text in ("pdsgd:coordinate", "zip-dl", "wang-nedic", "muffliato"):
        assert Kernel.of(parse_algorithm(text), ring(5), flow) is None
    flow.x = flow.x.double()
    assert Kernel.of(parse_algorithm("dsgd"), ring(5), flow) is None


@pytest.mark.parametrize("device", [CPU, pytest.param(DEVICE, marks=needs_triton)], ids=str)
@pytest.mark.parametrize("d", [1, 34, 1028])
@pytest.mark.parametrize("split", [True, False])
def test_the_sparse_update_is_the_dense_one(split: bool, d: int, device: torch.device) -> None:
    graph = random_regular(4, 10)
    generator = torch.Generator().manual_seed(d)
    state, step = (torch.randn(3, 10, d, generator=generator) for _ in range(2))
    routes, W = graph.routes(), torch.from_numpy(graph.mixing.toarray())
    B = torch.zeros(3, 10, 10)
    shares = torch.rand(3, len(routes.sender), generator=generator)
    B[:, routes.receiver, routes.sender] = shares
    B = B if split else torch.eye(10).expand(3, -1, -1)
    expected = W @ state.double() - 0.3 * B.double() @ step.double()
    parts = graph.mixing.indptr, graph.mixing.indices
    starts, senders = (torch.from_numpy(part).int().to(device) for part in parts)
    links = Links(starts, senders, torch.from_numpy(graph.mixing.data).float().to(device))
    step[1, 4, d // 2] = torch.nan
    out = torch.full_like(state, torch.nan).to(device)
    bad = torch.zeros(3, 10, dtype=torch.int32, device=device)
    bad[1, 4] = 7
    splitting = shares.to(device) if split else None
    given = state.to(device), step.to(device), 0.3, links, splitting
    mix_sparse(*given, out, bad, 8)
    reached = set(W[:, 4].nonzero().flatten().tolist()) if split else {4}
    noted = torch.zeros(3, 10, dtype=torch.int32)
    noted[1, sorted(reached)] = 8
    noted[1, 4] = 7
    assert torch.equal(bad.cpu(), noted)
    there = noted == 0
    torch.testing.assert_close(out.cpu()[there].double(), expected[there], rtol=0, atol=2e-6)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_of_a_kernel_is_that_of_its_generator(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(2, 3, 1001, generator=generator)
    row, number = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 1, 7, 2, 2, 40])
    key, round = torch.tensor([5, 12345678901234, 5, 7, 2**62, 9]), torch.tensor([3, 3, 2, 3, 1, 3])
    size = torch.tensor([0.5, -1.0, 2.0, 1.0, 0.1, -3.0], dtype=torch.float64)
    expected = rows.double()
    for term in range(6):
        given = (RUNS, [int(number[term])], 1001, dtype, int(key[term]), int(round[term]), CPU)
        drawn = to_normal(philox.uniform(*given))
        expected[:, row[term]] += size[term] * drawn[:, 0].double()
    found = rows.to(DEVICE)
    parts = (part.to(DEVICE) for part in (row, key, round, number, size))
    add_normals_(found, Terms(*parts, dtype), RUNS)
    assert (found.cpu() - expected).abs().max() < 5e-6


@needs_triton
def test_noise_of_float64_draws_has_the_normal_laws_tails() -> None:
    """Beyond 5.29 deviations, where float32 draws end, and within."""
    rows = torch.zeros(1, 1, 1 << 20 if DEVICE != CPU else 1 << 12, device=DEVICE)
    one = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    add_normals_(rows, Terms(one, one + 3, one + 1, one, one + 1.0, torch.float64), range(1))
    drawn, _ = rows.flatten().cpu().double().sort()
    count = len(drawn)
    assert abs(drawn.mean()) < 5 / count**0.5
    assert abs(drawn.var() - 1) < 5 * (2 / count) ** 0.5
    shares = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    assert (torch.from_numpy(norm.cdf(drawn.numpy())) - shares).abs().max() < 2 / count**0.5


@needs_triton
def test_streams_add_and_scale_inside_kernels_what_they_draw() -> None:
    rows = torch.randn(2, 4, 101, generator=torch.Generator().manual_seed(3))
    streams = DeviceStreams(RUNS, (1, 5, 2, 8), 1, DEVICE)
    noisy, scaled = rows.to(DEVICE, copy=True), rows.to(DEVICE, copy=True)
    streams.add_normal_(noisy, 0.3, "noise", 4)
    streams.scale_(scaled, 0.5, 2.0, "stepsize", 4)
    added = rows + 0.3 * to_normal(streams.uniform("noise", 4, 101, torch.float32)).cpu()
    torch.testing.assert_close(noisy.cpu(), added, rtol=2e-6, atol=2e-6)
    factors = streams.uniform("stepsize", 4, 101, torch.float32).cpu() * 1.5 + 0.5
    torch.testing.assert_close(scaled.cpu(), rows * factors)
