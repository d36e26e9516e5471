"""Many copies of one torch module, each with parameters of its own, as rows of one tensor."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from sottovoce.errors import ProblemError


class ParameterLayout:
    """Where each trainable parameter of a module lies in one flat vector.

    The order is that of `model.parameters()`, as in `torch.nn.utils.parameters_to_vector`.
    """

    def __init__(self, model: nn.Module) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise ProblemError("the model has no trainable parameter")
        self.names = [name for name, _ in named]
        self.shapes = [tuple(p.shape) for _, p in named]
        self.sizes = [prod(shape) for shape in self.shapes]
        self.dimension = sum(self.sizes)

    def views(self, vectors: Tensor) -> dict[str, Tensor]:
        """Views by parameter name: (..., d) -> (..., *shape) each, no copy."""
        pieces = vectors.split(self.sizes, dim=-1)
        return {
            name: piece.unflatten(-1, shape) if shape else piece.squeeze(-1)
            for name, piece, shape in zip(self.names, pieces, self.shapes, strict=True)
        }

    def vector(self, model: nn.Module) -> Tensor:
        """The module's own parameters as one vector (d,)."""
        parameters = dict(model.named_parameters())
        return torch.cat([parameters[name].detach().flatten() for name in self.names])


def refuse_running_statistics(model: nn.Module) -> None:
    """Refuse layers whose state mixes samples or rounds, naming each and what to use instead."""
    faults = [
        f"{name or 'the model itself'} ({type(layer).__name__})"
        for name, layer in model.named_modules()
        if getattr(layer, "track_running_stats", False)
        or isinstance(layer, nn.modules.batchnorm._BatchNorm)
    ]
    if faults:
        raise ProblemError(
            f"layers with statistics over samples cannot be trained so: {', '.join(faults)}; "
            "use GroupNorm or LayerNorm in their place"
        )


def layer_sequence(model: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """The layers of a plain stack that `batched_outputs` can run for all replicas, else None."""
    if not isinstance(model, nn.Sequential):
        return None
    layers = list(model.named_children())
    return layers if all(_is_supported(layer) for _, layer in layers) else None


_ELEMENTWISE = (nn.Sigmoid, nn.ReLU, nn.Tanh, nn.Identity)
_POOLS = (nn.MaxPool2d, nn.AvgPool2d)


def _is_supported(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    return isinstance(layer, (*_ELEMENTWISE, *_POOLS, nn.Linear, nn.Flatten))


def batched_outputs(
    layers: Sequence[tuple[str, nn.Module]], parameters: dict[str, Tensor], inputs: Tensor
) -> Tensor:
    """Run a plain stack for all replicas at once: (replicas, batch, ...) -> (replicas, batch, ...).

    A convolution is one batched matrix product over patches, with images in channels-last order, so
    that every replica's weights meet every replica's images without a loop.
    """
    replicas = len(inputs)
    x = inputs.flatten(0, 1)
    for name, layer in layers:
        weight, bias = parameters.get(f"{name}.weight"), parameters.get(f"{name}.bias")
        if isinstance(layer, nn.Conv2d):
            assert weight is not None
            x = _batched_convolution(x, weight, bias, layer)
        elif isinstance(layer, nn.Linear):
            assert weight is not None
            rows = x.unflatten(0, (replicas, -1))
            product = torch.matmul(rows, weight.mT)
            x = (product if bias is None else product + bias.unsqueeze(1)).flatten(0, 1)
        else:
            x = layer(x)
    outputs: Tensor = x.unflatten(0, (replicas, -1))
    return outputs


def _batched_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, layer: nn.Conv2d
) -> Tensor:
    replicas, out_channels = weight.shape[:2]
    (height, width), (down, right) = layer.kernel_size, layer.stride
    if layer.padding == "same":
        pad_y, pad_x = height - 1, width - 1
        pads = (pad_x // 2, pad_x - pad_x // 2, pad_y // 2, pad_y - pad_y // 2)
    elif layer.padding == "valid":
        pads = (0, 0, 0, 0)
    else:
        assert not isinstance(layer.padding, str)
        pad_y, pad_x = layer.padding
        pads = (pad_x, pad_x, pad_y, pad_y)
    patches = nn.functional.pad(x, pads).unfold(2, height, down).unfold(3, width, right)
    rows, columns = patches.shape[2:4]
    flat = patches.permute(0, 2, 3, 1, 4, 5).reshape(replicas, -1, weight[0, 0].numel())
    product = torch.bmm(flat, weight.flatten(2).mT)
    if bias is not None:
        product = product + bias.unsqueeze(1)
    return product.view(-1, rows, columns, out_channels).permute(0, 3, 1, 2)
