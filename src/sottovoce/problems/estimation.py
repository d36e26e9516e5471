"""The paper's convex experiment: a sensor network estimates one parameter."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import embedding_bag
from torch.nn.utils.rnn import pad_sequence

from sottovoce.errors import ProblemError
from sottovoce.mechanisms import Bound
from sottovoce.problems.base import ConvexProblem, as_tensor, blocks, require_sizes
from sottovoce.problems.sampling import Sampling, weights_of
from sottovoce.randomness import Streams
from sottovoce.storage.identity import fingerprint


class Estimation(ConvexProblem):
    """f_i(θ) = 1/n_i Σ_j ||z_ij - M_i θ||² + r_i ||θ||², the optimum in closed form.

    measurement: M_i, (agents, s, d); samples: one (n_i, s) tensor of z_ij for each agent;
    regularisation: r_i >= 0, one number or one for each agent; it holds no sample and is not
    clipped. A stochastic gradient uses `batch` samples drawn with replacement, or with `poisson` a
    Poisson sample (`Sampling`). Tensors, numpy arrays and lists are accepted.
    """

    name: ClassVar[str] = "estimation"

    def __init__(
        self,
        measurement: ArrayLike,
        samples: Sequence[ArrayLike],
        regularisation: float | Sequence[float] = 0.0,
        batch: int = 1,
        poisson: bool = False,
    ) -> None:
        matrices = as_tensor("the measurement matrix", measurement)
        held = [as_tensor(f"the samples of agent {i}", one) for i, one in enumerate(samples)]
        if matrices.ndim != 3 or len(held) != len(matrices):
            raise ProblemError(
                f"measurement matrices of shape {tuple(matrices.shape)} and samples of "
                f"{len(held)} agents do not fit; accepted: (agents, s, d) and one (n_i, s) "
                "tensor for each agent"
            )
        self.agents, outputs, self.dimension = matrices.shape
        require_sizes(agents=self.agents)
        for agent, sample in enumerate(held):
            if sample.ndim != 2 or sample.shape[1] != outputs or not len(sample):
                raise ProblemError(
                    f"samples of agent {agent} have shape {tuple(sample.shape)}; "
                    f"accepted: (n, {outputs}) with n >= 1"
                )
        self.sampling = Sampling(tuple(len(sample) for sample in held), batch, poisson)
        self.counts = torch.tensor(self.sampling.samples)
        matrix = matrices.double()
        penalty = torch.as_tensor(regularisation, dtype=torch.float64).expand(self.agents)
        if (penalty < 0).any():
            raise ProblemError(f"regularisation is {regularisation}; it must not be negative")
        eye = torch.eye(self.dimension, dtype=torch.float64)
        self._penalty = 2 * penalty[:, None]
        self._curvature = 2 * (matrix.mT @ matrix + penalty[:, None, None] * eye)
        targets = [2 * sample.double() @ own for sample, own in zip(held, matrix, strict=True)]
        self._targets = pad_sequence(targets, batch_first=True)
        means = self._targets.sum(1) / self.counts[:, None]
        squares = torch.stack([sample.double().square().sum(1).mean() for sample in held])
        self._mean_curvature, self._mean_target = self._curvature.mean(0), means.mean(0)
        self._constant = squares.mean()
        if torch.linalg.matrix_rank(self._mean_curvature) < self.dimension:
            raise ProblemError(
                "the measurement matrices of all agents together do not determine the parameter; "
                "add measurements or a positive regularisation"
            )
        self.optimum = torch.linalg.solve(self._mean_curvature, self._mean_target)

    sampling: Sampling

    @property
    def batch(self) -> int:
        """How many samples a stochastic gradient uses, or is expected to use."""
        return self.sampling.batch

    @classmethod
    def random(
        cls,
        agents: int = 5,
        *,
        shape: tuple[int, int] = (3, 2),
        n: int | Sequence[int] = 100,
        scale: float = 1.0,
        noise: float = 1.0,
        regularisation: float = 0.01,
        batch: int = 1,
        seed: int = 0,
    ) -> "Estimation":
        """The paper's sizes: shape (s, d) = (3, 2), n_i = 100, noise uniform on [0, `noise`].

        The paper leaves M_i, θ and r_i open: here M_i has entries uniform on [0, scale], θ is
        uniform on [0, 1]^d and r_i = 0.01.
        """
        s, d = shape
        require_sizes(agents=agents, s=s, d=d)
        counts = [n] * agents if isinstance(n, int) else list(n)
        if len(counts) != agents or min(counts) < 1:
            raise ProblemError(f"n is {n}; accepted: one count >= 1, or one for each agent")
        rng = np.random.default_rng(seed)
        measurement = scale * rng.random((agents, s, d))
        theta = rng.random(d)
        samples = [
            torch.from_numpy(matrix @ theta + noise * rng.random((count, s)))
            for matrix, count in zip(measurement, counts, strict=True)
        ]
        return cls(torch.from_numpy(measurement), samples, regularisation, batch)

    def gradient(self, state: Tensor, streams: Streams, round: int, out: Tensor) -> Tensor:
        if self.sampling.poisson:
            return self._summed(state, streams, round, out, None)
        chosen = streams.integers("data", round, self.batch, self.counts[:, None])
        first = (torch.arange(self.agents) * self._targets.shape[1])[:, None]
        targets, samples = self._targets.flatten(0, 1), (chosen + first).view(-1, self.batch)
        torch.bmm(state.transpose(0, 1), self._curvature, out=out.transpose(0, 1))
        gradients = out.view(-1, self.dimension)
        for rows in blocks(len(samples), self.dimension * targets.element_size()):
            gradients[rows].sub_(_mean_rows(targets, samples[rows]))
        return out

    def clipped_gradient(
        self, state: Tensor, streams: Streams, round: int, out: Tensor, bound: Bound
    ) -> Tensor:
        return self._summed(state, streams, round, out, bound)

    def _summed(
        self, state: Tensor, streams: Streams, round: int, out: Tensor, bound: Bound | None
    ) -> Tensor:
        """(1/B) Σ_n c_n (2 M_iᵀM_i x - 2 M_iᵀz_in) + 2 r_i x, a few runs at a time."""
        chosen, present = self.sampling.draw(streams, round)
        penalty, agent = self._penalty * state, torch.arange(self.agents)[:, None]
        torch.bmm(state.transpose(0, 1), self._curvature, out=out.transpose(0, 1))
        common = out - penalty
        for runs in blocks(len(state), chosen[0].numel() * self.dimension * out.element_size()):
            each = common[runs].unsqueeze(2) - self._targets[agent, chosen[runs]]
            weights = weights_of(torch.linalg.vector_norm(each, dim=-1), present[runs], bound)
            out[runs] = torch.einsum("ran,rand->rad", weights, each)
        return out.div_(self.batch).add_(penalty)

    def objective(self, points: Tensor) -> Tensor:
        curved = 0.5 * ((points @ self._mean_curvature) * points).sum(-1)
        return curved - points @ self._mean_target + self._constant

    def full_gradient(self, points: Tensor) -> Tensor:
        return points @ self._mean_curvature - self._mean_target

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "samples": self.counts.tolist(),
            "batch": self.batch,
            "poisson": self.sampling.poisson,
            "data": fingerprint(self._curvature, self._targets),
        }


def _mean_rows(table: Tensor, index: Tensor) -> Tensor:
    """Mean of the rows of `table` that each row of `index` names, without a copy of them all."""
    if index.shape[1] == 1:
        return table[index[:, 0]]
    return embedding_bag(index, table, mode="mean")
