"""Sums of bounded gradients of single samples, for many replicas of a module.

Stacks of convolutions, dense layers and modules known to treat samples apart are served layer by
layer, without a gradient for each sample: by `sottovoce.problems.gradients.layerwise`, or by the
kernels of a fused stack. For any other module every sample's gradient is computed on its own by
`vmap(grad)` over samples, and over replicas where they are small: whatever the module does, it sees
one sample, and the bound holds. Either way takes as many at a time as memory allows.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from sottovoce.errors import ProblemError
from sottovoce.mechanisms import Bound
from sottovoce.problems.gradients.layerwise import LayerwiseStack
from sottovoce.problems.gradients.layout import Loss, ParameterLayout
from sottovoce.problems.gradients.memory import free_memory, saved_numbers
from sottovoce.problems.gradients.precision import evaluated
from sottovoce.problems.gradients.products import full_products
from sottovoce.problems.sampling import weights_of

T = TypeVar("T")
_CPU_BYTES = 1 << 26
"""What samples take at a time on a CPU."""
_DEVICE_SHARE = 0.5
"""Likewise, of a device's free memory."""
_GRADIENTS_HELD, _ACTIVATIONS_HELD = 3, 3
"""Under `vmap`, times the numbers of a sample's gradient and of what its forward pass keeps."""
_FEWEST = 16
"""Samples at a time at least: fewer cost as much time."""
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Stack(Protocol):
    """A module whose clipped sums are computed without a gradient for each sample."""

    def numbers_each(self, sample: Tensor) -> int | None:
        """About how many numbers a sample takes; None where the stack cannot serve after all."""

    def sums(
        self,
        vectors: Tensor,
        inputs: Tensor,
        targets: Tensor,
        present: Tensor,
        bound: Bound | None,
        out: Tensor,
    ) -> None:
        """Write each replica's sum to `out`, as `ClippedGradients` does."""


