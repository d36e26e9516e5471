"""The product of a plain chain, x <- Wx - Bs: dense for small or dense graphs, sparse for others.

In a sparse one all runs form one block-diagonal matrix, row by row.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from sottovoce.graphs import Graph
from sottovoce.mechanisms.flow import Flow
from sottovoce.problems.base import blocks
from sottovoce.problems.sparse import fetches, sparse_matrix, sums

_DENSE_AGENTS = {True: 24, False: 64}
"""Up to how many agents the dense product is faster: on a CPU (on a ring), and elsewhere."""

SPARSE = 0.25
"""The largest part of W's entries above 0 for which a sparse product is faster."""

_TIMES = 4
"""Blocks of work in the rows that are computed at a time."""


class Mixer(ABC):
    """Combines states and steps; the coefficients are those of `graph.routes()`.

    state, step, out: (runs, agents, d), `out` not overlapping the others. entries: how many numbers
    hold B.
    """

    entries: int

    def combine(self, state: Tensor, step: Tensor, out: Tensor, shares: Tensor | None) -> None:
        """out = W state - B step; `shares` holds B's entries (runs, routes), None means B = I."""
        self.mix(state, out)
        if shares is None:
            out.sub_(step)
        else:
            self.subtract(self.splittings(shares)[0], step, out)

    @abstractmethod
    def mix(self, state: Tensor, out: Tensor) -> None:
        """out = W state."""

    @abstractmethod
    def splittings(self, shares: Tensor) -> Tensor:
        """B of some rounds, a row for each, overwritten by the next ones.

        shares: (rounds * runs, routes), round by round.
        """

    @abstractmethod
    def subtract(self, splitting: Tensor, step: Tensor, out: Tensor) -> None:
        """out -= B step, with B as `splittings` makes it."""


def mixer(graph: Graph, like: Flow) -> Mixer:
    """The faster mixer for this graph."""
    runs, dtype, device = len(like.x), like.x.dtype, like.x.device
    if graph.agents <= _DENSE_AGENTS[device.type == "cpu"] or density(graph) > SPARSE:
        return DenseMixer(graph, runs, dtype, device)
    kind = FetchingMixer if fetches(like.x) else SparseMixer
    return kind(graph, runs, dtype, device)


def density(graph: Graph) -> float:
    """The part of W's entries that are not 0."""
    return float(graph.mixing.nnz / graph.agents**2)


class DenseMixer(Mixer):
    """Batched matrix products with (agents, agents) matrices."""

    def __init__(self, graph: Graph, runs: int, dtype: torch.dtype, device: torch.device) -> None:
        routes = graph.routes().to(device)
        self._places = routes.receiver * graph.agents + routes.sender
        mixing = torch.from_numpy(graph.mixing.toarray()).to(device, dtype)
        self.mixing = mixing.expand(runs, -1, -1)
        self.entries = self.mixing.numel()
        self._splittings = torch.zeros(0, *self.mixing.shape, dtype=dtype, device=device)

    def splittings(self, shares: Tensor) -> Tensor:
        """B of some rounds: (rounds, runs, agents, agents)."""
        rounds = len(shares) // len(self.mixing)
        if len(self._splittings) != rounds:
            self._splittings = self._splittings.new_zeros(rounds, *self.mixing.shape)
        numbers = shares.to(self._splittings.dtype)
        self._splittings.view(len(shares), -1).index_copy_(1, self._places, numbers)
        return self._splittings

    def mix(self, state: Tensor, out: Tensor) -> None:
        torch.bmm(self.mixing, state, out=out)

    def subtract(self, splitting: Tensor, step: Tensor, out: Tensor) -> None:
        out.baddbmm_(splitting, step, alpha=-1.0)


