"""The update of all runs and agents, x <- Wx - B(Λg), in one pass over memory.

The kernel reads each state and gradient once, draws Λ from `sottovoce.kernels.philox` where it is
needed, and writes the new states over the old ones: 12 bytes a coordinate move.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from sottovoce.kernels import philox, usable

MOST_AGENTS = 8
"""All agents' numbers of a coordinate are held in registers."""

_BLOCK, _WARPS = 256, 2


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
    bad = ~torch.isfinite(state.sum(-1))
    bad_round.masked_fill_(bad & (bad_round == 0), round)