class ClippedGradients:
    """Σ_n c_n ∇loss(model(x_n), y_n) over the samples of each replica, c_n by a bound.

    model: any module whose samples do not interact. loss: `loss(outputs, targets)` of a batch; it
    is called with one sample at a time. stack: what serves the module faster, found out if None.
    reduced: a type of activations with fewer bits, where there is no stack.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        device: torch.device,
        stack: Stack | None = None,
        reduced: torch.dtype | None = None,
    ) -> None:
        self._model, self._loss, self._device, self._reduced = model, loss, device, reduced
        self.layout = ParameterLayout(model)
        self._itemsize = next(one for one in model.parameters() if one.requires_grad).element_size()
        self._stack = stack or (None if reduced else LayerwiseStack.of(model, loss))
        self._numbers: dict[torch.Size, int] = {}
        self._divisor = 1  # Of the memory held: doubled whenever it was too much.
        # On a CPU convolutions of one replica at a time are faster than grouped ones.
        convolutional = any(isinstance(one, nn.modules.conv._ConvNd) for one in model.modules())
        self._one_by_one = device.type == "cpu" and convolutional

    def __call__(
        self,
        vectors: Tensor,
        inputs: Tensor,
        targets: Tensor,
        present: Tensor,
        bound: Bound | None,
        out: Tensor,
    ) -> None:
        """Write each replica's sum to `out`; without a bound c_n is 1.

        vectors, out: (replicas, d); inputs, targets: (replicas, n, ...); present: (replicas, n),
        which samples count.
        """
        if not present.shape[1]:
            out.zero_()
            return
        across, along = self._at_once(present.shape, inputs[0, :1])
        # Products of fewer bits would let samples through that are longer than the bound.
        products = nullcontext() if bound is None else full_products()
        try:
            with products:
                for top in range(0, len(present), across):
                    some = slice(top, top + across)
                    given = vectors[some], inputs[some], targets[some], present[some]
                    self._in_turn(*given, bound, out[some], along)
        except torch.OutOfMemoryError:
            # Libraries take work space that nobody can foresee.
            if across * along == 1:
                raise
            self._divisor *= 2
        else:
            return
        torch.cuda.empty_cache()
        self(vectors, inputs, targets, present, bound, out)

    def _in_turn(
        self,
        vectors: Tensor,
        inputs: Tensor,
        targets: Tensor,
        present: Tensor,
        bound: Bound | None,
        out: Tensor,
        along: int,
    ) -> None:
        """The same for replicas that are computed together, `along` samples at a time."""
        for left in range(0, present.shape[1], along):
            some = slice(left, left + along)
            to = torch.empty_like(out) if left else out
            self._sums(vectors, inputs[:, some], targets[:, some], present[:, some], bound, to)
            if left:
                out += to

    def replicas_at_once(self, present: torch.Size, one: Tensor) -> Iterator[slice]:
        """The replicas to compute together, in turn; present: (replicas, samples like `one`)."""
        size, _ = self._at_once(present, one)
        return (slice(first, first + size) for first in range(0, present[0], size))

    def _at_once(self, present: torch.Size, one: Tensor) -> tuple[int, int]:
        """How many replicas to compute together, and how many samples like `one` of each."""
        replicas, samples = present
        each = self._itemsize * self._numbers_each(one)
        apart = 2 * self._itemsize * self.layout.dimension
        held = _CPU_BYTES
        if self._device.type != "cpu":
            held = int(_DEVICE_SHARE * free_memory(self._device))
        held //= self._divisor
        fitting = max(1, _FEWEST // self._divisor, (held - apart) // each)
        across = 1 if self._one_by_one else max(1, held // (apart + each * samples))
        return min(replicas, across), min(fitting, samples)

    def _numbers_each(self, sample: Tensor) -> int:
        """Numbers that one sample takes, found out once for each shape of inputs: (1, ...)."""
        if sample.shape not in self._numbers:
            found = None
            if self._stack:
                found = _unseen(partial(self._stack.numbers_each, sample), sample.device)
            if found is None:
                self._stack = None
                kept = _unseen(partial(saved_numbers, self._model, sample), sample.device)
                found = _GRADIENTS_HELD * self.layout.dimension + _ACTIVATIONS_HELD * kept
            self._numbers[sample.shape] = found
        return self._numbers[sample.shape]

    def _sums(
        self,
        vectors: Tensor,
        x: Tensor,
        y: Tensor,
        present: Tensor,
        bound: Bound | None,
        out: Tensor,
    ) -> None:
        """Write the sums over some samples of some replicas to `out`, (replicas, d)."""
        if len(vectors) == 1:
            # What does not count costs nothing here.
            kept = present[0]
            x, y, present = x[:, kept], y[:, kept], present[:, kept]
            if not x.shape[1]:
                out.zero_()
                return
        if not self._stack:
            self._apart(vectors, x, y, present, bound, out)
            return
        self._stack.sums(vectors, x, y, present, bound, out)
        if bound is None or out.isfinite().all():
            return
        # Some sample's gradient is not finite: leave it out, looking at few samples at a time.
        out.zero_()
        for first in range(0, x.shape[1], _FEWEST):
            some = slice(first, first + _FEWEST)
            to = torch.empty_like(out)
            self._apart(vectors, x[:, some], y[:, some], present[:, some], bound, to)
            out += to

    def _apart(
        self,
        vectors: Tensor,
        x: Tensor,
        y: Tensor,
        present: Tensor,
        bound: Bound | None,
        out: Tensor,
    ) -> None:
        """The same by gradients of single samples; one that is not finite counts as nothing."""
        gradients = self._of_samples(vectors, x, y)
        norms = [torch.linalg.vector_norm(one, dim=-1) for one in gradients]
        norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        finite = norm.isfinite()
        if bound is not None and not finite.all():
            # A factor of 0 would leave NaN of what is infinite.
            gradients = [one.where(finite.unsqueeze(-1), 0.0) for one in gradients]
        row = weights_of(norm, present, bound).unsqueeze(1)
        torch.cat([torch.bmm(row, one).squeeze(1) for one in gradients], -1, out=out)

    def _of_samples(self, vectors: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        """The gradients of all samples, (replicas, samples, n) for each parameter of n numbers."""
        compute = vmap(grad(self._loss_of), (None, 0, 0), randomness="different")
        try:
            if len(vectors) == 1:
                found = compute(self.layout.views(vectors[0]), x[0], y[0])
                return [found[name].flatten(1).unsqueeze(0) for name in self.layout.names]
            found = vmap(compute, randomness="different")(self.layout.views(vectors), x, y)
            return [found[name].flatten(2) for name in self.layout.names]
        except RuntimeError as error:
            if "vmap" not in str(error) and "mutate" not in str(error):
                raise
            raise ProblemError(
                f"torch cannot compute the gradients of single samples of "
                f"{type(self._model).__name__}; the usual cause is a forward() that branches on "
                f"the values of its inputs, a loss that does, or a forward() that writes to a "
                f"buffer ({error})"
            ) from error

    def _loss_of(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """The loss of one sample."""
        output = evaluated(self._model, parameters, x.unsqueeze(0), self._reduced)
        return self._loss(output, y.unsqueeze(0))


@torch.no_grad()
@full_products()
def refuse_interacting_samples(model: nn.Module, inputs: Tensor) -> None:
    """Raise if other samples in the batch change what the module makes of a sample.

    inputs: some samples, (n, ...). The module sees one of them between different others, and
    beside different numbers of them. A module that passes may still mix others: it is told early
    what is wrong, and `ClippedGradients` keeps the bound in any case.
    """
    if not len(inputs):
        return
    sample, last = inputs[0], inputs[-1]
    seen = [(sample, [(sample, sample), (last, last)])]
    if inputs.is_floating_point():
        seen[0][1].append((3 * sample + 1, -last))
    elif inputs.dtype in _WHOLE:
        # Half of a number is an index wherever the number is one.
        half = sample // 2
        seen.append((half, [(half, half), (sample, last)]))
    # A module in training may draw at random; the same numbers leave a sample's result alike.
    found = [
        [_seeded(model, torch.stack([one, between, other]))[1] for one, other in beside]
        for between, beside in seen
    ]
    was_training = [one for one in model.modules() if one.training]
    model.eval()
    try:
        few, many = (
            _seeded(model, inputs[:1])[0],
            _seeded(model, inputs[:1].repeat_interleave(5, 0))[1],
        )
    finally:
        for one in was_training:
            one.training = True
    if all(_near(*alike) for alike in found) and _near(few, many):
        return
    raise ProblemError(
        f"the samples of a batch interact in {type(model).__name__}: what it makes of one changes "
        "with the others, so that no bound on a sample's own gradient limits what the sample "
        "changes; use layers that treat samples apart, such as GroupNorm or LayerNorm"
    )


def _near(one: Tensor, *others: Tensor) -> bool:
    """Whether results are alike but for rounding, by their largest number."""
    if not one.is_floating_point():
        return all(torch.equal(one, other) for other in others)
    size = one.detach()[one.isfinite()].abs().max().item() if one.isfinite().any() else 0.0
    near = 100 * torch.finfo(one.dtype).eps
    same = (torch.allclose(one, two, near, near * size, equal_nan=True) for two in others)
    return all(same)


def _seeded(model: nn.Module, inputs: Tensor) -> Tensor:
    def call() -> Tensor:
        torch.manual_seed(0)
        outputs: Tensor = model(inputs)
        return outputs

    return _unseen(call, inputs.device)


def _unseen(call: Callable[[], T], device: torch.device) -> T:
    """What `call` returns; torch's global generators keep their states."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        return call()
