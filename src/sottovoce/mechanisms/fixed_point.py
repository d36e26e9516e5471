"""Fixed point modulo 2^32: messages as integers whose sum can be had without the messages.

    q_ij = round(v_ij 2^20)      v_jj += Σ_i (v_ij - q_ij 2^-20)      x_i <- Σ_j q_ij 2^-20 + v_ii

What rounding takes from a message stays with its sender, so that the agents' average is that of the
messages before rounding. Multiplication by a power of two, rounding to whole numbers (ties to even)
and the difference are exact in floating point; only the addition to v_jj rounds as any addition
does. Sums of integers are exact in any order. The simulator and real agents use these functions
alone, so that they agree to the bit.
"""

import torch
from torch import Tensor

from sottovoce.errors import GraphError
from sottovoce.graphs import Graph

FRACTION_BITS = 20
STEP = 2.0**-FRACTION_BITS
"""The distance between neighbouring numbers."""

_LARGEST_SUM = 2**31 - 1


def largest(senders: int) -> int:
    """The largest |q| that each of `senders` agents may send so that their sum cannot wrap around.

    Modulo 2^32 a sum beyond ±2048 comes out as another one, and nobody can tell.
    """
    return _LARGEST_SUM // senders


def to_steps(messages: Tensor, out: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """Whole numbers q and remainders r, |r| <= 1/2, with v = (q + r) 2^-20; both of v's type.

    out: where to write them.
    """
    whole, rest = out or (torch.empty_like(messages), torch.empty_like(messages))
    torch.mul(messages, 2.0**FRACTION_BITS, out=rest)
    torch.round(rest, out=whole)
    return whole, rest.sub_(whole)


def beyond(whole: Tensor, limits: Tensor) -> Tensor:
    """Which messages hold a number that is too large, or NaN: (..., n), (...,) -> (...,) bool."""
    # A NaN passes through both, and makes every comparison false.
    return ~((whole.amin(-1) >= -limits) & (whole.amax(-1) <= limits))


def to_numbers(integers: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers that integers, or sums of them, stand for."""
    return integers.to(dtype).mul_(STEP)


def require_sums(graph: Graph) -> None:
    """Raise where an agent has fewer than two neighbours: masks would hide nothing from it."""
    lonely = [agent for agent, degree in enumerate(graph.degrees.tolist()) if degree < 2]
    if lonely:
        shown = ", ".join(map(str, lonely[:8])) + (", ..." if len(lonely) > 8 else "")
        raise GraphError(
            "masked links show an agent the sum of its neighbours' messages and nothing else, but "
            f"in {graph.name} agents with fewer than two neighbours ({shown}) would be shown a sum "
            "of one message, which is the message; accepted: at least two neighbours for every "
            "agent (two protect against that agent alone, three also where one of them tells it "
            "more)"
        )
