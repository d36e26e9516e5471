"""The product of a round: the same numbers by every mixer, chosen by graph and type."""

import pytest
import torch

from sottovoce.graphs import Graph, complete, random_regular, ring
from sottovoce.mechanisms import Clock, Flow
from sottovoce.randomness import private_streams
from sottovoce.simulation.mixers import DenseMixer, FetchingMixer, Mixer, SparseMixer, mixer
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
    dense = combined(DenseMixer, graph, dtype, split)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for kind in (SparseMixer, FetchingMixer):
        found = combined(kind, graph, dtype, split)
        assert found.dtype == dense.dtype == dtype
        assert torch.allclose(dense, found, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", [DenseMixer, SparseMixer, FetchingMixer])
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


def test_pieces_and_the_order_of_calls_decide_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, generator = random_regular(4, 30), torch.Generator().manual_seed(3)
    state, step = (torch.randn(2, 30, 7, generator=generator) for _ in range(2))
    shares = torch.rand(2, graph.mixing.nnz, dtype=torch.float64, generator=generator)

    def found(apart: bool) -> torch.Tensor:
        ours, out = FetchingMixer(graph, 2, torch.float32, CPU), torch.full_like(state, torch.nan)
        if apart:
            Mixer.combine(ours, state, step, out, shares)
        else:
            ours.combine(state, step, out, shares)
        return out

    whole = found(apart=False)
    assert torch.equal(found(apart=True), whole)
    monkeypatch.setattr("sottovoce.problems.base.WORK_BYTES", 30)
    assert torch.equal(found(apart=False), whole)
    one = FetchingMixer(graph, 1, torch.float32, CPU)
    out = torch.empty_like(state[:1])
    one.combine(state[:1], step[:1], out, shares[:1])
    assert torch.equal(out, whole[:1]), "a run does not depend on the others"


def test_graph_type_and_size_decide_between_them() -> None:
    def kind(graph: Graph, dtype: torch.dtype = torch.float64, d: int = 1) -> type:
        like = torch.zeros(1, graph.agents, d, dtype=dtype)
        streams = private_streams(1, graph.agents)
        flow = Flow(like, like, graph.routes(), streams, Stepsize(), Clock(1))
        return type(mixer(graph, flow))

    assert kind(ring(5)) is DenseMixer
    assert kind(ring(100)) is SparseMixer
    assert kind(ring(100), torch.float32) is FetchingMixer
    assert kind(ring(100), torch.float32, 1 << 15) is SparseMixer
    assert kind(complete(100)) is DenseMixer
