"""What serves a chain faster than message by message, where its parts allow it.

The reference (`mechanisms.reference`) serves every chain. A plain chain is one product, x <- Wx -
Bs (`simulation.mixers`); on a GPU it is one kernel, which draws Λ where it is used, and noise where
it is added. Where shares are drawn coordinate by coordinate, they are taken from Wx a few senders
at a time.
"""

import torch
from torch import Tensor

from sottovoce.errors import SimulationError
from sottovoce.graphs import Graph
from sottovoce.kernels import usable
from sottovoce.kernels.mixing import MOST_AGENTS, Factors, Links, mix_, mix_sparse
from sottovoce.mechanisms import Mechanism, in_blocks
from sottovoce.mechanisms.fixed_point import STEP, beyond, largest, to_numbers, to_steps
from sottovoce.mechanisms.flow import Flow
from sottovoce.mechanisms.reference import Gather, See, by_messages, make_messages, split_step
from sottovoce.problems.base import room_like
from sottovoce.randomness import Ahead, DeviceStreams
from sottovoce.simulation.mixers import SPARSE, DenseMixer, density, mixer

_MOST_NEIGHBOURS = 32
"""Entries of W's rows up to which one kernel reads them, however dense the graph is."""

_BLOCK_NUMBERS = {True: 1 << 15, False: 1 << 24}
"""Shares held at a time on a CPU, whose cache they should not leave, and elsewhere."""

_PLANNED_NUMBERS = 1 << 13
"""Entries of B held at a time, those of many rounds where one round has few."""

LARGE = 1 << 28
"""Bytes of states from which on random access to agents is faster in huge pages."""


def room_for(state: Tensor) -> Tensor:
    """Memory for more states, (runs, agents, d)."""
    return room_like(state) if state.nbytes >= LARGE else torch.empty_like(state)


def backend(mechanism: Mechanism, graph: Graph, like: Flow) -> Gather:
    """The fastest way to what each agent receives; `like` shows runs, sizes and streams."""
    if mechanism.at("messages") or (mechanism.at("shares") and not in_blocks(mechanism, graph)):
        return by_messages(mechanism)
    return Product(mechanism, graph, like) if mechanism.plain else Blocks(mechanism, graph, like)


