"""Gradients of a plain convolutional stack for many replicas at once, layer by layer.

Forward and backward are written out over `sottovoce.kernels.convolution`: no patches, no graph of
operations, and every gradient goes straight to its place in the flat rows. With `bfloat16`,
activations and the weights that meet them have 8 bits of mantissa; parameters, gradients, sums
and the last layer stay in the parameters' own type. Bounded gradients of single samples need one
such pass, too (`sottovoce.problems.gradients.sinks`).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from sottovoce.errors import ProblemError
from sottovoce.kernels import convolution
from sottovoce.kernels.layers import ACTIVATIONS, After, Gradient, slope
from sottovoce.mechanisms import Bound
from sottovoce.problems.gradients.layout import Loss, ParameterLayout, steps_of
from sottovoce.problems.gradients.sinks import BatchSums, SampleSums, Second, Sink

_NAMES = {nn.Sigmoid: "sigmoid", nn.ReLU: "relu", nn.Tanh: "tanh"}
_MOST_NUMBERS = 2**31 - 1
"""Of one replica in a layer: the kernels count them with 32 bits."""

_Held = list[tuple[Tensor, Tensor | None]]
"""A layer's outputs and its pool's index, of every layer."""


@dataclass(frozen=True)
class _Layer:
    """A convolution or dense layer by its parameters' names, and what follows it."""

    name: str
    after: After
    module: nn.Conv2d | nn.Linear


