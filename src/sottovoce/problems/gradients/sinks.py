"""Where a fused stack's backward pass leaves the gradients of its layers.

A sink gets each weighted layer's inputs x and the loss's gradient dz with respect to its sums. Of
dense layers they are (replicas, n, inputs) and (replicas, n, outputs), of convolutions (replicas,
n, H, W, channels); the first convolution's x has its channels first.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sottovoce.kernels import convolution, samples, usable
from sottovoce.kernels.layers import After, Gradient
from sottovoce.mechanisms import Bound
from sottovoce.problems.sampling import weights_of

_MOST_BLOCKS = 65_535
"""The most samples that one launch of a kernel takes."""


class Sink(Protocol):
    """What the backward pass calls at every layer, by the name of its parameters."""

    of_batches: bool
    """Whether it adds up whole batches: it then uses the sum of dz over samples and positions, and
    takes gradients that stay behind a max pool."""

    def dense(self, name: str, x: Tensor, dz: Tensor) -> None:
        """A dense layer."""

    def convolution(self, name: str, x: Tensor, dz: Gradient, total: Tensor | None) -> None:
        """A convolution after the first."""

    def first(self, name: str, x: Tensor, dz: Tensor) -> None:
        """The first convolution."""

    def through_second(self, name: str, x: Tensor, second: "Second") -> None:
        """The first convolution, without a pool, by what the second one passes on."""


@dataclass(frozen=True)
class Second:
    """A second convolution: its gradient, its weights and its inputs, the first one's outputs."""

    dz: Gradient
    weight: Tensor
    lower: Tensor
    after: After

    def below(self) -> Tensor:
        """The gradient with respect to the first convolution's sums."""
        found, _ = convolution.input_gradient(
            self.dz, self.weight, self.lower, None, self.after, False
        )
        return found


class BatchSums:
    """The gradients of whole batches, straight to their places in flat rows."""

    of_batches = True

    def __init__(self, gradients: dict[str, Tensor]) -> None:
        self._gradients = gradients

    def dense(self, name: str, x: Tensor, dz: Tensor) -> None:
        to = self._gradients[f"{name}.weight"]
        self._gradients[f"{name}.bias"].copy_(dz.sum(1, dtype=to.dtype))
        convolution.outer(dz, x, to)

    def convolution(self, name: str, x: Tensor, dz: Gradient, total: Tensor | None) -> None:
        convolution.weight_gradient(x, dz, self._gradients[f"{name}.weight"])
        if total is not None:
            self._gradients[f"{name}.bias"].copy_(total)

    def first(self, name: str, x: Tensor, dz: Tensor) -> None:
        convolution.first_weight_gradient(x, dz, *self._first(name))

    def through_second(self, name: str, x: Tensor, second: Second) -> None:
        convolution.first_gradients(
            second.dz, second.weight, second.lower, second.after, x, self._first(name)
        )

    def _first(self, name: str) -> tuple[Tensor, Tensor]:
        return self._gradients[f"{name}.weight"], self._gradients[f"{name}.bias"]


class SampleSums:
    """Bounded gradients of single samples, of which only the convolutions' own are held.

    The kernels take a sample for a replica with a batch of one. `add_up` weighs and adds when every
    layer has been seen.
    """

    of_batches = False

    def __init__(self, gradients: dict[str, Tensor]) -> None:
        self._gradients = gradients
        self._norms = list[Tensor]()
        self._dense = list[tuple[str, Tensor, Tensor]]()
        self._convolutions = list[tuple[str, Tensor]]()
        self._each = list[tuple[str, Tensor]]()

    def dense(self, name: str, x: Tensor, dz: Tensor) -> None:
        wide = self._gradients[f"{name}.weight"].dtype
        length = torch.linalg.vector_norm(x, dim=-1, dtype=wide)
        slope = torch.linalg.vector_norm(dz, dim=-1, dtype=wide)
        self._norms.append(torch.hypot(length, torch.ones_like(length)) * slope)
        self._dense.append((name, x, dz))

    def convolution(self, name: str, x: Tensor, dz: Gradient, total: Tensor | None) -> None:
        each, totals, squares = samples.weight_gradients(
            x.flatten(0, 1), dz.everywhere().flatten(0, 1), self._gradients[f"{name}.weight"].dtype
        )
        self._norms.append(squares.sqrt().view(x.shape[:2]))
        self._convolutions.append((name, each))
        self._each.append((f"{name}.bias", totals.unflatten(0, x.shape[:2])))

    def first(self, name: str, x: Tensor, dz: Tensor) -> None:
        like = self._gradients[f"{name}.weight"], self._gradients[f"{name}.bias"]
        weight, bias = (one.new_empty(dz.shape[:2].numel(), *one.shape[1:]) for one in like)
        for part in _launches(weight):
            to = weight[part], bias[part]
            convolution.first_weight_gradient(_apart(x)[part], _apart(dz)[part], *to)
        for kind, one in (("weight", weight), ("bias", bias)):
            each = one.flatten(1).unflatten(0, dz.shape[:2])
            self._norms.append(torch.linalg.vector_norm(each, dim=-1))
            self._each.append((f"{name}.{kind}", each))

    def through_second(self, name: str, x: Tensor, second: Second) -> None:
        self.first(name, x, second.below())

    def add_up(self, present: Tensor, bound: Bound) -> None:
        """Write the weighted sums of all layers; present: (replicas, n)."""
        norms = torch.linalg.vector_norm(torch.stack(self._norms), dim=0)
        weights = weights_of(norms, present, bound) * (1 - self._rounding())
        for name, x, dz in self._dense:
            left = (dz * weights.unsqueeze(-1)).to(dz.dtype)
            convolution.outer(left, x, self._gradients[f"{name}.weight"])
            self._gradients[f"{name}.bias"].copy_(left.sum(1, dtype=weights.dtype))
        for name, each in self._convolutions:
            samples.weighted_sum(each, weights, self._gradients[f"{name}.weight"])
        row = weights.unsqueeze(1)
        for name, each in self._each:
            to = self._gradients[name]
            to.copy_(torch.bmm(row, each).view_as(to))

    def _rounding(self) -> float:
        """By how much the products of dense layers can round a sample's part up, at most."""
        if any(dz.dtype == torch.bfloat16 for _, _, dz in self._dense):
            return 2**-8
        return 2**-10 if usable(self._norms[0].device) else 0.0


def _apart(images: Tensor) -> Tensor:
    """(replicas, n, ...) with a replica for each sample: (replicas * n, 1, ...)."""
    return images.flatten(0, 1).unsqueeze(1)


def _launches(each: Tensor) -> list[slice]:
    return [slice(at, at + _MOST_BLOCKS) for at in range(0, len(each), _MOST_BLOCKS)]
