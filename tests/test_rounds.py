"""The fused update: the same numbers dense and sparse, for every type, chosen by the graph."""

import pytest
import torch

from sottovoce.graphs import Graph, complete, random_regular, ring
from sottovoce.mechanisms import Clock, Flow
from sottovoce.randomness import private_streams
from sottovoce.simulation.rounds import DenseMixer, SparseMixer, mixer
from sottovoce.stepsizes import Stepsize

CPU = torch.device("cpu")


def combined(kind: type, graph: Graph, dtype: torch.dtype, split: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    state, step = (
        torch.randn(3, graph.agents, 4, dtype=torch.float64, generator=generator).to(dtype)
        for _ in range(2)
    )
    shares = torch.rand(3, graph.mixing.nnz, dtype=torch.float64, generator=generator)
    out = torch.full_like(state, torch.nan)
    kind(graph, 3, dtype, CPU).combine(state, step, out, shares if split else None)
    return out


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dense_and_sparse_agree(dtype: torch.dtype, split: bool) -> None:
    graph = random_regular(4, 30)
    dense, sparse = (combined(kind, graph, dtype, split) for kind in (DenseMixer, SparseMixer))
    assert dense.dtype == sparse.dtype == dtype
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert torch.allclose(dense, sparse, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", [DenseMixer, SparseMixer])
def test_update_is_w_state_minus_b_step(kind: type) -> None:
    graph = ring(5)
    routes = graph.routes()
    generator = torch.Generator().manual_seed(2)
    state, step = (torch.randn(2, 5, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    update = kind(graph, 2, torch.float64, CPU)
    W = torch.from_numpy(graph.mixing.toarray())
    # A second call with other coefficients must not see those of the first.
    for _ in range(2):
        shares = torch.rand(2, graph.mixing.nnz, dtype=torch.float64, generator=generator)
        B = torch.zeros(2, 5, 5, dtype=torch.float64)
        B[:, routes.receiver, routes.sender] = shares
        out = torch.full_like(state, torch.nan)
        before = state.clone(), step.clone()
        update.combine(state, step, out, shares)
        assert torch.allclose(out, W @ state - B @ step, rtol=0, atol=1e-13)
        assert torch.equal(state, before[0])
        assert torch.equal(step, before[1])


def test_the_graph_decides_between_them() -> None:
    def kind(graph: Graph) -> type:
        like = torch.zeros(1, graph.agents, 1, dtype=torch.float64)
        streams = private_streams(1, graph.agents)
        flow = Flow(like, like, graph.routes(), streams, Stepsize(), Clock(1))
        return type(mixer(graph, flow))

    assert kind(ring(5)) is DenseMixer
    assert kind(ring(100)) is SparseMixer
    assert kind(complete(100)) is DenseMixer
