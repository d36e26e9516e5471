"""Sums of bounded gradients of single samples, layer by layer, for stacks of weighted layers.

Clipping needs the norm of every sample's gradient and then one weighted sum of them; neither needs
the gradients themselves (Lee and Kifer 2021; Bu et al. 2022). With a layer's inputs a_n and the
loss's gradients dz_n with respect to its outputs, sample n's gradient of a dense layer is dz_n a_nᵀ
of norm ||a_n|| ||dz_n||, and the weighted sum is one product Σ_n c_n dz_n a_nᵀ. One pass forward
and one backward give all a_n and dz_n. Convolutions, and dense layers over sequences, sum over
positions. Their gradients are computed and held for some samples at a time: the formula with Gram
matrices subtracts large numbers in float32, and a record made for that could pass the bound. The
passes take whole batches, so that between the layers stand only modules that can mix no samples.
"""

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import conv2d, pad

from sottovoce.mechanisms import Bound
from sottovoce.problems.gradients.apart import treats_apart, unaltered
from sottovoce.problems.gradients.layout import Loss, ParameterLayout, steps_of
from sottovoce.problems.sampling import weights_of


class _Layer(NamedTuple):
    """A module of the stack; `weight` and `bias` name the parameters of a weighted one."""

    module: nn.Module
    weight: str = ""
    bias: str = ""


class _Passed(NamedTuple):
    """What went through a weighted layer: inputs and outputs (replicas, samples, ...)."""

    layer: _Layer
    inputs: Tensor
    outputs: Tensor


