"""The masked trainings that the test and its agents both know."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sottovoce import Graph, Mechanism, Problem, Stepsize, parse_algorithm, parse_graph
from sottovoce.randomness import Streams
from sottovoce.stepsizes import parse_stepsize

SEED, ROUNDS, DIMENSION, PRIVATE_START = 5, 6, 700, 0.25


class Pull(Problem):
    """Every agent is drawn to a known vector of its own, in numbers of any type."""

    name = "pull"

    def __init__(self, dtype: torch.dtype) -> None:
        self.agents, self.dimension, self.dtype = 4, DIMENSION, dtype
        known = torch.linspace(-3, 3, DIMENSION, dtype=torch.float64)
        self._target = torch.stack([known.roll(100 * agent) for agent in range(4)]).to(dtype)

    def gradient(self, state: Tensor, streams: Streams, round: int, out: Tensor) -> Tensor:
        return torch.sub(state, self._target, out=out)

    def measure(self, state: Tensor) -> dict[str, Tensor]:
        return {"spread": state.std(1).mean(-1)}


@dataclass(frozen=True)
class Case:
    problem: Problem
    algorithm: Mechanism
    graph: Graph
    stepsize: Stepsize
    cut: tuple[int, int]


def cases() -> dict[str, Case]:
    """Plain chains, by coordinate, with noise on messages; both types of numbers; cut or not."""
    whole, cut = (1 << 18, 1 << 17), (512, 48)
    single, double = Pull(torch.float32), Pull(torch.float64)

    def case(problem: Problem, algorithm: str, graph: str, sizes: tuple[int, int]) -> Case:
        chain, stepsize = parse_algorithm(algorithm), parse_stepsize("uniform:0.3/k")
        return Case(problem, chain, parse_graph(graph), stepsize, sizes)

    return {
        "dsgd": case(single, "dsgd", "ring:4", whole),
        "pdsgd": case(single, "pdsgd", "complete:4", cut),
        "coordinate": case(double, "pdsgd:coordinate", "ring:4", cut),
        "zero-sum": case(double, "zero-sum:0.1", "complete:4", cut),
    }
