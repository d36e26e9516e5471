"""Convolutions of many replicas at once, each with weights of its own, and their gradients.

3x3 "same" convolutions with stride 1 over channels-last images (replicas, images, H, W, channels),
H and W even, fused with bias, activation and 2x2 max pool in the forward pass and with their
derivatives in the backward pass. Patches are never stored. On a GPU with Triton these are kernels;
elsewhere plain torch computes the same, which is also what the kernels are tested against.

A max pool's `index` says which of the four entries of a window was the largest (0 to 3, by rows).
Sums are float32 at least, whatever type the images have. Some GPUs have kernels of their own in
`sottovoce.kernels.hopper`.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from sottovoce.kernels import hopper, interpreted, usable
from sottovoce.kernels.layers import After, Gradient, convolved, finished, slope, spread_over

MOST_CHANNELS = 64
MOST_FIRST_TAPS = 64


def takes_pooled(x: Tensor, outputs: int) -> bool:
    """Whether gradients of x's convolution are best left behind their max pool, not spread.

    x: (replicas, images, H, W, inputs), the inputs of a convolution after the first.
    """
    return hopper.serves(x, outputs)


def convolve(x: Tensor, weight: Tensor, bias: Tensor, after: After) -> tuple[Tensor, Tensor | None]:
    """Convolve, activate and pool; return the outputs and the pool's index.

    x: (replicas, images, H, W, inputs); weight: torch's (replicas, outputs, inputs, 3, 3), rows of
    any stride; bias: (replicas, outputs), likewise. Outputs: (replicas, images, H', W', outputs),
    or (replicas, images, outputs, H', W') if `after.flat`.
    """
    if hopper.serves(x, weight.shape[1]):
        return hopper.convolve(x, weight, bias, after)
    if usable(x.device):
        out, index = _outputs(x, weight.shape[1], x.shape[2], x.shape[3], after)
        _launch(x, weight, bias, None, index, out, after, total=False)
        return out, index
    z = convolved(x, weight.permute(0, 3, 4, 2, 1).to(x.dtype))
    return finished(z + bias[:, None, None, None], after, x.dtype)


def convolve_first(
    x: Tensor, weight: Tensor, bias: Tensor, after: After
) -> tuple[Tensor, Tensor | None]:
    """`convolve` for the first layer: few channels, which lie first, and torch's weights.

    x: (replicas, images, inputs, H, W); weight: (replicas, outputs, inputs, 3, 3).
    """
    if not usable(x.device):
        return convolve(x.permute(0, 1, 3, 4, 2), weight, bias, after)
    from sottovoce.kernels.device import convolution as device

    replicas, images, inputs, H, W = x.shape
    outputs = weight.shape[1]
    out, index = _outputs(x, outputs, H, W, after)
    block, warps = _FIRST
    grid = (_ceil(images * H * W // 4, block), replicas)
    device.convolve_first[grid](
        x, weight, bias, index, out, images,
        weight.stride(0), bias.stride(0), x.stride(0), out.stride(0),
        H, W, inputs, outputs, _taps(inputs), _activation(after, x.dtype), after.pool, after.flat,
        "tf32", block, num_warps=warps,
    )  # fmt: skip
    return out, index


def input_gradient(
    dz: Gradient,
    weight: Tensor,
    lower: Tensor,
    index: Tensor | None,
    after: After,
    total: bool,
) -> tuple[Tensor, Tensor | None]:
    """Gradient with respect to the lower layer's sums, and if asked its total over all pixels.

    weight: as in `convolve`; lower: the lower layer's outputs (replicas, images, H, W, inputs)
    behind what is `after` it; through a max pool, whose `index` it takes, the gradient goes back to
    (replicas, images, 2H, 2W, inputs).
    """
    if hopper.serves(lower, dz.values.shape[-1]):
        return hopper.input_gradient(dz, weight, lower, index, after, total)
    spread = dz.everywhere()
    if usable(spread.device):
        replicas, images, H, W, inputs = lower.shape
        scale = 1 if index is None else 2
        out = spread.new_empty(replicas, images, scale * H, scale * W, inputs)
        return out, _launch(spread, weight, None, lower, index, out, after, total)
    flipped = weight.permute(0, 3, 4, 1, 2).flip(1, 2).to(spread.dtype)
    gradient = convolved(spread, flipped) * slope(lower, after.activation)
    added = gradient.sum((1, 2, 3)) if total else None
    return (gradient if index is None else spread_over(gradient, index)), added


def weight_gradient(x: Tensor, dz: Gradient, out: Tensor) -> None:
    """Write Σ dz ⊗ shifted x to `out`, (replicas, outputs, inputs, 3, 3) rows of any stride.

    x: (replicas, images, H, W, inputs).
    """
    replicas, images, H, W, inputs = x.shape
    outputs = dz.values.shape[-1]
    if hopper.serves(x, outputs) and out.dtype == torch.float32:
        hopper.weight_gradient(x, dz, out)
        return
    spread = dz.everywhere()
    if usable(x.device):
        from sottovoce.kernels.device import weights as device

        block, warps, stages = _weight_tiling(outputs, x.dtype)
        device.weight_gradient[(3, replicas)](
            x, spread, out, images, x.stride(0), spread.stride(0), out.stride(0),
            H, W, inputs, outputs, outputs < 64, "tf32", block,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
        return
    padded = pad(x, (0, 0, 1, 1, 1, 1))
    for dy in range(3):
        for dx in range(3):
            shifted = padded[:, :, dy : dy + H, dx : dx + W]
            out[..., dy, dx] = spread.flatten(1, 3).mT @ shifted.flatten(1, 3)


def first_gradients(
    dz: Gradient,
    weight: Tensor,
    lower: Tensor,
    after: After,
    x: Tensor,
    to: tuple[Tensor, Tensor],
) -> None:
    """Write the first layer's gradients, of weights and bias, from the second layer's dz.

    weight: of the second layer; lower: the first layer's outputs, not behind a pool, and x its
    inputs, channels first. It is `input_gradient` and `first_weight_gradient`, with nothing stored
    between them where a kernel does both.
    """
    fits = to[0].dtype == torch.float32
    if fits and hopper.serves_first(lower, dz.values.shape[-1], x.shape[2]):
        hopper.first_gradients(dz, weight, lower, after, x, to)
        return
    below, _ = input_gradient(dz, weight, lower, None, after, False)
    first_weight_gradient(x, below, *to)


def first_weight_gradient(x: Tensor, dz: Tensor, out: Tensor, bias: Tensor) -> None:
    """`weight_gradient` for the first layer, and its bias's gradient to `bias`.

    x: (replicas, images, inputs, H, W); bias: (replicas, outputs) rows of any stride.
    """
    if not usable(x.device):
        weight_gradient(x.permute(0, 1, 3, 4, 2), Gradient(dz), out)
        bias.copy_(dz.sum((1, 2, 3)))
        return
    from sottovoce.kernels.device import weights as device

    replicas, images, inputs, H, W = x.shape
    outputs, taps = dz.shape[-1], _taps(inputs)
    parts, block, warps, stages = _FIRST_WEIGHT
    partial = x.new_empty(replicas, parts, outputs, taps, dtype=torch.float32)
    device.first_weight_gradient[(parts, replicas)](
        x, dz, partial, images, x.stride(0), dz.stride(0),
        H, W, inputs, outputs, taps, "tf32", block, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    added = partial.sum(1)
    out.copy_(added[..., : 9 * inputs].unflatten(-1, (inputs, 3, 3)))
    bias.copy_(added[..., 9 * inputs])


def unflatten(
    gradient: Tensor, outputs: Tensor, index: Tensor | None, after: After, pooled: bool = False
) -> tuple[Gradient, Tensor]:
    """Gradient with respect to the last convolution's sums, and its total, from that of `outputs`.

    gradient, outputs: (replicas, images, channels, H, W), as `flat` stores them. pooled: whether it
    stays behind a max pool; it is spread over the pool's windows otherwise.
    """
    if usable(gradient.device):
        from sottovoce.kernels.device import pointwise as device

        replicas, images, channels, H, W = outputs.shape
        spread = index is not None and not pooled
        wide = 2 if spread else 1
        dz = outputs.new_empty(replicas, images, wide * H, wide * W, channels)
        where = None if index is None or spread else torch.empty_like(dz, dtype=index.dtype)
        block, warps = _UNPOOL
        grid = (_ceil(images * H * W, block), replicas)
        added = outputs.new_empty(replicas, grid[0], channels, dtype=torch.float32)
        device.unpool[grid](
            gradient, outputs, index, dz, where, added, images, H, W, channels, after.activation,
            index is not None, spread, block, num_warps=warps,
        )  # fmt: skip
        return Gradient(dz, where), added.sum(1)
    dz = (gradient * slope(outputs, after.activation)).permute(0, 1, 3, 4, 2)
    total = dz.sum((1, 2, 3))
    last = None if index is None else index.permute(0, 1, 3, 4, 2).contiguous()
    found = Gradient(dz.contiguous(), last)
    return (found if pooled else Gradient(found.everywhere())), total


def outer(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Write a dense layer's weight gradient leftᵀ right to `out`, rows of any stride.

    left: (replicas, samples, n); right: (replicas, samples, k); out: (replicas, n, k).
    """
    if not usable(left.device):
        out.copy_(left.mT @ right)
        return
    from sottovoce.kernels.device import weights as device

    replicas, samples, n = left.shape
    k = right.shape[-1]
    block_n, block_k, warps, stages = _OUTER
    grid = (_ceil(n, block_n) * _ceil(k, block_k), replicas)
    device.outer[grid](
        left, right, out, samples, out.stride(0), n, k, "tf32",
        block_n, block_k, 64 if left.dtype != torch.float32 else 32,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip


def convert(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """(replicas, ...) in another type, where the rows may begin any stride apart."""
    if not usable(rows.device) or rows.dtype == dtype:
        return rows.to(dtype)
    from sottovoce.kernels.device import pointwise as device

    out = torch.empty(rows.shape, dtype=dtype, device=rows.device)
    block, warps = _CONVERT
    grid = (_ceil(rows[0].numel(), block), len(rows))
    device.convert[grid](rows, out, rows[0].numel(), rows.stride(0), block, num_warps=warps)
    return out


def _launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    lower: Tensor | None,
    index: Tensor | None,
    out: Tensor,
    after: After,
    total: bool,
) -> Tensor | None:
    """Convolve into `out`: forward with `bias`, else backward to `lower`, with its total if asked.

    index: where the max pool's places are written, or in the backward pass read.
    """
    from sottovoce.kernels.device import convolution as device
    from sottovoce.kernels.device.wide import convolve_wide

    replicas, images, H, W, inputs = x.shape
    backward = bias is None
    outputs = weight.shape[2 if backward else 1]
    wide, tiles, ahead = _tiling(inputs, outputs, x.dtype, backward)
    block, warps = _WINDOWS
    kernel = convolve_wide if wide else device.convolve
    weight = _arranged(weight, x.dtype, backward, wide)
    grid = (_ceil(images * H * W // 4, block * tiles), replicas)
    added = x.new_empty(replicas, grid[0], outputs, dtype=torch.float32) if total else None
    bias, lower = x if bias is None else bias, x if lower is None else lower
    kernel[grid](
        x, weight, bias, lower, index, out, added, images,
        bias.stride(0), x.stride(0), out.stride(0), lower.stride(0),
        H, W, inputs, outputs, _activation(after, x.dtype), index is not None, backward, after.flat,
        total, "tf32", block, tiles, ahead, num_warps=warps, num_stages=1,
    )  # fmt: skip
    return None if added is None else added.sum(1)


def _outputs(x: Tensor, outputs: int, H: int, W: int, after: After) -> tuple[Tensor, Tensor | None]:
    if after.pool:
        H, W = H // 2, W // 2
    shape = (outputs, H, W) if after.flat else (H, W, outputs)
    out = x.new_empty(*x.shape[:2], *shape)
    return out, torch.empty_like(out, dtype=torch.uint8) if after.pool else None


_WINDOWS = (64, 4)
_FIRST = (64, 2)
_FIRST_WEIGHT = (4, 128, 4, 2)
_OUTER = (64, 128, 4, 2)
_UNPOOL = (32, 4)
_CONVERT = (2048, 4)
"""Block sizes, warps and pipeline stages that were the fastest on an H200."""


def _tiling(inputs: int, outputs: int, dtype: torch.dtype, backward: bool) -> tuple[bool, int, int]:
    """Whether pairs share products, how many blocks of windows, how many inputs ahead."""
    if inputs * outputs <= 1024 and dtype != torch.float32:
        return True, 14, 0
    if inputs * outputs >= 4096:
        return (False, 1, 1) if backward else (False, 4, 2)
    return False, 1, 0 if backward else 2


def _weight_tiling(outputs: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Pairs of pixels at once, warps and pipeline stages."""
    if dtype == torch.float32:
        return 32, 4, 2
    return (64, 4, 4) if outputs < 64 else (32, 4, 3)


def _arranged(weight: Tensor, dtype: torch.dtype, backward: bool, wide: bool) -> Tensor:
    """Torch's weights in the order and type in which the kernels read them."""
    from sottovoce.kernels.device import pointwise as device

    replicas, outputs, inputs = weight.shape[:3]
    count = (24 if wide else 9) * outputs * inputs
    out = torch.empty(replicas, count, dtype=dtype, device=weight.device)
    block, warps = _CONVERT
    device.arrange[(_ceil(count, block), replicas)](
        weight, out, weight.stride(0), count, outputs, inputs, backward, wide, block,
        num_warps=warps,
    )  # fmt: skip
    return out


def _activation(after: After, dtype: torch.dtype) -> str:
    """The activation by the kernels' name: where outputs have 8 bits, one of 11 serves."""
    fast = after.activation == "sigmoid" and dtype == torch.bfloat16 and not interpreted()
    return "~sigmoid" if fast else after.activation


def _taps(inputs: int) -> int:
    """A power of two that holds all taps; the matrix unit needs 16."""
    return max(16, 1 << (9 * inputs - 1).bit_length())


def _ceil(count: int, size: int) -> int:
    return -(-count // size)
