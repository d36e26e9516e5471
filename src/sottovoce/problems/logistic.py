"""Binary logistic regression, each agent with samples of its own."""

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import logsigmoid

from sottovoce.errors import ProblemError
from sottovoce.mechanisms import Bound
from sottovoce.problems.base import (
    ConvexProblem,
    as_tensor,
    blocks,
    in_huge_pages,
    require_sizes,
    room_like,
)
from sottovoce.problems.sampling import Sampling, weights_of
from sottovoce.problems.sparse import fetches, sparse_matrix, sums
from sottovoce.randomness import Streams
from sottovoce.storage.identity import fingerprint

_LARGE_CACHE = 1 << 21
"""Bytes of a core's own cache from which on it keeps a piece of a gather."""
_SMALL_PIECE, _LARGE_PIECE = 3, 16
"""Blocks of work in such a piece, and in one where caches are small."""
_SHARED_CACHE = 12 << 20
"""Bytes of a round's samples up to which they are read twice where they lie, and not copied."""


class Logistic(ConvexProblem):
    """f_i(x) = 1/n Σ_j ln(1 + exp(-y_ij a_ijᵀx)) + r/2 ||x||².

    features: a_ij, (agents, n, d); labels: y_ij in {-1, +1}, (agents, n); regularisation: r > 0,
    which holds no sample and is not clipped. A stochastic gradient uses `batch` samples drawn with
    replacement, or with `poisson` a Poisson sample (`Sampling`). float32 features make a float32
    problem. Tensors, numpy arrays and lists are accepted.
    """

    name: ClassVar[str] = "logistic"

    scratch: ClassVar[frozenset[str]] = frozenset({"_gathered", "_piece", "_chosen"})
    sampling: Sampling

    def __init__(
        self,
        features: ArrayLike,
        labels: ArrayLike,
        regularisation: float = 1e-3,
        batch: int = 32,
        poisson: bool = False,
    ) -> None:
        features, labels = as_tensor("the features", features), as_tensor("the labels", labels)
        features = features if features.is_floating_point() else features.double()
        if features.ndim != 3 or features.shape[:2] != labels.shape:
            raise ProblemError(
                f"features {tuple(features.shape)} and labels {tuple(labels.shape)} do not fit; "
                "accepted: (agents, n, d) and (agents, n)"
            )
        if not bool(((labels == 1) | (labels == -1)).all()):
            raise ProblemError("labels must be -1 or +1")
        if regularisation <= 0:
            raise ProblemError(f"regularisation is {regularisation}; it must be positive")
        self.agents, self.samples, self.dimension = features.shape
        require_sizes(agents=self.agents, samples=self.samples, dimension=self.dimension)
        self.sampling = Sampling((self.samples,) * self.agents, batch, poisson)
        self.dtype, self.regularisation = features.dtype, regularisation
        signed = features * -labels.to(features.dtype).unsqueeze(-1)
        self._rows = in_huge_pages(signed.flatten(0, 1))
        """-y_ij a_ij: (agents * n, d)."""
        self._norms = self._rows.norm(dim=-1)
        self._piece = _SMALL_PIECE if _own_cache() >= _LARGE_CACHE else _LARGE_PIECE
        self._gathered = self._rows.new_empty(0, self.dimension)
        self._chosen: Tensor | None = None
        self._first = (torch.arange(self.agents) * self.samples).unsqueeze(-1)
        self.optimum = self._minimiser()

    @property
    def batch(self) -> int:
        """How many samples a stochastic gradient uses, or is expected to use."""
        return self.sampling.batch

    @classmethod
    def random(
        cls,
        agents: int = 5,
        d: int = 20,
        *,
        n: int = 100,
        batch: int = 32,
        poisson: bool = False,
        regularisation: float = 1e-2,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> "Logistic":
        """Gaussian features; labels from a random hyperplane, one in ten flipped."""
        require_sizes(agents=agents, d=d, n=n)
        rng = np.random.default_rng(seed)
        features = rng.standard_normal((agents, n, d)) / np.sqrt(d)
        labels = np.sign(features @ rng.standard_normal(d) + 1e-300)
        labels *= np.where(rng.random((agents, n)) < 0.1, -1, 1)
        tensors = torch.from_numpy(features).to(dtype), torch.from_numpy(labels)
        return cls(*tensors, regularisation, batch, poisson)

    def gradient(self, state: Tensor, streams: Streams, round: int, out: Tensor) -> Tensor:
        if self.sampling.poisson:
            return self._summed(state, streams, round, out, None)
        if 2 * self.samples < len(state) * self.batch:
            chosen = streams.integers("data", round, self.batch, self.samples)
            self._by_counts(state, chosen, out)
        else:
            self._by_samples(state, streams, round, out)
        return out

    def clipped_gradient(
        self, state: Tensor, streams: Streams, round: int, out: Tensor, bound: Bound
    ) -> Tensor:
        return self._summed(state, streams, round, out, bound)

    def _summed(
        self, state: Tensor, streams: Streams, round: int, out: Tensor, bound: Bound | None
    ) -> Tensor:
        """(1/B) Σ_n c_n p_n a_n + r x; a sample's gradient has the norm p_n ||a_n||."""
        chosen, present = self.sampling.draw(streams, round)
        samples = chosen.add_(self._first).flatten(0, 1)
        points, gradients = (tensor.view(-1, 1, self.dimension) for tensor in (state, out))
        weighted = present.flatten(0, 1).unsqueeze(1)
        row_bytes = samples.shape[1] * self.dimension * out.element_size()
        for part in blocks(len(samples), row_bytes, _SMALL_PIECE):
            some = samples[part].flatten()
            rows = torch.index_select(self._rows, 0, some, out=self._space(some.shape[0]))
            rows = rows.view(-1, samples.shape[1], self.dimension)
            norms = self._norms.index_select(0, some).view(-1, 1, samples.shape[1])
            pull = torch.bmm(points[part], rows.mT).sigmoid_()
            pull *= weights_of(pull * norms, weighted[part], bound)
            torch.baddbmm(
                points[part],
                pull,
                rows,
                beta=self.regularisation,
                alpha=1 / self.batch,
                out=gradients[part],
            )
        return out

    def _by_samples(self, state: Tensor, streams: Streams, round: int, out: Tensor) -> None:
        """Read the chosen samples of each run and agent."""

        def rows_of(first: int, rounds: int) -> Tensor:
            drawn = streams.rounds("data", first, rounds, self.batch).mul_(self.samples)
            # In the order of memory, repeated ones side by side, samples are read faster.
            chosen = torch.from_numpy(np.sort(drawn.long().numpy(), axis=-1))
            return chosen.add_(self._first).flatten(1)

        count = state.shape[0] * self.agents * self.batch
        chosen = streams.ahead(("rows", self.batch, self.samples), 8 * count, round, rows_of)
        points, gradients = (tensor.view(-1, self.dimension) for tensor in (state, out))
        row_bytes = self.batch * self.dimension * out.element_size()
        if len(points) * row_bytes <= _SHARED_CACHE:
            self._where_they_lie(chosen, points, gradients)
            return
        samples = chosen.view(-1, self.batch)
        for part in blocks(len(samples), row_bytes, self._piece):
            self._gather(samples[part].flatten(), points[part, None], gradients[part, None])

    def _where_they_lie(self, chosen: Tensor, points: Tensor, gradients: Tensor) -> None:
        """The gradients at some points, (n, d), without a copy of the samples chosen in a row.

        The entries of a sparse matrix (n, samples) are first margins, then pulls.
        """
        matrix = self._matrix(len(points))
        matrix.col_indices().copy_(chosen)
        # The product is added to 0 times what is there, which has to be finite.
        pull = matrix.values().zero_()
        torch.sparse.sampled_addmm(matrix, points, self._rows.mT, beta=0.0, out=matrix)
        pull.sigmoid_()
        if fetches(self._rows):
            found = sums(self._rows, matrix.crow_indices(), chosen, pull.div_(self.batch))
            torch.add(found, points, alpha=self.regularisation, out=gradients)
            return
        torch.addmm(
            points,
            matrix,
            self._rows,
            beta=self.regularisation,
            alpha=1 / self.batch,
            out=gradients,
        )

    def _matrix(self, points: int) -> Tensor:
        """Room for the choice of `batch` samples at each of some points, the same every time."""
        count = points * self.batch
        if self._chosen is None or self._chosen.values().shape[0] != count:
            ends = torch.arange(0, count + 1, self.batch)
            nothing = self._rows.new_zeros(count)
            size = points, len(self._rows)
            columns = torch.zeros(count, dtype=torch.long)
            self._chosen = sparse_matrix(ends, columns, nothing, size)
        return self._chosen

    def _gather(self, chosen: Tensor, points: Tensor, gradients: Tensor) -> None:
        """The gradients at some points, (n, 1, d), of `batch` samples each, chosen in a row."""
        space = self._space(chosen.shape[0])
        torch.index_select(self._rows, 0, chosen, out=space)
        rows = space.view(-1, self.batch, self.dimension)
        # (1, d) times (d, batch) is fast on every machine; the transposed product is not.
        pull = torch.bmm(points, rows.mT).sigmoid_()
        torch.baddbmm(
            points, pull, rows, beta=self.regularisation, alpha=1 / self.batch, out=gradients
        )

    def _by_counts(self, state: Tensor, chosen: Tensor, out: Tensor) -> None:
        """Weigh all samples of an agent by how often each run chose them: read once for all runs.

        Faster if the runs together choose more than twice as many samples as there are.
        """
        rows = self._rows.view(self.agents, self.samples, self.dimension)
        ones = out.new_ones(1).expand(chosen.shape)
        counts = out.new_zeros(*state.shape[:2], self.samples).scatter_add_(2, chosen, ones)
        held = (self.samples + len(state)) * self.dimension * out.element_size()
        for part in blocks(self.agents, held):
            x, own = state[:, part].transpose(0, 1), rows[part]
            pull = torch.bmm(x, own.mT).sigmoid_().mul_(counts[:, part].transpose(0, 1))
            found = torch.baddbmm(x, pull, own, beta=self.regularisation, alpha=1 / self.batch)
            out[:, part] = found.transpose(0, 1)

    def _space(self, rows: int) -> Tensor:
        """Where chosen samples are gathered, the same memory every time: (rows, d)."""
        held = self._gathered.shape[0]
        if held < rows:
            self._gathered = room_like(self._rows[:1].expand(rows, -1))
        return self._gathered if held == rows else self._gathered[:rows]

    def objective(self, points: Tensor) -> Tensor:
        total = points.new_zeros(len(points))
        for part in blocks(len(self._rows), len(points) * points.element_size()):
            total -= logsigmoid((points @ self._rows[part].mT).neg_()).sum(-1)
        return total / len(self._rows) + 0.5 * self.regularisation * points.square().sum(-1)

    def full_gradient(self, points: Tensor) -> Tensor:
        total = torch.zeros_like(points)
        for part in blocks(len(self._rows), len(points) * points.element_size()):
            rows = self._rows[part]
            total += torch.sigmoid_(points @ rows.mT) @ rows
        return total / len(self._rows) + self.regularisation * points

    def _minimiser(self) -> Tensor:
        rows = -self._rows.double().numpy()

        def loss(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            margin = rows @ x
            pull = np.exp(-np.logaddexp(0, margin))
            value = np.logaddexp(0, -margin).mean() + 0.5 * self.regularisation * x @ x
            return float(value), self.regularisation * x - pull @ rows / len(rows)

        found = minimize(
            loss,
            np.zeros(self.dimension),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 10_000, "ftol": 1e-16, "gtol": 1e-11},
        )
        return torch.from_numpy(found.x).to(self.dtype)

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "samples": self.samples,
            "batch": self.batch,
            "poisson": self.sampling.poisson,
            "regularisation": self.regularisation,
            "data": fingerprint(self._rows),
        }


def _own_cache() -> int:
    """Bytes of the second-level cache of a core, 0 where torch does not tell.

    What is gathered is read twice. A cache of 2 MB keeps it for that: 1.7 times as fast. With one
    of 1 MB, larger pieces save calls: 1.1 to 1.2 times as fast.
    """
    tell = getattr(torch.cpu, "get_capabilities", dict[str, Any])
    return int(tell().get("l2_cache_size", 0))