class SparseMixer(Mixer):
    """One sparse product over all runs: the block-diagonal matrix of runs x (agents, agents)."""

    def __init__(self, graph: Graph, runs: int, dtype: torch.dtype, device: torch.device) -> None:
        self._rows, self._columns = (part.to(device) for part in _block_diagonal(graph, runs))
        weight = torch.from_numpy(graph.mixing.data).to(device, dtype)
        self._mixing = self._matrix(weight.repeat(runs))
        self._splitting = self._matrix(torch.zeros_like(self._mixing.values()))
        self._values = self._splitting.values()
        self.entries = len(self._values)

    def _matrix(self, values: Tensor) -> Tensor:
        size = len(self._rows) - 1
        return sparse_matrix(self._rows, self._columns, values, (size, size))

    def mix(self, state: Tensor, out: Tensor) -> None:
        flat = out.flatten(0, 1)
        torch.addmm(flat, self._mixing, state.flatten(0, 1), beta=0.0, out=flat)

    def splittings(self, shares: Tensor) -> Tensor:
        """The entries of B in some rounds: (rounds, runs * routes)."""
        return shares.to(self._values.dtype).view(-1, self.entries)

    def subtract(self, splitting: Tensor, step: Tensor, out: Tensor) -> None:
        self._values.copy_(splitting)
        flat = out.flatten(0, 1)
        torch.addmm(flat, self._splitting, step.flatten(0, 1), alpha=-1.0, out=flat)


class FetchingMixer(Mixer):
    """Sums over neighbours, whose states are fetched ahead: float32 on a CPU alone.

    Where states lie in no cache, a sparse product takes three times as long on a random graph. All
    runs are one block-diagonal matrix, some rows of which are computed at a time, so that Wx meets
    Bs in the cache.
    """

    def __init__(self, graph: Graph, runs: int, dtype: torch.dtype, device: torch.device) -> None:
        self._rows, self._columns = _block_diagonal(graph, runs)
        self._weights = torch.from_numpy(graph.mixing.data).to(dtype).repeat(runs)
        self.entries = len(self._columns)
        self._pieces: list[_Piece] = []

    def mix(self, state: Tensor, out: Tensor) -> None:
        for piece in self._pieces_of(out):
            piece.of(out).copy_(self._sums(piece, state, self._weights))

    def splittings(self, shares: Tensor) -> Tensor:
        """The entries of B in some rounds: (rounds, runs * routes)."""
        return shares.to(self._weights.dtype).view(-1, self.entries)

    def subtract(self, splitting: Tensor, step: Tensor, out: Tensor) -> None:
        for piece in self._pieces_of(out):
            piece.of(out).sub_(self._sums(piece, step, splitting))

    def combine(self, state: Tensor, step: Tensor, out: Tensor, shares: Tensor | None) -> None:
        if shares is None:
            super().combine(state, step, out, shares)
            return
        splitting = self.splittings(shares)[0]
        for piece in self._pieces_of(out):
            mixed = self._sums(piece, state, self._weights)
            torch.sub(mixed, self._sums(piece, step, splitting), out=piece.of(out))

    def _sums(self, piece: "_Piece", values: Tensor, weights: Tensor) -> Tensor:
        """A weighted sum of neighbours' values for each agent of the piece: (rows, d)."""
        some = piece.entries
        return sums(values.flatten(0, 1), piece.ends, self._columns[some], weights[some])

    def _pieces_of(self, out: Tensor) -> list["_Piece"]:
        if not self._pieces:
            for rows in blocks(len(self._rows) - 1, out.shape[-1] * out.element_size(), _TIMES):
                ends = self._rows[rows.start : rows.stop + 1]
                entries = slice(int(ends[0]), int(ends[-1]))
                self._pieces.append(_Piece(rows, ends - ends[0], entries))
        return self._pieces


class _Piece(NamedTuple):
    """Some agents of all runs in a row, where each one's entries begin, and the last ends."""

    rows: slice
    ends: Tensor
    entries: slice

    def of(self, out: Tensor) -> Tensor:
        """The rows of these agents: (rows, d)."""
        return out.view(-1, out.shape[-1])[self.rows]


def _block_diagonal(graph: Graph, runs: int) -> tuple[Tensor, Tensor]:
    """Where the rows begin and the last ends, and the columns of all entries."""
    agents, entries = graph.agents, graph.mixing.nnz
    ends = torch.from_numpy(graph.mixing.indptr[1:]).long()
    columns = torch.from_numpy(graph.mixing.indices).long()
    run = torch.arange(runs)[:, None]
    rows = pad((ends + entries * run).flatten(), (1, 0))
    return rows, (columns + agents * run).flatten()