class LayerwiseStack:
    """A row of Conv2d and Linear layers; between them modules that treat samples apart."""

    def __init__(self, layers: list[_Layer], layout: ParameterLayout, loss: Loss) -> None:
        self._layers, self._layout = layers, layout
        self._sizes = dict(zip(layout.names, layout.sizes, strict=True))
        each = grad(lambda output, target: loss(output[None], target[None]))
        self._loss_gradient = vmap(each, randomness="different")

    @classmethod
    def of(cls, model: nn.Module, loss: Loss) -> "LayerwiseStack | None":
        """The stack that `model` is, or None if it is something else."""
        layers = list(_layers_of(model, ""))
        named = [name for one in layers for name in (one.weight, one.bias) if name]
        everything = dict(model.named_parameters(remove_duplicate=False))
        trained = all(parameter.requires_grad for parameter in everything.values())
        if not (trained and all(map(_is_plain, layers))):
            return None
        layout = ParameterLayout(model)
        # A layer that stands twice, or a weight that two layers share, has fewer names of its own.
        return cls(layers, layout, loss) if sorted(named) == sorted(layout.names) else None

    @torch.no_grad()
    def numbers_each(self, sample: Tensor) -> int | None:
        """About how many numbers one sample takes; None if the layers cannot be taken one by one.

        That is if one alters its inputs in place, or takes the samples for something else, as a
        convolution takes images without channels. sample: (1, ...), one input.
        """
        held, largest, x = 0, 0, sample
        for layer in self._layers:
            before, version = x, x._version
            x = layer.module(x)
            mistaken = isinstance(layer.module, nn.Conv2d) and before.ndim != 4
            if before._version != version or mistaken or len(x) != 1:
                return None
            held += 3 * x.numel()
            if layer.weight and not _is_single(layer.module, x.unsqueeze(0)):
                weight = self._sizes[layer.weight]
                outputs = x.shape[1 if isinstance(layer.module, nn.Conv2d) else -1]
                held += weight
                largest = max(largest, weight // outputs * x.numel() // outputs)
        return held + 2 * largest

    def sums(
        self,
        vectors: Tensor,
        inputs: Tensor,
        targets: Tensor,
        present: Tensor,
        bound: Bound | None,
        out: Tensor,
    ) -> None:
        """Write Σ_n c_n ∇loss(model(x_n), y_n) of each replica to `out`; c_n is 1 without a bound.

        vectors, out: (replicas, d); inputs, targets: (replicas, n, ...); present: (replicas, n).
        """
        parameters = {
            name: view.detach().requires_grad_(bound is None)
            for name, view in self._layout.views(vectors).items()
        }
        with torch.enable_grad():
            passed, outputs = self._forward(parameters, inputs)
        slope = self._loss_gradient(outputs.detach().flatten(0, 1), targets.flatten(0, 1))
        slope = slope.view_as(outputs)
        gradients = self._layout.views(out)
        if bound is None:
            weighted = slope * present.view(*present.shape, *[1] * (slope.ndim - 2))
            found = torch.autograd.grad(outputs, list(parameters.values()), weighted)
            for place, gradient in zip(gradients.values(), found, strict=True):
                place.copy_(gradient)
            return
        back = torch.autograd.grad(outputs, [one.outputs for one in passed], slope)
        with torch.no_grad():
            terms = [
                _term(one.layer, one.inputs.detach(), dz)
                for one, dz in zip(passed, back, strict=True)
            ]
            norms = torch.linalg.vector_norm(torch.stack([one.norms for one in terms]), dim=0)
            weights = weights_of(norms, present, bound)
            for term in terms:
                term.add_up(weights, gradients)

    def _forward(self, parameters: dict[str, Tensor], x: Tensor) -> tuple[list[_Passed], Tensor]:
        """What passed the weighted layers, and the stack's outputs (replicas, n, ...)."""
        passed, shape = list[_Passed](), x.shape[:2]
        for layer in self._layers:
            if not layer.weight:
                x = layer.module(x.flatten(0, 1)).unflatten(0, shape)
                continue
            bias = parameters[layer.bias] if layer.bias else None
            weight = parameters[layer.weight]
            if isinstance(layer.module, nn.Conv2d):
                z = _convolve(layer.module, x, weight, bias)
            else:
                z = _multiply(x, weight, bias)
            if not z.requires_grad:
                z.requires_grad_()
            passed.append(_Passed(layer, x, z))
            x = z
        return passed, x


class _Term(NamedTuple):
    """A layer's part of all samples' gradients: norms (replicas, n), and what gives their sum.

    left, right: of a sample's gradient, the outer product of both; where `right` is None, `left` is
    the gradient itself, (replicas, n, inputs of one output, outputs).
    """

    layer: _Layer
    norms: Tensor
    left: Tensor
    right: Tensor | None
    bias: Tensor

    def add_up(self, weights: Tensor, gradients: dict[str, Tensor]) -> None:
        """Write the weighted sums; weights: (replicas, n)."""
        to, row = gradients[self.layer.weight], weights.unsqueeze(1)
        if self.right is None:
            total = torch.bmm(row, self.left.flatten(2)).view(len(to), *self.left.shape[2:])
            to.copy_(_as_weight(self.layer.module, total))
        else:
            to.copy_(torch.bmm((self.left * weights.unsqueeze(-1)).mT, self.right))
        if self.layer.bias:
            gradients[self.layer.bias].copy_(torch.bmm(row, self.bias).squeeze(1))


def _term(layer: _Layer, x: Tensor, dz: Tensor) -> _Term:
    """x, dz: (replicas, n, ...). Norms and products are at least float32, whatever the layer is."""
    wide = torch.promote_types(dz.dtype, torch.float32)
    x, dz = x.to(wide), dz.to(wide)
    if _is_single(layer.module, dz):
        slope = torch.linalg.vector_norm(dz, dim=-1)
        length = torch.linalg.vector_norm(x, dim=-1)
        if layer.bias:
            length = torch.hypot(length, torch.ones_like(length))
        return _Term(layer, length * slope, dz, x, dz)
    samples, slopes = x.flatten(0, 1), dz.flatten(0, 1)
    if isinstance(layer.module, nn.Conv2d):
        samples = _patches(layer.module, samples)
        slopes = slopes.permute(0, 2, 3, 1)
    else:
        samples = samples.flatten(1, -2)
    slopes = slopes.flatten(1, -2)
    each = torch.bmm(samples.mT, slopes).unflatten(0, dz.shape[:2])
    bias = slopes.sum(1).unflatten(0, dz.shape[:2])
    norms = torch.linalg.vector_norm(each.flatten(2), dim=-1)
    if layer.bias:
        norms = torch.hypot(norms, torch.linalg.vector_norm(bias, dim=-1))
    return _Term(layer, norms, each, None, bias)


def _layers_of(module: nn.Module, prefix: str) -> Iterator[_Layer]:
    """The modules in the order in which they are applied."""
    if type(module) is nn.Sequential and unaltered(module):
        for name, child in steps_of(module):
            yield from _layers_of(child, f"{prefix}{name}.")
    elif type(module) in (nn.Conv2d, nn.Linear):
        biased = module.bias is not None
        yield _Layer(module, f"{prefix}weight", f"{prefix}bias" if biased else "")
    else:
        yield _Layer(module)


def _is_plain(layer: _Layer) -> bool:
    """Whether the formulas hold for the layer as it is set."""
    module = layer.module
    if not layer.weight:
        return treats_apart(module)
    if not isinstance(module, nn.Conv2d):
        return unaltered(module)
    zeros = module.groups == 1 and module.padding_mode == "zeros"
    return zeros and unaltered(module)


def _padding(layer: nn.Conv2d) -> tuple[int, int, int, int]:
    """Zeros left, right, above and below."""
    if layer.padding == "same":
        height, width = (
            d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)
        )
        return width // 2, width - width // 2, height // 2, height - height // 2
    if isinstance(layer.padding, str):
        return 0, 0, 0, 0
    height, width = layer.padding
    return width, width, height, height