class FusedStack:
    """Convolutions 3x3 "same", activations, max pools; then dense layers and activations.

    dtype: of activations; None is the parameters' own.
    """

    def __init__(
        self,
        convolutions: list[_Layer],
        dense: list[_Layer],
        layout: ParameterLayout,
        loss: Loss,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._convolutions, self._dense, self._layout = convolutions, dense, layout
        self._loss_gradient = vmap(grad(loss))
        each = grad(lambda output, target: loss(output[None], target[None]))
        self._sample_gradients = vmap(vmap(each))
        self._dtype = dtype

    @classmethod
    def of(
        cls,
        model: nn.Module,
        loss: Loss,
        inputs: tuple[int, ...] | None,
        dtype: torch.dtype | None = None,
    ) -> "FusedStack | None":
        """The stack that `model` is for inputs of this shape, (channels, H, W), or None."""
        parsed = _parse(model)
        trained = all(parameter.requires_grad for parameter in model.parameters())
        if parsed and trained and inputs and len(inputs) == 3 and _fits(parsed[0], inputs):
            return cls(*parsed, ParameterLayout(model), loss, dtype)
        return None

    def bytes_each(self, batch: int, inputs: tuple[int, ...]) -> int:
        """About how many bytes one replica takes while its gradient is computed."""
        size = 4 if self._dtype is None else self._dtype.itemsize
        weights = 2 * sum(layer.module.weight.numel() for layer in self._dense)
        return int(1.1 * size * (batch * self._activations(inputs) + weights))

    def numbers_each(self, sample: Tensor) -> int:
        """About how many numbers one sample takes while bounded gradients are computed."""
        own = sum(layer.module.weight.numel() for layer in self._convolutions)
        return int(1.1 * (self._activations(tuple(sample.shape[1:])) + 2 * own))

    def _activations(self, inputs: tuple[int, ...]) -> int:
        """Numbers of one sample that the backward pass finds or makes."""
        channels, H, W = inputs
        numbers = channels * H * W
        for layer in self._convolutions:
            numbers += 2 * layer.module.weight.shape[0] * H * W
            if layer.after.pool:
                H, W = H // 2, W // 2
                numbers += layer.module.weight.shape[0] * H * W
        return numbers

    def outputs(self, vectors: Tensor, inputs: Tensor) -> Tensor:
        """Outputs of every replica: vectors (replicas, d), inputs (replicas, batch, c, H, W)."""
        return self._passed(vectors, inputs)[-1][-1][0]

    def gradient(self, vectors: Tensor, inputs: Tensor, targets: Tensor, out: Tensor) -> None:
        """Write the gradient of every replica's loss to `out`, (replicas, d)."""
        parameters, dense, held = self._passed(vectors, inputs)
        dz = self._loss_gradient(held.pop()[0], targets)
        self._backward(parameters, dense, held, dz, BatchSums(self._layout.views(out)))

    def sums(
        self,
        vectors: Tensor,
        inputs: Tensor,
        targets: Tensor,
        present: Tensor,
        bound: Bound | None,
        out: Tensor,
    ) -> None:
        """Write Σ_n c_n ∇loss(model(x_n), y_n) of every replica to `out`, as `ClippedGradients`.

        Where products are rounded to fewer bits, c_n is smaller by what the rounding can add.
        """
        parameters, dense, held = self._passed(vectors, inputs)
        dz = self._sample_gradients(held.pop()[0], targets)
        if bound is None:
            dz = dz * present.unsqueeze(-1)
            self._backward(parameters, dense, held, dz, BatchSums(self._layout.views(out)))
            return
        sink = SampleSums(self._layout.views(out))
        self._backward(parameters, dense, held, dz, sink)
        sink.add_up(present, bound)

    def _passed(
        self, vectors: Tensor, inputs: Tensor
    ) -> tuple[dict[str, Tensor], list[Tensor], _Held]:
        """Parameters by name, the dense layers' weights, and what the forward pass holds."""
        parameters = self._layout.views(vectors)
        dense = self._dense_weights(parameters)
        return parameters, dense, self._forward(parameters, dense, inputs)

    def _backward(
        self,
        parameters: dict[str, Tensor],
        dense: list[Tensor],
        held: _Held,
        dz: Tensor,
        sink: Sink,
    ) -> None:
        gradient = self._dense_backward(dense, held, dz, sink)
        self._convolution_backward(parameters, held, gradient, sink)

    def _dense_weights(self, parameters: dict[str, Tensor]) -> list[Tensor]:
        """The dense layers' weights in the type of what they meet; the last keeps its own."""
        weights = [parameters[f"{layer.name}.weight"] for layer in self._dense]
        dtype = self._dtype or weights[0].dtype
        return [*(convolution.convert(weight, dtype) for weight in weights[:-1]), weights[-1]]

    def _forward(self, parameters: dict[str, Tensor], dense: list[Tensor], inputs: Tensor) -> _Held:
        """The input, each layer's outputs and its pool's index; the last are the scores."""
        widest = max(layer.module.weight.shape[0] for layer in self._convolutions)
        if inputs.shape[1] * widest * inputs.shape[-2] * inputs.shape[-1] > _MOST_NUMBERS:
            raise ProblemError(
                f"{inputs.shape[1]} samples of {tuple(inputs.shape[2:])} are too many for the "
                "kernels; use smaller batches, or gradients by 'vmap'"
            )
        x = inputs.to(self._dtype or inputs.dtype).contiguous()
        held: _Held = [(x, None)]
        for number, layer in enumerate(self._convolutions):
            weight, bias = parameters[f"{layer.name}.weight"], parameters[f"{layer.name}.bias"]
            if number == 0:
                held.append(convolution.convolve_first(x, weight, bias, layer.after))
            else:
                held.append(convolution.convolve(x, weight, bias, layer.after))
            x = held[-1][0]
        x = x.flatten(2)
        for layer, weight in zip(self._dense, dense, strict=True):
            bias = parameters[f"{layer.name}.bias"].to(weight.dtype)
            z = torch.baddbmm(bias.unsqueeze(1), x.to(weight.dtype), weight.mT)
            x = ACTIVATIONS[layer.after.activation](z)
            held.append((x, None))
        return held

    def _dense_backward(self, dense: list[Tensor], held: _Held, dz: Tensor, sink: Sink) -> Tensor:
        """From the scores' gradient to that of the last convolution's outputs, (.., c, H, W)."""
        for number in reversed(range(len(dense))):
            layer, weight = self._dense[number], dense[number]
            below = held.pop()[0] if number else held[-1][0]
            x, dz = below.flatten(2), dz.to(weight.dtype)
            sink.dense(layer.name, x.to(dz.dtype), dz)
            dz = torch.bmm(dz, weight)
            if number:
                dz = dz * slope(x, self._dense[number - 1].after.activation)
        return dz.view(dz.shape[:2] + held[-1][0].shape[2:])

    def _convolution_backward(
        self, parameters: dict[str, Tensor], held: _Held, gradient: Tensor, sink: Sink
    ) -> None:
        outputs, index = held.pop()
        total: Tensor | None
        dz, total = convolution.unflatten(
            gradient.to(outputs.dtype),
            outputs,
            index,
            self._convolutions[-1].after,
            self._stays_pooled(len(self._convolutions) - 1, held, sink),
        )
        for number in reversed(range(1, len(self._convolutions))):
            name, after = self._convolutions[number].name, self._convolutions[number - 1].after
            weight = parameters[f"{name}.weight"]
            x, index = held.pop()
            sink.convolution(name, x, dz, total)
            if number == 1 and index is None:
                first = Second(dz, weight, x, after)
                sink.through_second(self._convolutions[0].name, held.pop()[0], first)
                return
            pooled = index is not None and self._stays_pooled(number - 1, held, sink)
            wanted = number > 1 and sink.of_batches
            below, total = convolution.input_gradient(
                dz, weight, x, None if pooled else index, after, wanted
            )
            dz = Gradient(below, index if pooled else None)
        sink.first(self._convolutions[0].name, held.pop()[0], dz.everywhere())

    def _stays_pooled(self, number: int, held: _Held, sink: Sink) -> bool:
        """Whether gradients of a layer's sums are left behind its pool: held[-1] are its inputs."""
        outputs = self._convolutions[number].module.weight.shape[0]
        return bool(number and sink.of_batches and convolution.takes_pooled(held[-1][0], outputs))


def _parse(model: nn.Module) -> tuple[list[_Layer], list[_Layer]] | None:
    """The convolutions and dense layers of a plain stack, or None if it is something else."""
    if not isinstance(model, nn.Sequential):
        return None
    convolutions, dense, flat = list[_Layer](), list[_Layer](), False
    for name, module in steps_of(model):
        layers = dense if flat else convolutions
        previous = layers[-1].after if layers else None
        if (isinstance(module, nn.Conv2d) and not flat and _is_same(module)) or (
            isinstance(module, nn.Linear) and flat and module.bias is not None
        ):
            layers.append(_Layer(name, After(""), module))
        elif type(module) in _NAMES and previous and not (previous.activation or previous.pool):
            layers[-1] = replace(layers[-1], after=After(_NAMES[type(module)]))
        elif _halves(module) and previous and not flat and not previous.pool:
            layers[-1] = replace(layers[-1], after=replace(previous, pool=True))
        elif isinstance(module, nn.Flatten) and not flat and module.start_dim == 1:
            flat = True
        else:
            return None
    if not convolutions or not dense or dense[-1].after.activation:
        return None
    last = convolutions[-1]
    convolutions[-1] = replace(last, after=replace(last.after, flat=True))
    return convolutions, dense


def _fits(convolutions: list[_Layer], inputs: tuple[int, ...]) -> bool:
    """Whether the kernels take these channels and these even heights and widths."""
    channels, H, W = inputs
    for number, layer in enumerate(convolutions):
        outputs, expected = layer.module.weight.shape[:2]
        power_of_2 = outputs.bit_count() == 1 and 16 <= outputs <= convolution.MOST_CHANNELS
        if channels != expected or H % 2 or W % 2 or not power_of_2:
            return False
        if number == 0 and 9 * channels > convolution.MOST_FIRST_TAPS:
            return False
        channels = outputs
        if layer.after.pool:
            H, W = H // 2, W // 2
    return True


def _is_same(layer: nn.Conv2d) -> bool:
    return (
        layer.kernel_size == (3, 3)
        and layer.padding in ("same", (1, 1))
        and layer.stride == layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and layer.bias is not None
    )


def _halves(module: nn.Module) -> bool:
    return (
        isinstance(module, nn.MaxPool2d)
        and module.kernel_size in (2, (2, 2))
        and module.stride in (2, (2, 2))
        and module.padding in (0, (0, 0))
        and module.dilation in (1, (1, 1))
        and not module.ceil_mode
        and not module.return_indices
    )
