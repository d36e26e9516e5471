"""Gradients of other records are no white noise: their mean and the directions they share.

In a batch, and in sums over agents, an estimate holds e = g + Σ_o a_o g_o + noise. To an adversary
who does not know them, the other gradients are Gaussian with the mean and the covariance C of
public records' gradients. The likelihood ratio of a candidate then has the metric

    (σ² + τ C)⁻¹ = (1 - Σ_i τ λ_i / (σ² + τ λ_i) v_i v_iᵀ) / σ²,    τ = Σ_o a_o²,

in which directions that many records share count for little.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sottovoce.privacy.knowledge import Knowledge
from sottovoce.privacy.sample_gradients import SampleGradients

_RECORDS = 400
"""Public records whose gradients are computed."""
_DIRECTIONS = 150
_TINY = 1e-300


@dataclass(frozen=True, eq=False)
class Interference:
    """mean: (d,); directions: (r, d), orthonormal; variances: (r,), of gradients along them."""

    mean: Tensor
    directions: Tensor
    variances: Tensor

    @classmethod
    def at(cls, state: Tensor, gradients: SampleGradients, knowledge: Knowledge) -> "Interference":
        """Learn it from public records at a state."""
        step = max(1, len(knowledge.records) // _RECORDS)
        some = slice(None, step * _RECORDS, step)
        parts = gradients.rows(state, knowledge.records[some], knowledge.labels[some])
        rows = torch.cat(list(parts))
        mean = rows.mean(0)
        rows = rows - mean
        # Both products have the same eigenvalues; the smaller one costs less.
        wide = rows.shape[1] >= len(rows)
        product = rows @ rows.T if wide else rows.T @ rows
        found = np.linalg.eigh(product.double().cpu().numpy())
        values, vectors = (torch.from_numpy(one).to(rows.device) for one in found)
        kept = values > 1e-6 * values[-1].clamp_min(_TINY)
        values, vectors = values[kept][-_DIRECTIONS:], vectors[:, kept][:, -_DIRECTIONS:]
        directions = vectors.T.to(rows)
        if wide:
            directions = (vectors / values.sqrt()).T.to(rows) @ rows
        return cls(mean, directions, values / len(rows))

    def along(self, vectors: Tensor) -> Tensor:
        """The parts of vectors (n, d) along the directions: (n, r) float64."""
        return (vectors @ self.directions.T).double()

    def scores(
        self, seen: Tensor, others: Tensor, inner: Tensor, norms: Tensor, own: Tensor
    ) -> tuple[Tensor, Tensor]:
        """eᵀ M g_c and g_cᵀ M g_c in the metric above, (targets, n) each.

        seen: (targets, d), the estimates e; others: (targets,), τ; inner: (targets, n), norms: (n,)
        and own: (n, r), the plain inner products, squared lengths and parts of the candidates'
        gradients. The white noise σ² is what an estimate has beyond the directions.
        """
        along = self.along(seen)
        length = seen.double().square().sum(1)
        white = (length - along.square().sum(1)).clamp_min(_TINY) / seen.shape[1]
        spread = others[:, None].double() * self.variances
        damped = spread / (white[:, None] + spread)
        products = (inner - (along * damped) @ own.T) / white[:, None]
        lengths = (norms - damped @ own.square().T) / white[:, None]
        return products, lengths
