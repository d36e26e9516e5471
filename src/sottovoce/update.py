"""The update of all agents and runs at once: x <- Wx - Bs.

Dense for small or dense graphs, one batched matrix product; sparse for large ones, where all runs
form one block-diagonal matrix in CSR form, so that no loop over agents or runs is left.
"""

import warnings
from typing import Protocol

import torch
from torch import Tensor

from sottovoce.graphs import Graph

_DENSE_AGENTS = 64


class Mixer(Protocol):
    """Combines states and steps; the coefficients are those of `graph.routes()`."""

    def combine(self, state: Tensor, step: Tensor, out: Tensor, shares: Tensor | None) -> None:
        """out = W state - B step; `shares` holds B's entries (runs, routes), None means B = I.

        state, step, out: (runs, agents, d), `out` not overlapping the others.
        """


def mixer(graph: Graph, runs: int, dtype: torch.dtype, device: torch.device) -> Mixer:
    """The quicker of the two for this graph."""
    density = graph.mixing.nnz / graph.agents**2
    if graph.agents <= _DENSE_AGENTS or density > 0.25:
        return DenseMixer(graph, runs, dtype, device)
    return SparseMixer(graph, runs, dtype, device)


class DenseMixer:
    """Batched matrix products with (agents, agents) matrices."""

    def __init__(self, graph: Graph, runs: int, dtype: torch.dtype, device: torch.device) -> None:
        routes = graph.routes().to(device)
        self._entries = (routes.receiver, routes.sender)
        mixing = torch.from_numpy(graph.mixing.toarray()).to(device, dtype)
        self._mixing = mixing.expand(runs, -1, -1)
        self._splitting = torch.zeros(runs, graph.agents, graph.agents, dtype=dtype, device=device)

    def combine(self, state: Tensor, step: Tensor, out: Tensor, shares: Tensor | None) -> None:
        torch.bmm(self._mixing, state, out=out)
        if shares is None:
            out.sub_(step)
            return
        receiver, sender = self._entries
        self._splitting[:, receiver, sender] = shares.to(step.dtype)
        out.baddbmm_(self._splitting, step, alpha=-1.0)


class SparseMixer:
    """One sparse product over all runs: the block-diagonal matrix of runs x (agents, agents)."""

    def __init__(self, graph: Graph, runs: int, dtype: torch.dtype, device: torch.device) -> None:
        agents, entries = graph.agents, graph.mixing.nnz
        ends = torch.from_numpy(graph.mixing.indptr[1:]).long()
        columns = torch.from_numpy(graph.mixing.indices).long()
        run = torch.arange(runs)[:, None]
        self._rows = torch.cat(
            [torch.zeros(1, dtype=torch.long), (ends + entries * run).flatten()]
        ).to(device)
        self._columns = (columns + agents * run).flatten().to(device)
        weight = torch.from_numpy(graph.mixing.data).to(device, dtype)
        self._mixing = self._matrix(weight.repeat(runs), agents * runs)

    def _matrix(self, values: Tensor, size: int) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse", UserWarning)
            return torch.sparse_csr_tensor(
                self._rows, self._columns, values, (size, size), check_invariants=False
            )

    def combine(self, state: Tensor, step: Tensor, out: Tensor, shares: Tensor | None) -> None:
        flat_state, flat_step, flat_out = (t.flatten(0, 1) for t in (state, step, out))
        torch.addmm(flat_out, self._mixing, flat_state, beta=0.0, out=flat_out)
        if shares is None:
            flat_out.sub_(flat_step)
            return
        splitting = self._matrix(shares.to(step.dtype).flatten(), len(flat_step))
        torch.addmm(flat_out, splitting, flat_step, alpha=-1.0, out=flat_out)
