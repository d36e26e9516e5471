"""Gaussian numbers added to states or steps, drawn inside the kernel that adds them."""

from typing import NamedTuple

import torch
from torch import Tensor

from sottovoce.kernels import philox

_BLOCK, _WARPS = 256, 4


class Terms(NamedTuple):
    """What agents add up: coefficient times a standard normal number, one entry for each term.

    row: the agent whose row it enters, ascending; key, round, number: those of the generator, the
    number in the agent's place of the counter. dtype: of the draws, float32 or float64.
    """

    row: Tensor
    key: Tensor
    round: Tensor
    number: Tensor
    coefficient: Tensor
    dtype: torch.dtype


def add_normals_(rows: Tensor, terms: Terms, runs: range) -> None:
    """Add to `rows`, (runs, agents, d) float32 on a GPU, its terms; none of them is stored.

    The numbers are those of `philox.uniform`, made normal in float32 arithmetic; those of float64
    draws reach as far into the tails.
    """
    from sottovoce.kernels.device.noise import add_normals

    agents, d = rows.shape[1:]
    starts = torch.searchsorted(terms.row, torch.arange(agents + 1, device=rows.device))
    stored = philox.blocks(d, terms.dtype)
    grid = (-(-stored // _BLOCK) * agents, len(rows))
    add_normals[grid](
        rows, starts, terms.key, terms.round, terms.number, terms.coefficient.float(), runs.start,
        d, stored, agents, terms.dtype == torch.float64, _BLOCK, num_warps=_WARPS,
    )  # fmt: skip
