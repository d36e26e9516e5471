"""The update of all runs and agents, x <- Wx - B(Λg), in one pass over memory.

The kernels read each state and gradient from memory once and write the new states: 12 bytes a
coordinate move. `mix_` holds a few agents' numbers in registers, draws Λ from
`sottovoce.kernels.philox` where it is needed, and writes over the old states. `mix_sparse` serves
any number of agents: neighbours' numbers come from the cache, and the new states go elsewhere.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sottovoce.kernels import philox, usable

MOST_AGENTS = 8
"""All agents' numbers of a coordinate are held in registers."""

_BLOCK, _WARPS = 256, 2
_SPARSE_BLOCK, _SPARSE_WARPS = 512, 2
_AT_ONCE = {True: 1, False: 2}
"""Neighbours whose numbers are read together, with steps of theirs and without."""


class Factors(NamedTuple):
    """Entries of Λ, uniform on `interval`, drawn with `key` for (round, run, agent)."""

    interval: tuple[float, float]
    key: int
    round: int
    runs: range


def mix_(
    state: Tensor,
    gradient: Tensor,
    mixing: Tensor,
    splitting: Tensor | None,
    bad_round: Tensor,
    factors: Factors,
) -> None:
    """Overwrite `state` by W state - B (Λ gradient), and note where it is not finite.

    state, gradient: (runs, agents, d) float32, the gradient is left alone by the kernel and may be
    overwritten by plain torch; mixing: W, (agents, agents); splitting: B, (runs, agents, agents),
    None for B = I; bad_round: (runs, agents) int32, 0 or the first round whose states were not
    finite; factors: how Λ is drawn.
    """
    (low, high), key, round, runs = factors
    agents, d = state.shape[1:]
    if usable(state.device) and agents * d < 2**31:
        from sottovoce.kernels.device.mixing import mix

        stored = philox.blocks(d, state.dtype)
        grid = (-(-stored // _BLOCK), len(state))
        split = splitting is not None
        mix[grid](
            state, gradient, mixing, splitting if split else mixing, bad_round, key, round,
            runs.start, low, high - low, d, stored,
            agents, high > low, split, _BLOCK, num_warps=_WARPS,
        )  # fmt: skip
        return
    if high > low:
        drawn = philox.uniform(runs, range(agents), d, state.dtype, key, round, state.device)
        step = gradient.mul_(drawn.mul_(high - low).add_(low))
    else:
        step = gradient.mul_(low)
    if splitting is not None:
        step = splitting @ step
    torch.sub(mixing @ state, step, out=state)
    _note(state, bad_round, round)


class Links(NamedTuple):
    """The entries of W row by row: those of agent i from starts[i] to starts[i + 1].

    senders: whose numbers they multiply, (entries,); mixing: w_ij, float32.
    """

    starts: Tensor
    senders: Tensor
    mixing: Tensor


def mix_sparse(
    state: Tensor,
    step: Tensor,
    scale: float,
    links: Links,
    splitting: Tensor | None,
    out: Tensor,
    bad_round: Tensor,
    round: int,
) -> None:
    """Write W state - B (scale step) to `out`, for any number of agents.

    state, step, out: (runs, agents, d) float32; splitting: B's entries in the order of W's, (runs,
    entries), None for B = I; bad_round: as in `mix_`.
    """
    agents, d = state.shape[1:]
    if usable(state.device):
        from sottovoce.kernels.device import mixing as device

        split, align = splitting is not None, math.gcd(d, 4)
        grid = (-(-d // _SPARSE_BLOCK) * agents, len(state))
        device.mix_sparse[grid](
            state, step, out, links.starts, links.senders, links.mixing,
            splitting if split else links.mixing, bad_round, round, scale, d // align, agents,
            len(links.senders), split, _AT_ONCE[split], align, _SPARSE_BLOCK,
            num_warps=_SPARSE_WARPS,
        )  # fmt: skip
        return
    for run in range(len(state)):
        own = step[run]
        if splitting is not None:
            own = _matrix(links, splitting[run], agents) @ own
        torch.sub(_matrix(links, links.mixing, agents) @ state[run], own, alpha=scale, out=out[run])
    _note(out, bad_round, round)


def _note(state: Tensor, bad_round: Tensor, round: int) -> None:
    bad = ~torch.isfinite(state.sum(-1))
    bad_round.masked_fill_(bad & (bad_round == 0), round)


def _matrix(links: Links, values: Tensor, agents: int) -> Tensor:
    row = torch.repeat_interleave(links.starts.diff().long())
    return torch.sparse_coo_tensor(
        torch.stack((row, links.senders.long())), values, (agents, agents)
    )
