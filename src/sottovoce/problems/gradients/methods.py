"""Ways to the same gradient of many replicas: loop, vmap, compiled, and a fused stack.

Which is fastest depends on size and device: on a CPU convolutions of one replica at a time keep
the cache warm, while many small dense models gain from being computed together: a plain stack by
products written out (`sottovoce.problems.gradients.dense`), any other by `vmap`. On a GPU a plain
convolutional stack is computed by kernels that take all replicas at once
(`sottovoce.problems.gradients.convolution`); for any other module a short measurement chooses among
`vmap` and what `torch.compile` and CUDA graphs make of it.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from sottovoce.errors import ProblemError
from sottovoce.kernels import usable
from sottovoce.problems.gradients.choice import Choice, cache_folder, fastest, kept
from sottovoce.problems.gradients.compilation import ByName, Captured, InPlace, cause, compiled
from sottovoce.problems.gradients.convolution import FusedStack
from sottovoce.problems.gradients.dense import DenseStack
from sottovoce.problems.gradients.layout import Loss, ParameterLayout
from sottovoce.problems.gradients.memory import free_memory, peak_of
from sottovoce.problems.gradients.precision import evaluated
from sottovoce.storage.store import say_on_stderr

Method = Literal["auto", "loop", "vmap", "vmap+graph", "compiled", "compiled+graph", "fused"]
METHODS = get_args(Method)
Precision = Literal["float32", "bfloat16"]
PRECISIONS = get_args(Precision)


@dataclass(frozen=True)
class Compute:
    """How gradients of many replicas are computed.

    method: `auto` chooses by size and device; for a module without kernels on a GPU it measures
    `vmap` and `compiled` (by `torch.compile`), each also as a CUDA graph (`+graph`), once for each
    model, batch and kind of GPU. precision: of activations and of the weights that meet them;
    parameters, gradients and the loss keep the parameters' own type.
    """

    method: Method = "auto"
    precision: Precision = "float32"


_VMAP_LIMIT = 100_000
"""On a CPU, dense models below this many parameters are faster together."""

_AT_ONCE = 64
_SHARE = 0.2
"""Of a device's free memory, for the replicas computed together: graphs hold as much again."""
_FUSED_AT_ONCE = 1000
_GATHERED_BYTES = 2 << 20
"""Inputs of a dense stack that are gathered at a time on a CPU: they are read again twice, and the
system gives and clears memory for much larger ones anew every time."""
_MEASURED: tuple[Method, ...] = ("vmap", "vmap+graph", "compiled", "compiled+graph")
_TOLERANCE = {"float32": 1e-2, "bfloat16": 0.2}
"""How far compiled gradients may be from those of `vmap`, which adds up in another order."""


