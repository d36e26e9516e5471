"""What a convolutional layer is, and how plain torch computes it: the definition of all kernels.

Images are channels-last, (replicas, images, H, W, channels). A max pool's `index` says which of the
four entries of a window was the largest (0 to 3, by rows).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv2d

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "": lambda z: z,
}


@dataclass(frozen=True)
class After:
    """What follows a convolution: an activation by name, a 2x2 max pool or none.

    flat: whether the outputs are stored channels first, as a dense layer behind them reads them.
    """

    activation: str
    pool: bool = False
    flat: bool = False


class Gradient(NamedTuple):
    """The loss's gradient with respect to a convolution's sums, channels last.

    values: (replicas, images, H, W, channels); or behind a max pool, (.., H / 2, W / 2, ..): those
    of each window's largest entry, all others are 0. largest: the pool's index, then.
    """

    values: Tensor
    largest: Tensor | None = None

    def everywhere(self) -> Tensor:
        """The gradient with respect to every sum, (replicas, images, H, W, channels)."""
        return self.values if self.largest is None else spread_over(self.values, self.largest)


def slope(outputs: Tensor, activation: str) -> Tensor:
    """The activation's derivative, from its outputs."""
    if activation == "sigmoid":
        return outputs * (1 - outputs)
    if activation == "relu":
        return (outputs > 0).to(outputs.dtype)
    if activation == "tanh":
        return 1 - outputs * outputs
    return torch.ones_like(outputs)


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    """All replicas as groups of one convolution; weight: (replicas, 3, 3, from, to)."""
    replicas, outputs = len(x), weight.shape[-1]
    groups = x.permute(1, 0, 4, 2, 3).flatten(1, 2)
    kernel = weight.permute(0, 4, 3, 1, 2).flatten(0, 1)
    z = conv2d(groups, kernel, padding=1, groups=replicas)
    apart: Tensor = z.unflatten(1, (replicas, outputs)).permute(1, 0, 3, 4, 2)
    return apart


def finished(z: Tensor, after: After, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Pool and activate sums, in the type and order asked for; return the pool's index, too."""
    index = None
    if after.pool:
        windows = z.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).movedim(3, 4).flatten(4, 5)
        z, index = windows.max(4)
        index = index.to(torch.uint8)
    a = ACTIVATIONS[after.activation](z).to(dtype)
    if after.flat:
        a = a.permute(0, 1, 4, 2, 3)
        index = index if index is None else index.permute(0, 1, 4, 2, 3).contiguous()
    return a.contiguous(), index


def spread_over(gradient: Tensor, index: Tensor) -> Tensor:
    """Each entry to the place of its window that the max pool took."""
    places = torch.arange(4, device=index.device).view(2, 2)
    chosen = index[..., None, None] == places
    spread = gradient[..., None, None] * chosen
    return spread.permute(0, 1, 2, 5, 3, 6, 4).flatten(4, 5).flatten(2, 3).contiguous()
