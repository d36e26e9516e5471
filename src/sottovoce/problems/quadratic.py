"""Quadratics whose sum is convex although single agents' objectives need not be."""

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from sottovoce.errors import ProblemError
from sottovoce.problems.base import (
    WORK_BYTES,
    ConvexProblem,
    as_tensor,
    blocks,
    require_sizes,
)
from sottovoce.randomness import Streams
from sottovoce.storage.identity import fingerprint

_PIECE = 1 << 20
"""Bytes of gradients that are computed at a time; with points and targets a cache holds them."""


class Quadratic(ConvexProblem):
    """f_i(x) = ½ xᵀA_i x - b_iᵀx with Gaussian gradient noise; only the mean of A_i must be convex.

    curvature: symmetric A_i, (agents, d, d), or one for all agents, (d, d); target: b_i, (agents,
    d); noise: standard deviation of each coordinate of a stochastic gradient; dtype: of data and
    states. Tensors, numpy arrays and lists are accepted.
    """

    name: ClassVar[str] = "quadratic"

    def __init__(
        self,
        curvature: ArrayLike,
        target: ArrayLike,
        noise: float = 1.0,
        *,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        curvature, target = as_tensor("the curvature", curvature), as_tensor("the target", target)
        square = (target.shape[-1],) * 2 if target.ndim == 2 else ()
        if not square or curvature.shape not in (square, (len(target), *square)):
            raise ProblemError(
                f"curvature {tuple(curvature.shape)} and target {tuple(target.shape)} do not fit; "
                "accepted: (agents, d, d) or (d, d), and (agents, d)"
            )
        if dtype not in (torch.float32, torch.float64):
            raise ProblemError(f"dtype is {dtype}; accepted: torch.float32 and torch.float64")
        curvature = curvature if curvature.ndim == 3 else curvature.unsqueeze(0)
        self.agents, self.dimension = target.shape
        require_sizes(agents=self.agents, dimension=self.dimension)
        if not 0 <= noise < float("inf"):
            raise ProblemError(f"noise is {noise}; it must be finite and not negative")
        skewed = (curvature - curvature.mT).abs().amax((1, 2)) > 1e-12 * curvature.abs().max()
        if skewed.any():
            raise ProblemError(
                f"the curvature of agent {int(skewed.nonzero()[0])} is not symmetric; "
                "give (A + Aᵀ)/2, which has the same objective"
            )
        self.noise, self.dtype = noise, dtype
        self._curvature, self._target = curvature.to(dtype), target.to(dtype)
        self._mean_curvature = curvature.mean(0, dtype=torch.float64)
        self._mean_target = target.mean(0, dtype=torch.float64)
        smallest = float(torch.linalg.eigvalsh(self._mean_curvature)[0])
        if smallest <= 0:
            raise ProblemError(
                f"the mean of the agents' curvatures has the eigenvalue {smallest:.3g}; "
                "the aggregate objective must be strictly convex"
            )
        self.optimum = torch.linalg.solve(self._mean_curvature, self._mean_target)

    @classmethod
    def random(
        cls,
        agents: int = 5,
        d: int = 2,
        *,
        eigenvalues: tuple[float, float] = (0.5, 1.5),
        indefiniteness: float = 0.0,
        noise: float = 1.0,
        seed: int = 0,
    ) -> "Quadratic":
        """Mean curvature with eigenvalues spread over the interval; single ones shifted by up to
        `indefiniteness`.

        The shifts are random symmetric matrices, the largest of that spectral norm, which sum to
        zero over the agents: single f_i can be indefinite while F stays the same.
        """
        require_sizes(agents=agents, d=d)
        rng = np.random.default_rng(seed)
        basis, _ = np.linalg.qr(rng.standard_normal((d, d)))
        mean = (basis * np.linspace(*eigenvalues, d)) @ basis.T
        shifts = rng.standard_normal((agents, d, d))
        shifts = shifts + shifts.transpose(0, 2, 1)
        shifts -= shifts.mean(0)
        norm = np.abs(np.linalg.eigvalsh(shifts)).max(initial=1e-300)
        curvature = mean + shifts * (indefiniteness / norm)
        target = rng.standard_normal((agents, d))
        return cls(torch.from_numpy(curvature), torch.from_numpy(target), noise)

    def gradient(self, state: Tensor, streams: Streams, round: int, out: Tensor) -> Tensor:
        if len(self._curvature) > 1:
            torch.bmm(state.transpose(0, 1), self._curvature, out=out.transpose(0, 1))
            out.sub_(self._target)
        elif out.nbytes > _PIECE:
            self._by_pieces(state, out)
        else:
            torch.mm(state.flatten(0, 1), self._curvature[0], out=out.flatten(0, 1))
            out.sub_(self._target)
        if self.noise:
            streams.add_normal_(out, self.noise, "data", round)
        return out

    def _by_pieces(self, state: Tensor, out: Tensor) -> None:
        """With one curvature: whole runs, or some agents of one run."""
        row_bytes, times = self.dimension * out.element_size(), _PIECE // WORK_BYTES
        for runs in blocks(len(out), row_bytes * self.agents, times):
            points, gradients = state[runs], out[runs]
            for some in blocks(self.agents, row_bytes * len(points), times):
                part = gradients[:, some]
                torch.mm(points[:, some].flatten(0, 1), self._curvature[0], out=part.flatten(0, 1))
                part.sub_(self._target[some])

    def objective(self, points: Tensor) -> Tensor:
        points = points.double()
        curved = 0.5 * ((points @ self._mean_curvature) * points).sum(-1)
        return curved - points @ self._mean_target

    def full_gradient(self, points: Tensor) -> Tensor:
        return points.double() @ self._mean_curvature - self._mean_target

    def describe(self) -> dict[str, Any]:
        smallest = min(float(torch.linalg.eigvalsh(one)[0]) for one in self._curvature)
        return {
            **super().describe(),
            "noise": self.noise,
            "smallest_curvature": smallest,
            "data": fingerprint(self._curvature, self._target),
        }