class ReplicaGradients:
    """Gradients of `loss(model(inputs), targets)` for rows of parameters.

    compute: with `float32` a fused stack's products are TF32 on a GPU. shape: of one input, which a
    fused stack must know. at_once: the most replicas that share one computation (all methods but
    `loop`), which bounds the activations held. choice: what a measurement found, if there was one.
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
        if method.endswith("+graph") and device.type != "cuda":
            raise ProblemError(f"gradients by {method!r} need a CUDA device; leave '+graph' out")
        self.model, self.loss, self._at_once = model, loss, at_once
        self._device, self._shape = device, shape
        self._itemsize = next(model.parameters()).element_size()
        self.layout = ParameterLayout(model)
        self.reduced = torch.bfloat16 if precision == "bfloat16" else None
        self._stack: FusedStack | DenseStack | None = FusedStack.of(
            model, loss, shape, self.reduced
        )
        if self._stack is None and not self.reduced and device.type == "cpu":
            self._stack = DenseStack.of(model, loss, shape)
        if self._stack is None and method == "fused":
            raise ProblemError(
                "fused gradients need an nn.Sequential of 3x3 'same' convolutions "
                "with 16, 32 or 64 channels over images of even sides, sigmoid, tanh or ReLU, 2x2 "
                "max pools, Flatten and dense layers (on a CPU dense layers alone will do in "
                "float32); use 'loop', 'vmap' or 'compiled'"
            )
        self.precision = precision
        self.method: str = self._best() if method == "auto" else method
        self.choice: Choice | None = None
        self.settled = device.type == "cpu" or self.method in ("fused", "loop")
        self._measures = method == "auto"
        self._ways = dict[str, InPlace]()

    @property
    def kernels(self) -> FusedStack | None:
        """The fused convolutional stack, where it computes the gradients."""
        fused = self.method == "fused" and isinstance(self._stack, FusedStack)
        return self._stack if fused else None  # type: ignore[return-value]

    def _best(self) -> str:
        """What size and device tell without measuring."""
        single = next(self.model.parameters()).dtype == torch.float32
        if isinstance(self._stack, FusedStack) and (
            self.reduced or (single and usable(self._device))
        ):
            return "fused"
        if self._device.type != "cpu":
            return "vmap"
        convolutional = any(isinstance(layer, nn.Conv2d) for layer in self.model.modules())
        if self.layout.dimension >= _VMAP_LIMIT or convolutional:
            return "loop"
        return "fused" if isinstance(self._stack, DenseStack) else "vmap"

    def settle(self, inputs: Tensor, targets: Tensor, replicas: int) -> None:
        """Find out on a GPU how many replicas fit, and which method is the fastest if that is open.

        inputs, targets: one replica's batch. The choice is printed, and kept in the user's cache.
        """
        if self.settled:
            return
        self.settled = True
        self.model.train()
        # What the module draws meanwhile must not shift what it draws later.
        with torch.random.fork_rng([self._device]):
            self._settle(inputs.unsqueeze(0), targets.unsqueeze(0), replicas)

    def _settle(self, inputs: Tensor, targets: Tensor, replicas: int) -> None:
        vectors = self.layout.vector(self.model).unsqueeze(0)
        given, out = (vectors, inputs, targets), torch.empty_like(vectors)
        bytes_each = peak_of(partial(self._way("vmap"), *given, out), self._device)
        fitting = int(_SHARE * free_memory(self._device) / max(bytes_each, 1))
        self._at_once = self._at_once or max(1, min(_AT_ONCE, fitting))
        if not self._measures:
            return
        count = min(replicas, self._at_once)
        rows = tuple(one.expand(count, *one.shape[1:]).contiguous() for one in given)
        spec = {
            "kind": "gradients",
            "model": [repr(self.model), self.layout.shapes, self.precision],
            "rows": [[str(one.dtype), *one.shape] for one in rows],
            "machine": [torch.cuda.get_device_name(self._device), torch.__version__],
        }
        self.choice = kept(cache_folder(), spec, partial(self._measured, rows))
        self.method = self.choice.method
        self._ways.clear()  # Graphs hold memory of their own.
        say_on_stderr(f"gradients of {type(self.model).__name__}: {self.choice}")

    def _measured(self, rows: tuple[Tensor, ...]) -> Choice:
        ways: dict[str, Callable[[Tensor], None]] = {
            name: partial(self._way(name), *rows) for name in _MEASURED
        }
        return fastest(ways, torch.empty_like(rows[0]), _TOLERANCE[self.precision])

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
        """The replicas to compute together, in turn, at `batch` samples each.

        What is made for fixed shapes gets parts of one size: the last overlaps the one before.
        """
        size = 1 if self.method == "loop" else self.at_once(batch)
        if isinstance(self._stack, DenseStack) and self._shape is not None:
            gathered = batch * math.prod(self._shape) * self._itemsize
            size = max(1, min(size, _GATHERED_BYTES // max(1, gathered)))
        fixed = self.method in _MEASURED and self.method != "vmap" and size < replicas
        for first in range(0, replicas, size):
            at = min(first, replicas - size) if fixed else first
            yield slice(at, at + size)

    def _compute(self, vectors: Tensor, inputs: Tensor, targets: Tensor, out: Tensor) -> None:
        if self.method == "fused":
            assert self._stack is not None
            self._stack.gradient(vectors, inputs, targets, out)
        elif self.method == "loop":
            self._write(self._of_one(vectors[0], inputs[0], targets[0]), out[0])
        else:
            self._by_way(vectors, inputs, targets, out)

    def _by_way(self, *given: Tensor) -> None:
        """Compute by the method; go on by `vmap` and say why where it cannot be made."""
        try:
            self._way(self.method)(*given)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            # Where the module itself fails, vmap fails likewise and says so.
            if self.method == "vmap":
                raise
            why = cause(error)
            say_on_stderr(f"gradients by vmap, since {self.method!r} cannot be used here: {why}")
            self.method = "vmap"
            self._way(self.method)(*given)

    def _way(self, name: str) -> InPlace:
        """One of the measured methods, made on first use."""
        if name not in self._ways:
            batched: ByName = vmap(grad(self._loss_at), randomness="different")
            if name.startswith("compiled"):
                batched = compiled(batched)

            def way(vectors: Tensor, inputs: Tensor, targets: Tensor, out: Tensor) -> None:
                self._write(batched(self.layout.views(vectors), inputs, targets), out)

            self._ways[name] = Captured(way) if name.endswith("+graph") else way
        return self._ways[name]

    def _write(self, gradients: dict[str, Tensor], out: Tensor) -> None:
        for name, place in self.layout.views(out).items():
            place.copy_(gradients[name])

    def _loss_at(self, parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(evaluated(self.model, parameters, inputs, self.reduced), targets)

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
                evaluated(self.model, self.layout.views(vector), x, self.reduced)
                for vector, x in zip(vectors, inputs, strict=True)
            ]
        )
