"""Many copies of one torch module, each with parameters of its own, as rows of one tensor."""

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn

from sottovoce.errors import ProblemError

Loss = Callable[[Tensor, Tensor], Tensor]
"""`loss(outputs, targets)`, the mean over a batch."""


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


def steps_of(model: nn.Sequential) -> list[tuple[str, nn.Module]]:
    """The modules of a row with their names, as often as they are applied.

    `named_children` leaves out a module that stands there a second time.
    """
    return [(name, one) for name, one in model._modules.items() if one is not None]


def refuse_running_statistics(model: nn.Module) -> None:
    """Raise if layers keep statistics over samples; name each and what to use instead."""
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
