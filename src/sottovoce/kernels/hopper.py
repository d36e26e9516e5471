"""Convolutions in bfloat16 by CUDA C++ kernels, where the GPU is of their generation.

They compute what `sottovoce.kernels.convolution` computes, from the same arguments. Behind a max pool
they take gradients of the largest entries alone, with the pool's index: nothing is spread.
"""

from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sottovoce.kernels import compiled

if TYPE_CHECKING:
    from sottovoce.kernels.convolution import After

_ACTIVATIONS = {"": "IDENTITY", "sigmoid": "SIGMOID", "relu": "RELU", "tanh": "TANH"}
_MOST_SHARED = 227 * 1024
_TILE = 64
_WIDEST = 512
"""Channels times places across: 128 threads copy at least a row of pixels at once."""
_MOST_STAGES, _GATES = 5, 128
_MOST_FIRST = 3


def serves(x: Tensor, outputs: int) -> bool:
    """Whether these kernels convolve x (replicas, images, H, W, inputs) to so many channels."""
    if x.dtype != torch.bfloat16 or not {x.shape[-1], outputs} <= {32, 64}:
        return False
    H, W = x.shape[2:4]
    fits = _across(W) * max(x.shape[-1], outputs) <= _WIDEST and _TILE % _across(W) == 0
    return H % 2 == W % 2 == 0 and fits and compiled.available(x.device)


def serves_first(lower: Tensor, outputs: int, channels: int) -> bool:
    """Whether they take the gradient of `lower`'s convolution on to a first layer of few channels."""
    return serves(lower, outputs) and lower.shape[-1] == 32 and channels <= _MOST_FIRST


def convolve(x: Tensor, weight: Tensor, bias: Tensor, after: "After") -> tuple[Tensor, Tensor | None]:
    replicas, images, H, W, inputs = x.shape
    outputs = weight.shape[1]
    mode = "STORE" if not after.pool else "FLAT" if after.flat else "POOL"
    side = (H // 2, W // 2) if after.pool else (H, W)
    out = x.new_empty(replicas, images, *((outputs, *side) if after.flat else (*side, outputs)))
    index = torch.empty_like(out, dtype=torch.uint8) if after.pool else None
    run, threads = _convolution(inputs, outputs, H, W, mode, after.activation, False, _number(x))
    run(
        replicas, threads, x, None, weight, weight.stride(0), bias, bias.stride(0), None, index, out,
        None, None, None, None, 0, images,
    )  # fmt: skip
    return out, index


def input_gradient(
    dz: Tensor,
    pooled: Tensor | None,
    weight: Tensor,
    lower: Tensor,
    index: Tensor | None,
    after: "After",
    total: bool,
) -> tuple[Tensor, Tensor | None]:
    """`pooled`: the index of the pool that dz lies behind; `index`: of one to spread over below."""
    replicas, images, H, W, outputs = lower.shape
    inputs = dz.shape[-1]
    wide = 1 if index is None else 2
    out = dz.new_empty(replicas, images, wide * H, wide * W, outputs)
    added = dz.new_empty(replicas, outputs, dtype=torch.float32) if total else None
    mode, kind = "SLOPE" if index is None else "SPREAD", after.activation
    behind = pooled is not None
    run, threads = _convolution(inputs, outputs, H, W, mode, kind, behind, _number(dz))
    run(
        replicas, threads, dz, pooled, weight, weight.stride(0), None, 0, lower, index, out, added,
        None, None, None, 0, images,
    )  # fmt: skip
    return out, added


def first_gradients(
    dz: Tensor,
    pooled: Tensor | None,
    weight: Tensor,
    lower: Tensor,
    after: "After",
    x: Tensor,
    to: tuple[Tensor, Tensor],
) -> None:
    """The first layer's gradients, weights and bias, from dz of the second: x are its inputs."""
    replicas, images, channels, H, W = x.shape
    behind, inputs, outputs = pooled is not None, dz.shape[-1], lower.shape[-1]
    run, threads = _convolution(
        inputs, outputs, H, W, "SLOPE", after.activation, behind, _number(dz), channels
    )
    run(
        replicas, threads, dz, pooled, weight, weight.stride(0), None, 0, lower, None, None, None,
        x, *to, to[0].stride(0), images,
    )  # fmt: skip


def weight_gradient(x: Tensor, dz: Tensor, pooled: Tensor | None, out: Tensor) -> None:
    replicas, images, H, W, inputs = x.shape
    run = _weights(inputs, dz.shape[-1], H, W, pooled is not None, _number(x))
    run(replicas, 512, x, dz, pooled, out, out.stride(0), images)


@cache
def _convolution(
    inputs: int,
    outputs: int,
    H: int,
    W: int,
    mode: str,
    activation: str,
    pooled: bool,
    device: int,
    first: int = 0,
) -> tuple[compiled.Compiled, int]:
    """The kernel, and how many threads a block has."""
    reached = _reached(H, W)
    groups = 2 if outputs == 64 else 3
    own = 3 * outputs * (H // 2) * (W // 2) if mode == "FLAT" and reached == _TILE else 0
    own += 2 * (8 * first * reached + 2 * _TILE) if first else 0
    # Behind all lies what taps of windows that do not exist reach.
    fixed = -(-18 * inputs * outputs // 1024) * 1024 + 1024 + groups * own + 2048
    buffers = min(_MOST_BUFFERS, (_MOST_SHARED - fixed) // _planes(inputs, reached))
    few, many = _REGISTERS[groups]
    run = compiled.kernel(
        "convolve", fixed + buffers * _planes(inputs, reached), device, IN=inputs, OUT=outputs,
        H=H, W=W, MODE=mode, ACT=_ACTIVATIONS[activation], GROUPS=groups, BUFFERS=buffers,
        POOLED=int(pooled), FIRST=first, HELD=_HELD, FEW=few, MANY=many,
    )  # fmt: skip
    return run, 128 * (groups + 1)


_MOST_BUFFERS = 6
_HELD = 3
_REGISTERS = {2: (56, 224), 3: (56, 152)}
"""Of threads that copy and that multiply, by the groups that multiply: all that there are."""


@cache
def _weights(
    inputs: int, outputs: int, H: int, W: int, pooled: bool, device: int
) -> compiled.Compiled:
    stage = _planes(inputs, _reached(H, W)) + _planes(outputs, _TILE)
    stages = min(_MOST_STAGES, (_MOST_SHARED - _GATES) // stage)
    return compiled.kernel(
        "weight_gradient", stages * stage + _GATES, device, IN=inputs, OUT=outputs, H=H, W=W,
        STAGES=stages, POOLED=int(pooled), HELD=_HELD, LATE=1,
    )  # fmt: skip


def _number(x: Tensor) -> int:
    return x.device.index or 0


def _across(W: int) -> int:
    return (W // 2 + 8) // 8 * 8


def _reached(H: int, W: int) -> int:
    """Places of a plane that a tile's taps reach."""
    return _TILE if (H // 2 + 1) * _across(W) == _TILE else _TILE + _across(W)


def _planes(channels: int, places: int) -> int:
    """Bytes of the planes of a tile."""
    return 4 * places * channels * 2