def _is_single(module: nn.Module, outputs: Tensor) -> bool:
    """Whether a sample meets the layer's weights once; outputs: (replicas, n, ...)."""
    return isinstance(module, nn.Linear) and outputs.ndim == 3


def _patches(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """The inputs under the kernel at every position: (samples, positions, inputs of one output).

    Inputs go by rows, columns and channels: channels-last images are copied a row of a patch at a
    time, many times as fast as `torch.nn.functional.unfold`. x: (samples, channels, H, W).
    """
    image = pad(x.permute(0, 2, 3, 1), (0, 0, *_padding(layer)))
    each, *places, one = image.stride()
    sizes = zip(image.shape[1:3], layer.kernel_size, layer.dilation, layer.stride, strict=True)
    positions = [(size - d * (k - 1) - 1) // step + 1 for size, k, d, step in sizes]
    steps = [place * step for place, step in zip(places, layer.stride, strict=True)]
    taps = [place * d for place, d in zip(places, layer.dilation, strict=True)]
    shape = (len(image), *positions, *layer.kernel_size, image.shape[-1])
    patches: Tensor = image.as_strided(shape, (each, *steps, *taps, one)).flatten(3).flatten(1, 2)
    return patches


def _as_weight(module: nn.Module, gradient: Tensor) -> Tensor:
    """(replicas, inputs of one output, outputs) as the layer orders its weight."""
    if not isinstance(module, nn.Conv2d):
        return gradient.mT
    weight: Tensor = gradient.unflatten(1, (*module.kernel_size, -1)).permute(0, 4, 3, 1, 2)
    return weight


def _convolve(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Each replica's own convolution, all as groups of one; x: (replicas, n, channels, H, W)."""
    convolve = partial(conv2d, stride=layer.stride, padding=layer.padding, dilation=layer.dilation)
    if len(x) == 1:
        own = None if bias is None else bias[0]
        return convolve(_channels_last(x[0]), weight[0], own).unsqueeze(0)
    groups = x.transpose(0, 1).flatten(1, 2)
    flat = None if bias is None else bias.flatten()
    z = convolve(groups, weight.flatten(0, 1), flat, groups=len(x))
    apart: Tensor = z.unflatten(1, (len(x), -1)).transpose(0, 1)
    return apart


def _channels_last(images: Tensor) -> Tensor:
    """The same with channels last in memory, where torch pools several times as fast on a CPU.

    Images of one channel lie so in either order: only their strides tell torch which is meant.
    """
    if images.device.type != "cpu" or images.stride(1) == 1:
        return images
    return torch.empty_like(images, memory_format=torch.channels_last).copy_(images)


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Each replica's own dense layer; x: (replicas, n, ..., features)."""
    rows = x.reshape(len(x), prod(x.shape[1:-1]), x.shape[-1])
    z = torch.bmm(rows, weight.mT)
    if bias is not None:
        z = z + bias.unsqueeze(1)
    found: Tensor = z.unflatten(1, x.shape[1:-1])
    return found
