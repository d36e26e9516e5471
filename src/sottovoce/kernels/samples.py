"""Single samples' gradients of a 3x3 "same" convolution, their norms, and their weighted sums.

The gradients stand in the order in which the kernels write whole lines of memory: by tap, output
and input. The squares are added up where the numbers are made, so that the gradients are written
once and read once. Elsewhere than on a GPU with Triton plain torch computes the same.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from sottovoce.kernels import usable

_EACH = (64, 4, 2)
_EACH_FLOAT32 = (32, 4, 2)
_SUM = (512, 4, 4)
"""Block sizes (the sum's samples at once, too), warps and pipeline stages, fastest on an H200."""


def weight_gradients(
    x: Tensor, dz: Tensor, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """Each sample's gradients of weight and bias, and the sum of their squares.

    x: (samples, H, W, inputs); dz: (samples, H, W, outputs), both contiguous, H and W even; dtype:
    of the results where plain torch computes them, the kernels' are float32. Returns (samples, 3,
    3, outputs, inputs), (samples, outputs) and (samples,).
    """
    samples, H, W, inputs = x.shape
    outputs = dz.shape[-1]
    if not usable(x.device):
        return _plain(x.to(dtype), dz.to(dtype))
    from sottovoce.kernels.device import samples as device

    each = x.new_empty(samples, 3, 3, outputs, inputs, dtype=torch.float32)
    totals = x.new_empty(samples, outputs, dtype=torch.float32)
    squares = x.new_empty(samples, 3, dtype=torch.float32)
    block, warps, stages = _EACH_FLOAT32 if x.dtype == torch.float32 else _EACH
    device.weight_gradients[(3 * samples,)](
        x, dz, each, totals, squares,
        H, W, inputs, outputs, outputs < 64, "tf32", block, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return each, totals, squares.sum(1)


def weighted_sum(each: Tensor, weights: Tensor, out: Tensor) -> None:
    """Write Σ_n c_n times the samples' gradients of weights; a weight of 0 leaves a sample out.

    each: (replicas * n, 3, 3, outputs, inputs), as `weight_gradients` orders them; weights: c,
    (replicas, n); out: (replicas, outputs, inputs, 3, 3) rows of any stride.
    """
    replicas, samples = weights.shape
    outputs, inputs = each.shape[-2:]
    if not usable(each.device):
        row = weights.unsqueeze(1)
        held = each.unflatten(0, (replicas, samples)).flatten(2)
        held = held.masked_fill((weights == 0).unsqueeze(-1), 0.0)
        found = torch.bmm(row, held).view(replicas, 3, 3, outputs, inputs)
        out.copy_(found.permute(0, 3, 4, 1, 2))
        return
    from sottovoce.kernels.device import samples as device

    block, step, warps = _SUM
    block = block if 9 * inputs * outputs % block == 0 else 256
    device.weighted_sum[(9 * inputs * outputs // block, replicas)](
        each, weights.contiguous(), out, samples, out.stride(0),
        inputs, outputs, block, step, num_warps=warps,
    )  # fmt: skip


def _plain(x: Tensor, dz: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    samples, H, W, inputs = x.shape
    padded, slopes = pad(x, (0, 0, 1, 1, 1, 1)), dz.flatten(1, 2)
    each = slopes.new_empty(samples, 3, 3, dz.shape[-1], inputs)
    for dy in range(3):
        for dx in range(3):
            shifted = padded[:, dy : dy + H, dx : dx + W].flatten(1, 2)
            torch.bmm(slopes.mT, shifted, out=each[:, dy, dx])
    totals = slopes.sum(1)
    squares = each.flatten(1).square().sum(1) + totals.square().sum(1)
    return each, totals, squares
