"""The update of all agents and runs at once: x <- Wx - Bs.

Dense for small or dense graphs, one batched matrix product; sparse for large ones, where all runs
form one block-diagonal matrix in CSR form, so that no loop over agents or runs is left.
"""

import warnings
from typing import Protocol

import torch
from torch import Tensor

from sottovoce.graphs import Graph, Routes
from sottovoce.kernels import usable
from sottovoce.kernels.mixing import MOST_AGENTS, mix_
from sottovoce.mechanisms import Algorithm, has_scalar_shares
from sottovoce.randomness import DeviceStreams, Streams
from sottovoce.stepsizes import Stepsize

_DENSE_AGENTS = {True: 24, False: 64}
"""Up to how many agents the dense product is quicker: on a CPU (on a ring), and elsewhere."""

_BLOCK_NUMBERS = {True: 1 << 15, False: 1 << 24}
"""Shares held at a time on a CPU, whose cache they should not leave, and elsewhere."""


class Mixer(Protocol):
    """Combines states and steps; the coefficients are those of `graph.routes()`."""

    def combine(self, state: Tensor, step: Tensor, out: Tensor, shares: Tensor | None) -> None:
        """out = W state - B step; `shares` holds B's entries (runs, routes), None means B = I.

        state, step, out: (runs, agents, d), `out` not overlapping the others.
        """

    def mix(self, state: Tensor, out: Tensor) -> None:
        """out = W state, for shares that are no numbers times the step."""


def mixer(graph: Graph, runs: int, dtype: torch.dtype, device: torch.device) -> Mixer:
    """The quicker of the two for this graph."""
    density = graph.mixing.nnz / graph.agents**2
    if graph.agents <= _DENSE_AGENTS[device.type == "cpu"] or density > 0.25:
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
        self.mix(state, out)
        if shares is None:
            out.sub_(step)
            return
        receiver, sender = self._entries
        self._splitting[:, receiver, sender] = shares.to(step.dtype)
        out.baddbmm_(self._splitting, step, alpha=-1.0)

    def mix(self, state: Tensor, out: Tensor) -> None:
        torch.bmm(self._mixing, state, out=out)


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
        self.mix(state, out)
        flat_step, flat_out = step.flatten(0, 1), out.flatten(0, 1)
        if shares is None:
            flat_out.sub_(flat_step)
            return
        splitting = self._matrix(shares.to(step.dtype).flatten(), len(flat_step))
        torch.addmm(flat_out, splitting, flat_step, alpha=-1.0, out=flat_out)

    def mix(self, state: Tensor, out: Tensor) -> None:
        flat_state, flat_out = state.flatten(0, 1), out.flatten(0, 1)
        torch.addmm(flat_out, self._mixing, flat_state, beta=0.0, out=flat_out)


class InPlaceUpdate:
    """x <- Wx - B(Λg) by one kernel over the states, on a GPU with few agents.

    Λ is drawn inside the kernel where each coordinate has a number of its own; it is the Λ that
    `Stepsize.scale_` would draw. No successor states and no steps are stored.
    """

    @classmethod
    def of(
        cls,
        algorithm: Algorithm,
        graph: Graph,
        streams: Streams,
        stepsize: Stepsize,
        dtype: torch.dtype,
    ) -> "InPlaceUpdate | None":
        """The update, or None where the kernel does not serve this simulation."""
        served = usable(streams.device) and dtype == torch.float32 and graph.agents <= MOST_AGENTS
        if served and isinstance(streams, DeviceStreams) and has_scalar_shares(algorithm):
            return cls(graph, streams, stepsize)
        return None

    def __init__(self, graph: Graph, streams: DeviceStreams, stepsize: Stepsize) -> None:
        routes = graph.routes().to(streams.device)
        self._entries = (routes.receiver, routes.sender)
        mixing = torch.from_numpy(graph.mixing.toarray())
        self._mixing = mixing.to(streams.device, torch.float32)
        self._splitting = self._mixing.new_zeros(len(streams.runs), *mixing.shape)
        self._streams, self._stepsize = streams, stepsize

    def advance_(
        self,
        state: Tensor,
        gradient: Tensor,
        shares: Tensor | None,
        round: int,
        bad_round: Tensor,
    ) -> None:
        """Overwrite `state`, and perhaps `gradient`, (runs, agents, d).

        shares: B's entries (runs, routes), None means B = I; bad_round: (runs, agents) int32, 0 or
        the first round after which an agent's state was not finite.
        """
        splitting = None
        if shares is not None:
            receiver, sender = self._entries
            self._splitting[:, receiver, sender] = shares.float()
            splitting = self._splitting
        interval = _common_interval(self._stepsize, round)
        if interval is None:
            self._stepsize.scale_(gradient, self._streams, round)
            interval = (1.0, 1.0)
        mix_(
            state,
            gradient,
            self._mixing,
            splitting,
            bad_round,
            interval,
            key=self._streams.key("stepsize", state.shape[-1], state.dtype),
            round=round,
            runs=self._streams.runs,
        )


def _common_interval(stepsize: Stepsize, round: int) -> tuple[float, float] | None:
    """Where every coordinate of every agent draws; None where agents differ or share a draw."""
    differ = isinstance(getattr(stepsize.schedule, "scale", None), tuple)
    deviate = stepsize.deviation is not None and round <= stepsize.deviation.rounds
    low, high = stepsize.interval(round)
    shared = stepsize.per == "agent" and low != high
    return None if differ or deviate or shared else (low, high)


class SharesInBlocks:
    """Take shares from their receivers a few senders at a time, so that they are never all held.

    For rules whose shares are drawn coordinate by coordinate: all shares of a round would be
    (runs, routes, d), several times the states.
    """

    def __init__(self, routes: Routes, streams: Streams, dimension: int) -> None:
        rows = max(1, _BLOCK_NUMBERS[streams.device.type == "cpu"] // (routes.slots * dimension))
        agents = len(streams.agents)
        at_once = min(rows, agents)
        parts = [slice(first, first + at_once) for first in range(0, agents, at_once)]
        runs = max(1, rows // agents)
        self._blocks = [
            (slice(first, first + runs), part, routes.part(part))
            for first in range(0, len(streams.runs), runs)
            for part in parts
        ]
        self._streams = [streams.part(some, part) for some, part, _ in self._blocks]

    def subtract(
        self, out: Tensor, step: Tensor, algorithm: Algorithm, round: int, stepsize: Stepsize
    ) -> None:
        """out_i -= Σ_j share_ij; step, out: (runs, agents, d)."""
        for (runs, agents, routes), streams in zip(self._blocks, self._streams, strict=True):
            shares = algorithm.shares(step[runs, agents], routes, streams, round, stepsize)
            out[runs].index_add_(1, routes.receiver, shares, alpha=-1.0)
