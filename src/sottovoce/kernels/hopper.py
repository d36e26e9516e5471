"""Convolutions in bfloat16 by CUDA C++ kernels, where the GPU is of their generation.

They compute what `sottovoce.kernels.convolution` computes, from the same arguments. Behind a max
pool they take gradients of the largest entries alone, with the pool's index: nothing is spread.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from sottovoce.kernels import compiled
from sottovoce.kernels.layers import After, Gradient

_ACTIVATIONS = {"": "IDENTITY", "sigmoid": "SIGMOID", "relu": "RELU", "tanh": "TANH"}
_CHANNELS = {(32, 32), (32, 64), (64, 64)}
_MOST_SHARED = 227 * 1024
_TILE = 64
"""Windows that are computed at once."""
_WIDEST = 512
"""Channels times places across: 128 threads copy at least a row of pixels at once."""
_MOST_FIRST = 3
"""Channels of a first layer whose gradients are taken in the same kernel."""
_HELD = 3
"""Operands in registers at once."""
_MOST_BUFFERS = 3
_MOST_STAGES, _GATES = 5, 128
_REGISTERS = {2: (56, 224), 3: (56, 152)}
"""Of threads that copy and that multiply, by the groups that multiply: all that there are."""


class _Geometry(NamedTuple):
    """Channels into and out of a convolution, the sides of its images, and its GPU."""

    inputs: int
    outputs: int
    H: int
    W: int
    device: int

    @classmethod
    def of(cls, images: Tensor, inputs: int, outputs: int) -> "_Geometry":
        H, W = images.shape[2:4]
        return cls(inputs, outputs, H, W, images.device.index or 0)

    @property
    def reached(self) -> int:
        """Places of a plane that a tile's taps reach."""
        across = _across(self.W)
        return _TILE if (self.H // 2 + 1) * across == _TILE else _TILE + across

    def constants(self) -> dict[str, int | str]:
        return {"IN": self.inputs, "OUT": self.outputs, "H": self.H, "W": self.W, "HELD": _HELD}


def serves(x: Tensor, outputs: int) -> bool:
    """Whether these kernels convolve x (replicas, images, H, W, inputs) to `outputs` channels.

    From 64 to 32, gradients of weights would not fit into registers.
    """
    if x.dtype != torch.bfloat16 or (x.shape[-1], outputs) not in _CHANNELS:
        return False
    H, W = x.shape[2:4]
    fits = _across(W) * max(x.shape[-1], outputs) <= _WIDEST and _TILE % _across(W) == 0
    return H % 2 == W % 2 == 0 and fits and compiled.available(x.device)


def serves_first(lower: Tensor, outputs: int, channels: int) -> bool:
    """Whether they take the gradient of `lower`'s convolution on to a layer of few channels."""
    return serves(lower, outputs) and lower.shape[-1] == 32 and channels <= _MOST_FIRST


def convolve(x: Tensor, weight: Tensor, bias: Tensor, after: After) -> tuple[Tensor, Tensor | None]:
    replicas, images, H, W, inputs = x.shape
    outputs = weight.shape[1]
    mode = "STORE" if not after.pool else "FLAT" if after.flat else "POOL"
    side = (H // 2, W // 2) if after.pool else (H, W)
    out = x.new_empty(replicas, images, *((outputs, *side) if after.flat else (*side, outputs)))
    index = torch.empty_like(out, dtype=torch.uint8) if after.pool else None
    weight, bias = _as_float32(weight), _as_float32(bias)
    run, threads = _convolution(_Geometry.of(x, inputs, outputs), mode, after.activation)
    run(
        replicas, threads, x, None, weight, weight.stride(0), bias, bias.stride(0), None, index,
        out, None, None, None, None, 0, images,
    )  # fmt: skip
    return out, index


def input_gradient(
    dz: Gradient, weight: Tensor, lower: Tensor, index: Tensor | None, after: After, total: bool
) -> tuple[Tensor, Tensor | None]:
    replicas, images, H, W, outputs = lower.shape
    wide = 1 if index is None else 2
    out = lower.new_empty(replicas, images, wide * H, wide * W, outputs)
    added = lower.new_empty(replicas, outputs, dtype=torch.float32) if total else None
    geometry = _Geometry.of(lower, dz.values.shape[-1], outputs)
    mode, weight = "SLOPE" if index is None else "SPREAD", _as_float32(weight)
    run, threads = _convolution(geometry, mode, after.activation, dz.largest is not None)
    run(
        replicas, threads, *dz, weight, weight.stride(0), None, 0, lower, index, out, added,
        None, None, None, 0, images,
    )  # fmt: skip
    return out, added


def first_gradients(
    dz: Gradient,
    weight: Tensor,
    lower: Tensor,
    after: After,
    x: Tensor,
    to: tuple[Tensor, Tensor],
) -> None:
    """The first layer's gradients, weights and bias, from dz of the second: x are its inputs."""
    replicas, images, channels = x.shape[:3]
    geometry = _Geometry.of(lower, dz.values.shape[-1], lower.shape[-1])
    pooled, weight = dz.largest is not None, _as_float32(weight)
    run, threads = _convolution(geometry, "SLOPE", after.activation, pooled, channels)
    run(
        replicas, threads, *dz, weight, weight.stride(0), None, 0, lower, None, None, None,
        x, *to, to[0].stride(0), images,
    )  # fmt: skip


def weight_gradient(x: Tensor, dz: Gradient, out: Tensor) -> None:
    replicas, images, inputs = *x.shape[:2], x.shape[-1]
    run = _weights(_Geometry.of(x, inputs, dz.values.shape[-1]), dz.largest is not None)
    run(replicas, 512, x, *dz, out, out.stride(0), images)


@cache
def _convolution(
    geometry: _Geometry, mode: str, activation: str, pooled: bool = False, first: int = 0
) -> tuple[compiled.Compiled, int]:
    """The kernel, and how many threads a block has."""
    inputs, outputs, H, W, device = geometry
    groups = 2 if outputs == 64 else 3
    own = 3 * outputs * (H // 2) * (W // 2) if mode == "FLAT" and geometry.reached == _TILE else 0
    own += 2 * (8 * first * geometry.reached + 2 * _TILE) if first else 0
    # Behind all lies what taps of windows that do not exist reach.
    fixed = -(-18 * inputs * outputs // 1024) * 1024 + 1024 + groups * own + 2048
    buffer = _planes(inputs, geometry.reached)
    buffers = min(_MOST_BUFFERS, (_MOST_SHARED - fixed) // buffer)
    few, many = _REGISTERS[groups]
    run = compiled.kernel(
        "convolve", fixed + buffers * buffer, device, **geometry.constants(), MODE=mode,
        ACT=_ACTIVATIONS[activation], GROUPS=groups, BUFFERS=buffers, POOLED=int(pooled),
        FIRST=first, FEW=few, MANY=many,
    )  # fmt: skip
    return run, 128 * (groups + 1)


@cache
def _weights(geometry: _Geometry, pooled: bool) -> compiled.Compiled:
    stage = _planes(geometry.inputs, geometry.reached) + _planes(geometry.outputs, _TILE)
    stages = min(_MOST_STAGES, (_MOST_SHARED - _GATES) // stage)
    few, many = _REGISTERS[3]
    return compiled.kernel(
        "weight_gradient", stages * stage + _GATES, geometry.device, **geometry.constants(),
        STAGES=stages, POOLED=int(pooled), FEW=few, MANY=many,
    )  # fmt: skip


def _as_float32(parameters: Tensor) -> Tensor:
    """Parameters in the type that the kernels read; rows may begin any stride apart."""
    return parameters.to(torch.float32)


def _across(W: int) -> int:
    return (W // 2 + 8) // 8 * 8


def _planes(channels: int, places: int) -> int:
    """Bytes of the planes of a tile."""
    return 4 * places * channels * 2
