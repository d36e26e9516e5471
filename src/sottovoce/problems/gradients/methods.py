"""Three ways to the same gradient of many replicas: loop, vmap, and a fused stack.

Which is fastest depends on size and device: on a CPU convolutions of one replica at a time keep
the cache warm, while many small dense models gain from being computed together: a plain stack by
products written out (`sottovoce.problems.gradients.dense`), any other by `vmap`. On a GPU a plain
convolutional stack is computed by kernels that take all replicas at once
(`sottovoce.problems.gradients.convolution`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sottovoce.errors import ProblemError
from sottovoce.kernels import usable
from sottovoce.problems.gradients.convolution import FusedStack
from sottovoce.problems.gradients.dense import DenseStack
from sottovoce.problems.gradients.layout import Loss, ParameterLayout
from sottovoce.problems.gradients.memory import free_memory

Method = Literal["auto", "loop", "vmap", "fused"]
METHODS = get_args(Method)
Precision = Literal["float32", "bfloat16"]
PRECISIONS = get_args(Precision)


@dataclass(frozen=True)
class Compute:
    """How gradients of many replicas are computed.

    method: `auto` chooses among `loop`, `vmap` and `fused` by size and device. precision: of
    activations; `bfloat16` needs `fused`.
    """

    method: Method = "auto"
    precision: Precision = "float32"


_VMAP_LIMIT = 100_000
"""On a CPU, dense models below this many parameters are faster together."""

_AT_ONCE = 64
_FUSED_AT_ONCE = 1000


class ReplicaGradients:
    """Gradients of `loss(model(inputs), targets)` for rows of parameters.

    compute: with `float32` a fused stack's products are TF32 on a GPU. shape: of one input, which a
    fused stack must know. at_once: the most replicas that share one computation under `vmap` and
    `fused`, which bounds the activations held.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        compute: Compute = Compute(),  # noqa: B008
        *,
        device: torch.device,
        shape: tuple[int, ...] | None = None,
        at_once: int | None = None,
    ) -> None:
        method, precision = compute.method, compute.precision
        if method not in METHODS:
            raise ProblemError(f"gradients by {method!r} are not known; accepted: {METHODS}")
        if precision not in PRECISIONS:
            raise ProblemError(f"precision {precision!r} is not known; accepted: {PRECISIONS}")
        self.model, self.loss, self._at_once = model, loss, at_once
        self._device, self._shape = device, shape
        self.layout = ParameterLayout(model)
        reduced = torch.bfloat16 if precision == "bfloat16" else None
        self._stack: FusedStack | DenseStack | None = FusedStack.of(model, loss, shape, reduced)
        if self._stack is None and not reduced and device.type == "cpu":
            self._stack = DenseStack.of(model, loss, shape)
        if self._stack is None and (method == "fused" or reduced):
            raise ProblemError(
                "fused gradients and bfloat16 need an nn.Sequential of 3x3 'same' convolutions "
                "with 16, 32 or 64 channels over images of even sides, sigmoid, tanh or ReLU, 2x2 "
                "max pools, Flatten and dense layers (on a CPU dense layers alone will do in "
                "float32); use 'loop' or 'vmap' and float32"
            )
        if reduced and method in ("loop", "vmap"):
            raise ProblemError(f"gradients by {method!r} are not computed in bfloat16; use 'fused'")
        self.precision = precision
        self.method = self._best() if method == "auto" else method

    @property
    def kernels(self) -> FusedStack | None:
        """The fused convolutional stack, where it computes the gradients."""
        fused = self.method == "fused" and isinstance(self._stack, FusedStack)
        return self._stack if fused else None  # type: ignore[return-value]

    def _best(self) -> str:
        if self.precision != "float32":
            return "fused"
        if self._device.type != "cpu":
            single = next(self.model.parameters()).dtype == torch.float32
            return "fused" if self._stack and single and usable(self._device) else "vmap"
        convolutional = any(isinstance(layer, nn.Conv2d) for layer in self.model.modules())
        if self.layout.dimension >= _VMAP_LIMIT or convolutional:
            return "loop"
        return "fused" if isinstance(self._stack, DenseStack) else "vmap"

    def at_once(self, batch: int) -> int:
        """How many replicas to compute together at `batch` samples each."""
        if self._at_once or self.method != "fused" or not isinstance(self._stack, FusedStack):
            return self._at_once or _AT_ONCE
        assert self._shape is not None
        fitting = 0.8 * free_memory(self._device) / self._stack.bytes_each(batch, self._shape)
        return max(1, min(int(fitting), _FUSED_AT_ONCE))

    def __call__(self, vectors: Tensor, inputs: Tensor, targets: Tensor, out: Tensor) -> None:
        """Write each replica's gradient to `out`.

        vectors, out: (replicas, d); inputs, targets: (replicas, batch, ...).
        """
        for part in self.parts(len(vectors), inputs.shape[1]):
            self._compute(vectors[part], inputs[part], targets[part], out[part])

    def parts(self, replicas: int, batch: int) -> Iterator[slice]:
        """The replicas to compute together, in turn, at `batch` samples each."""
        size = 1 if self.method == "loop" else self.at_once(batch)
        return (slice(first, first + size) for first in range(0, replicas, size))

    def _compute(self, vectors: Tensor, inputs: Tensor, targets: Tensor, out: Tensor) -> None:
        if self.method == "fused":
            assert self._stack is not None
            self._stack.gradient(vectors, inputs, targets, out)
            return
        if self.method == "vmap":
            compute = vmap(grad(self._loss_at), randomness="different")
            gradients = compute(self.layout.views(vectors), inputs, targets)
        else:
            gradients = self._of_one(vectors[0], inputs[0], targets[0])
            out = out[0]
        for name, place in self.layout.views(out).items():
            place.copy_(gradients[name])

    def _loss_at(self, parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(functional_call(self.model, parameters, (inputs,)), targets)

    def _of_one(self, vector: Tensor, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        leaves = {
            name: view.detach().requires_grad_() for name, view in self.layout.views(vector).items()
        }
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        loss = self._loss_at(leaves, inputs, targets)
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    @torch.no_grad()
    def outputs(self, vectors: Tensor, inputs: Tensor) -> Tensor:
        """Outputs of every replica on its own inputs: (replicas, batch, ...)."""
        if self.method == "fused":
            assert self._stack is not None
            return self._stack.outputs(vectors, inputs)
        return torch.stack(
            [
                functional_call(self.model, self.layout.views(vector), (x,))
                for vector, x in zip(vectors, inputs, strict=True)
            ]
        )
