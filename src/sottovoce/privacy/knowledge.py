"""What is public beside the messages: the form of a record, the model, other records of the kind.

Knowledge makes an adversary able: no attack is given the truth, every attack may be given this.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sottovoce.errors import AttackError
from sottovoce.mechanisms import Bound
from sottovoce.problems.gradients.layout import Loss


@dataclass(frozen=True)
class Inputs:
    """What is public about a model's input: its shape, the range of its pixels, its scaling.

    The model is fed (pixel - mean) / std. `shape` is one input without its batch axis; mean and std
    are numbers, or tuples with one number for each channel (the first axis of `shape`).

    binary: whether every number of a record is `low` or `high`. groups: the sizes of groups of
    neighbouring features of which a binary record has at most one each, such as the categories of
    a column. vocabulary: for records that are numbers of tokens, how many tokens there are; 0 for
    all other records.
    """

    shape: tuple[int, ...]
    batch_size: int = 1
    low: float = 0.0
    high: float = 1.0
    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0
    binary: bool = False
    groups: tuple[int, ...] = ()
    vocabulary: int = 0

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) < 1 or self.batch_size < 1:
            raise AttackError(
                f"shape {self.shape} and batch size {self.batch_size} must be positive; the shape "
                "is one input without its batch axis"
            )
        if self.groups and (not self.binary or sum(self.groups) != math.prod(self.shape)):
            raise AttackError(
                f"groups of {sum(self.groups)} features for records of the shape {self.shape}; "
                "they must cover a binary record"
            )
        if not self.low < self.high:
            raise AttackError(f"pixels need low < high, got [{self.low}, {self.high}]")

    @property
    def size(self) -> int:
        """Numbers in one batch."""
        return self.batch_size * math.prod(self.shape)

    def standardise(self, pixels: Tensor) -> Tensor:
        """Turn pixels (..., *shape) into what the model is fed."""
        return (pixels - self._channels(self.mean, pixels)) / self._channels(self.std, pixels)

    def pixels(self, fed: Tensor) -> Tensor:
        """Turn what the model is fed, (..., *shape), into pixels."""
        return fed * self._channels(self.std, fed) + self._channels(self.mean, fed)

    def in_box(self, angles: Tensor) -> Tensor:
        """Turn any numbers (..., *shape) into pixels from low to high."""
        return self.low + (self.high - self.low) * (1 + angles.sin()) / 2

    def _channels(self, value: float | tuple[float, ...], like: Tensor) -> Tensor:
        numbers = torch.as_tensor(value, dtype=like.dtype, device=like.device)
        return numbers.reshape(-1, *[1] * (len(self.shape) - 1)) if numbers.dim() else numbers


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What an able adversary knows beside the messages.

    model: the module that is trained; its weights are not read. loss: `loss(outputs, targets)`, the
    mean over a batch. inputs: form and range of a record, and how many are in a batch. records:
    (n, *shape), as the model is fed them, and labels: (n,), other records of the same kind; none
    of them is a target's. bound: the part of the mechanism that bounds what one record contributes,
    None where it has none.
    """

    model: nn.Module
    loss: Loss
    inputs: Inputs
    records: Tensor
    labels: Tensor
    bound: Bound | None = None

    def __post_init__(self) -> None:
        if len(self.records) != len(self.labels):
            raise AttackError(
                f"{len(self.records)} public records have {len(self.labels)} labels; accepted: one "
                "label for each record"
            )


@dataclass(frozen=True, eq=False)
class Candidates:
    """Records among which the true ones are looked for: inputs (n, *shape), labels (n,)."""

    inputs: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if not len(self.inputs) or len(self.inputs) != len(self.labels):
            raise AttackError(
                f"{len(self.inputs)} candidates have {len(self.labels)} labels; accepted: at least "
                "one candidate, with one label each"
            )

    def __len__(self) -> int:
        return len(self.inputs)