class Product:
    """x <- Wx - Bs for a plain chain; public coefficients are computed once."""

    def __init__(self, mechanism: Mechanism, graph: Graph, like: Flow) -> None:
        self._mixer, self._public = mixer(graph, like), _Public(mechanism, like)
        self._buffers, self._split = _Buffers(mechanism, like), mechanism.split
        planned = self._public.private and mechanism.split.timeless and like.x.device.type == "cpu"
        self._ahead = Ahead(max(1, _PLANNED_NUMBERS // self._mixer.entries) if planned else 1)

    def __call__(self, flow: Flow) -> Tensor:
        out = self._buffers.instead_of(flow.x)
        if self._ahead.rounds == 1:
            self._mixer.combine(flow.x, flow.s, out, self._public.coefficients(flow))
            return out
        self._mixer.mix(flow.x, out)
        splitting = self._ahead.at(flow.at.round, lambda *rounds: self._planned(flow, *rounds))
        self._mixer.subtract(splitting, flow.s, out)
        return out

    def _planned(self, flow: Flow, first: int, rounds: int) -> Tensor:
        """B of some rounds in a row."""
        shares = self._split.coefficients(flow.of_rounds(first, rounds))[..., 0]
        return self._mixer.splittings(shares)


class _Buffers:
    """Where successor states go: over the states before, unless a part may still hold those."""

    def __init__(self, mechanism: Mechanism, like: Flow) -> None:
        self._spare = None if mechanism.at("state") else room_for(like.x)

    def instead_of(self, state: Tensor) -> Tensor:
        if self._spare is None:
            return torch.empty_like(state)
        out, self._spare = self._spare, state
        return out


class _Public:
    """The coefficients of a chain, computed once where they ask for no private number."""

    def __init__(self, mechanism: Mechanism, like: Flow) -> None:
        self._split = mechanism.split
        like.asked.clear()
        found = self._split.coefficients(like)[..., 0]
        self.private, self._found = bool(like.asked), found
        self._keeps = not like.asked and bool((found == like.routes.own.to(found.dtype)).all())

    def coefficients(self, flow: Flow) -> Tensor | None:
        """The b_ij (runs, routes), or None where every agent keeps its whole step."""
        if self._keeps:
            return None
        return self._split.coefficients(flow)[..., 0] if self.private else self._found


class Blocks:
    """Wx less the shares, a few senders at a time, so that the shares are never all held.

    All shares of a round would be (runs, routes, d), several times the states.
    """

    def __init__(self, mechanism: Mechanism, graph: Graph, like: Flow) -> None:
        self._mechanism, self._mixer = mechanism, mixer(graph, like)
        self._buffers, self._split = _Buffers(mechanism, like), mechanism.split
        numbers = _BLOCK_NUMBERS[like.x.device.type == "cpu"]
        rows = max(1, numbers // (like.routes.slots * like.x.shape[-1]))
        at_once, runs = min(rows, graph.agents), max(1, rows // graph.agents)
        senders = [slice(first, first + at_once) for first in range(0, graph.agents, at_once)]
        self._blocks = [
            (some, part, like.routes.part(part), like.streams.part(some, part))
            for first in range(0, len(like.x), runs)
            for some in [slice(first, first + runs)]
            for part in senders
        ]

    def __call__(self, flow: Flow) -> Tensor:
        out = self._buffers.instead_of(flow.x)
        self._mixer.mix(flow.x, out)
        for runs, senders, routes, streams in self._blocks:
            x, s = flow.x[runs, senders], flow.s[runs, senders]
            block = Flow(x, s, routes, streams, flow.stepsize, flow.at)
            split_step(self._mechanism, block)
            out[runs].index_add_(1, routes.receiver, block.shares, alpha=-1.0)
        return out


class Kernel:
    """x <- Wx - B(Λg) by one kernel over the states, on a GPU.

    Λ is drawn inside the kernel where each coordinate has a number of its own; it is the Λ that
    `Stepsize.scale_` would draw. No steps are stored, and no successor states with few agents.
    Noise of the chain's parts is drawn by kernels that add it, and never stored.
    """

    @classmethod
    def of(cls, mechanism: Mechanism, graph: Graph, like: Flow) -> "Kernel | None":
        """The kernel, or None where it does not serve this simulation."""
        most = int(graph.degrees.max()) + 1
        sparse = density(graph) <= SPARSE or most <= _MOST_NEIGHBOURS
        suits = like.x.dtype == torch.float32 and (sparse or graph.agents <= MOST_AGENTS)
        added = all(part.additive for part in mechanism.at("shares"))
        plain = mechanism.split.scalar and mechanism.exchanges == 1 and added
        others = mechanism.at("messages") or mechanism.at("state")
        if not (usable(like.x.device) and suits and plain) or others:
            return None
        return cls(mechanism, graph, like)

    def __init__(self, mechanism: Mechanism, graph: Graph, like: Flow) -> None:
        self._mechanism, self._public = mechanism, _Public(mechanism, like)
        like.in_kernel = usable(like.x.device)
        device = like.x.device
        self._dense = self._spare = None
        if graph.agents <= MOST_AGENTS:
            self._dense = DenseMixer(graph, len(like.x), torch.float32, device)
            return
        self._spare = room_for(like.x)
        starts, senders = (
            torch.from_numpy(part).to(device, torch.int32)
            for part in (graph.mixing.indptr, graph.mixing.indices)
        )
        weights = torch.from_numpy(graph.mixing.data).to(device, torch.float32)
        self._links = Links(starts, senders, weights)

    def advance_(self, flow: Flow, bad_round: Tensor) -> None:
        """Replace or overwrite `flow.x`, and perhaps the gradients in `flow.s`.

        bad_round: (runs, agents) int32, 0 or the first round after which an agent's state was not
        finite.
        """
        flow.proving = self._mechanism.bound is not None
        for part in self._mechanism.at("gradient"):
            part(flow)
        streams, round = flow.streams, flow.at.round
        assert isinstance(streams, DeviceStreams)
        steps, interval = self._mechanism.at("step"), flow.stepsize.common_interval(round)
        drawn = interval is not None and interval[0] < interval[1]
        if interval is None or steps or (drawn and not self._dense):
            flow.stepsize.scale_(flow.s, streams, round)
            interval = (1.0, 1.0)
        for part in steps:
            part(flow)
        key = streams.key("stepsize", flow.x.shape[-1], flow.x.dtype)
        factors = Factors(interval, key, round, streams.runs)
        self._mix(flow, self._public.coefficients(flow), bad_round, factors)
        for part in self._mechanism.at("shares"):
            part.subtract_received(flow, flow.x)

    def _mix(self, flow: Flow, shares: Tensor | None, bad_round: Tensor, factors: Factors) -> None:
        if self._dense:
            splitting = None if shares is None else self._dense.splittings(shares)[0]
            mix_(flow.x, flow.s, self._dense.mixing[0], splitting, bad_round, factors)
            return
        assert self._spare is not None
        splitting = None if shares is None else shares.float().contiguous()
        scale, round = factors.interval[0], factors.round
        mix_sparse(flow.x, flow.s, scale, self._links, splitting, self._spare, bad_round, round)
        flow.x, self._spare = self._spare, flow.x


class MaskedLinks:
    """What each agent receives over masked links, message by message, as real agents compute it.

    The masks cancel in every sum, so they are left out; messages are in fixed point, and what
    rounding takes from them stays with the sender. `see` gets the rounded messages.
    """

    def __init__(self, mechanism: Mechanism, graph: Graph, see: See | None = None) -> None:
        self._mechanism, self._see = mechanism, see
        limits = [largest(degree) for degree in graph.degrees.tolist()]
        self._limits = torch.tensor(limits, dtype=torch.float64)

    def __call__(self, flow: Flow) -> Tensor:
        make_messages(self._mechanism, flow)
        routes, messages = flow.routes, flow.v
        links, own = (~routes.own).nonzero().flatten(), routes.own.nonzero().flatten()
        sender, receiver = routes.sender[links], routes.receiver[links]
        whole, rest = to_steps(messages[:, links])
        too_large = beyond(whole, self._limits.to(receiver.device)[receiver])
        if bool(too_large.any()):
            self._refuse(flow, too_large, sender, receiver)
        kept = messages.new_zeros(len(messages), routes.agents, messages.shape[2])
        kept.index_add_(1, sender, rest).mul_(STEP)
        kept = messages[:, own].add_(kept)
        if self._see:
            messages[:, links], messages[:, own] = whole * STEP, kept
            self._see(messages)
        total = torch.zeros_like(kept, dtype=torch.int32)
        total.index_add_(1, receiver, whole.to(torch.int32))
        return to_numbers(total, kept.dtype).add_(kept)

    def _refuse(self, flow: Flow, wrong: Tensor, sender: Tensor, receiver: Tensor) -> None:
        run, link = wrong.nonzero()[0].tolist()
        limit = float(self._limits[receiver[link]]) * STEP
        raise SimulationError(
            f"the message of agent {sender[link]} to agent {receiver[link]} in round "
            f"{flow.at.round} of run {flow.streams.runs[run]} is not finite or leaves the range of "
            f"masked links; accepted: numbers up to ±{limit:.6g}, because the receiver's sum is "
            "taken modulo 2^32. A smaller stepsize is the usual cure"
        )
