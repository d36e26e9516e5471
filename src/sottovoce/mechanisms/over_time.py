"""Noise correlated over time: earlier rounds' noise is taken back where models would keep it."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.errors import AlgorithmError
from sottovoce.graphs import Graph, parse_graph
from sottovoce.mechanisms.flow import Flow, Scope
from sottovoce.mechanisms.parts import StepNoise
from sottovoce.mechanisms.terms import add_exact_noise

Array = NDArray[np.float64]
_ITERATIONS = 200
_LEAST = 1e-14
"""Coefficients below this are not drawn for."""


def workload(graph: Graph, rounds: int) -> Array:
    """What the agents' models feel of noise over time, (rounds, rounds).

    G_st = Σ_{r >= max(s, t)} tr W^(2r - s - t + 2) is Σ_r of the squared deviation that noise of
    rounds s and t, mixed by a symmetric W ever since, leaves on all models after round r.
    """
    eigenvalues = np.linalg.eigvalsh(graph.mixing.toarray())
    traces = np.array([float((eigenvalues**p).sum()) for p in range(2 * rounds + 1)])
    found = np.zeros((rounds, rounds))
    for s in range(1, rounds + 1):
        # The entry (s, t) sums over r from max(s, t) = s on, for t <= s.
        for t in range(1, s + 1):
            powers = 2 * np.arange(s, rounds + 1) - s - t + 2
            found[s - 1, t - 1] = found[t - 1, s - 1] = traces[powers].sum()
    return found


def factor(gram: Array) -> Array:
    """The lower triangular C with columns of length 1 that minimises tr(C^-T G C^-1).

    Noise C^-1 z then does least harm where a record takes part in one round. The optimum is a fixed
    point: with v = diag((D^½ G D^½)^½), D = diag(v), X = CᵀC = D^-½ (D^½ G D^½)^½ D^-½ has a
    diagonal of 1 (Denisov et al. 2022, for a workload A with G = AᵀA).
    """
    v: Array = np.sqrt(np.diag(gram))
    for _ in range(_ITERATIONS):
        root = _root(np.sqrt(v)[:, None] * gram * np.sqrt(v))
        v = np.asarray(np.diag(root), dtype=np.float64).copy()
    product = root / np.sqrt(v)[:, None] / np.sqrt(v)
    # X = CᵀC with C lower triangular: the Cholesky factor of the reversed matrix, reversed.
    upper = np.linalg.cholesky(product[::-1, ::-1]).T
    return np.asarray(upper[::-1, ::-1], dtype=np.float64)


def _root(matrix: Array) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.sqrt(values.clip(0.0))) @ vectors.T, dtype=np.float64)


@lru_cache(maxsize=8)
def coefficients(graph: str, rounds: int) -> Array:
    """C^-1 of a graph by its text: what noise of which round enters which step."""
    found = np.linalg.inv(factor(workload(parse_graph(graph), rounds)))
    return np.asarray(found, dtype=np.float64)


@dataclass(frozen=True)
class NoiseOverTime(StepNoise):
    """Add to the step of round t the noise λ̄ σ Σ_{s <= t} (C^-1)_ts z_s of this and earlier rounds.

    `noise` is σ. `rounds` is how long the training is, `graph` the text of the graph; from both C
    is computed (`factor` of the graph's `workload`).
    """

    rounds: int = 100
    graph: str = "ring:5"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 1:
            raise AlgorithmError(f"noise over {self.rounds} rounds; accepted: 1 or more")

    @property
    def reach(self) -> int:  # type: ignore[override]
        """Every earlier round is asked for again."""
        return self.rounds

    def _add_in_kernel(self, flow: Flow) -> None:
        weights = self._weights(flow.at.round)
        add_exact_noise(flow, Scope.AGENT, "step noise", self._sizes(flow), weights)

    def _drawn(self, flow: Flow) -> Tensor:
        total = torch.zeros_like(flow.s, dtype=torch.float64)
        for round, weight in self._weights(flow.at.round).items():
            drawn = flow.exact_normal(Scope.AGENT, "step noise", round=round)
            total.add_(drawn, alpha=weight)
        return total.mul_(self._sizes(flow))

    def _weights(self, now: int) -> dict[int, float]:
        """How much of this round's numbers, and of each earlier one's, enters the step."""
        if now > self.rounds:
            raise AlgorithmError(
                f"round {now} is beyond the {self.rounds} rounds for which the noise was made; "
                "name the length of the training, as in mafalda:0.01:1.0:1000"
            )
        row = coefficients(self.graph, self.rounds)[now - 1, :now]
        earlier = [round for round in range(1, now) if abs(row[round - 1]) > _LEAST]
        return {round: float(row[round - 1]) for round in (now, *earlier)}
