"""Gradients of a plain stack of dense layers for many replicas at once, written out for a CPU.

Activations are kept as (replicas, features, batch): in that order both products of a layer are
fast, where `vmap` and autograd choose slow ones.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from sottovoce.problems.gradients.layout import Loss, ParameterLayout, steps_of

_SLOPES: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.Identity: torch.ones_like,
    nn.Sigmoid: lambda y: y * (1 - y),
    nn.Tanh: lambda y: 1 - y * y,
    nn.ReLU: lambda y: (y > 0).to(y.dtype),
}
"""The derivative of each activation, from its value."""


class _Layer(NamedTuple):
    """A dense layer by its parameters' names, and the activation that follows it."""

    weight: str
    bias: str | None
    activation: nn.Module


class DenseStack:
    """Dense layers with sigmoid, tanh, ReLU or nothing after each."""

    def __init__(self, layers: list[_Layer], layout: ParameterLayout, loss: Loss) -> None:
        self._layers, self._layout = layers, layout
        known = loss is cross_entropy
        self._loss_gradient = _cross_entropy_gradient if known else _general_gradient(loss)

    @classmethod
    def of(
        cls, model: nn.Module, loss: Loss, inputs: tuple[int, ...] | None
    ) -> "DenseStack | None":
        """The stack that `model` is for inputs of this shape, or None if it is something else."""
        children = steps_of(model) if isinstance(model, nn.Sequential) else [("", model)]
        layout, layers = ParameterLayout(model), list[_Layer]()
        flat = inputs is not None and len(inputs) == 1
        for name, module in children:
            if isinstance(module, nn.Linear) and flat:
                prefix = f"{name}." if name else ""
                bias = None if module.bias is None else f"{prefix}bias"
                layers.append(_Layer(f"{prefix}weight", bias, nn.Identity()))
            elif type(module) in _SLOPES and layers and type(layers[-1].activation) is nn.Identity:
                layers[-1] = layers[-1]._replace(activation=module)
            elif isinstance(module, nn.Flatten) and not layers:
                flat = inputs is not None and (module.start_dim, module.end_dim) == (1, -1)
            else:
                return None
        trained = sum(1 if layer.bias is None else 2 for layer in layers)
        return cls(layers, layout, loss) if layers and trained == len(layout.names) else None

    def outputs(self, vectors: Tensor, inputs: Tensor) -> Tensor:
        """Outputs of every replica: vectors (replicas, d), inputs (replicas, batch, ...)."""
        return self._forward(self._layout.views(vectors), inputs.flatten(2).mT)[-1].mT

    def gradient(self, vectors: Tensor, inputs: Tensor, targets: Tensor, out: Tensor) -> None:
        """Write the gradient of every replica's loss to `out`, (replicas, d)."""
        parameters, gradients = self._layout.views(vectors), self._layout.views(out)
        values = self._forward(parameters, inputs.flatten(2).mT)
        back = self._loss_gradient(values[-1], targets)
        for layer, below, above in reversed(
            list(zip(self._layers, values, values[1:], strict=False))
        ):
            if type(layer.activation) is not nn.Identity:
                back = back * _SLOPES[type(layer.activation)](above)
            gradients[layer.weight].copy_(torch.bmm(back, below.mT))
            if layer.bias is not None:
                torch.sum(back, -1, out=gradients[layer.bias])
            if layer is not self._layers[0]:
                back = torch.bmm(parameters[layer.weight].mT, back)

    def _forward(self, parameters: dict[str, Tensor], x: Tensor) -> list[Tensor]:
        """The inputs and the values of every layer: (replicas, features, batch) each."""
        values = [x]
        for layer in self._layers:
            z = torch.bmm(parameters[layer.weight], values[-1])
            if layer.bias is not None:
                z += parameters[layer.bias].unsqueeze(-1)
            values.append(layer.activation(z))
        return values


def _general_gradient(loss: Loss) -> Loss:
    """The gradient of any loss: (replicas, features, batch) and targets -> the same shape."""
    compute: Loss = vmap(grad(loss))
    return lambda values, targets: compute(values.mT, targets).mT


def _cross_entropy_gradient(values: Tensor, targets: Tensor) -> Tensor:
    """(softmax - one-hot) / batch: (replicas, classes, batch); targets: (replicas, batch).

    A negative target is left out, as torch does with -100; targets that are probabilities go the
    general way.
    """
    if targets.is_floating_point():
        return _general_gradient(cross_entropy)(values, targets)
    kept, classes = (targets >= 0).unsqueeze(1), targets.clamp(min=0).unsqueeze(1)
    ones = torch.full_like(values[:, :1], -1.0)
    gradient = torch.softmax(values, 1).scatter_add_(1, classes, ones)
    return gradient.mul_(kept).div_(kept.sum(-1, keepdim=True))
