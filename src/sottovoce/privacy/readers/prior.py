"""A prior learnt from public records: what records of a class look like, and how they vary."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sottovoce.errors import AttackError

_ENOUGH = 60
"""Records of a class from which its own variation is learnt; with fewer that of all classes is."""


@dataclass(frozen=True, eq=False)
class GaussianPrior:
    """Records of class y as x = mean_y + Σ_i z_i direction_yi + rest, every z standard normal.

    A Gaussian for each class in the basis of its principal components (Tipping and Bishop 1999).
    labels: (classes,), ascending; means: (classes, n); directions: (classes, components, n), scaled
    by the deviations along them; rest: (classes, n), the deviation that they leave in each number.
    """

    labels: Tensor
    means: Tensor
    directions: Tensor
    rest: Tensor

    @classmethod
    def learn(cls, records: Tensor, labels: Tensor, components: int) -> "GaussianPrior":
        """From public records (n, *shape) and their labels; without classes all are one class."""
        if not records.is_floating_point() or len(records) < 2:
            raise AttackError(
                f"a prior is learnt from at least two records of real numbers; given: "
                f"{len(records)} of {records.dtype}"
            )
        flat = records.flatten(1)
        whole = labels.dim() == 1 and not labels.is_floating_point()
        known, member = (labels if whole else torch.zeros(len(flat))).unique(return_inverse=True)
        means = torch.stack([flat[member == one].mean(0) for one in range(len(known))])
        about = flat - means[member]
        count = min(components, about.shape[1])
        shared = _directions(about, count)
        directions = [
            _directions(own, count) if len(own) >= _ENOUGH else shared
            for own in (about[member == one] for one in range(len(known)))
        ]
        variances = torch.stack(
            [
                (own if len(own) >= _ENOUGH else about).square().mean(0)
                for own in (about[member == one] for one in range(len(known)))
            ]
        )
        stacked = torch.stack(directions)
        rest = (variances - stacked.square().sum(1)).clamp_min(0).sqrt()
        return cls(known, means, stacked, rest)

    def places(self, labels: Tensor) -> Tensor:
        """Where the classes of labels stand; the first class where there are none: like labels."""
        if len(self.labels) == 1:
            return torch.zeros(labels.shape[:2], dtype=torch.long)
        return torch.searchsorted(self.labels, labels)


def _directions(about: Tensor, count: int) -> Tensor:
    """The leading principal directions times their deviations: (count, n)."""
    # In float64: numbers that never vary, such as black borders, stop the float32 routine.
    covariance = (about.T @ about).double() / len(about)
    values, vectors = np.linalg.eigh(covariance.cpu().numpy())
    scaled = torch.from_numpy(vectors * values.clip(0) ** 0.5).to(about)
    return scaled.flip(1)[:, :count].T.contiguous()
