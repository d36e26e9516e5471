"""What is timed: rounds of the simulator by its public function, with problems of fixed size."""

import time
from collections.abc import Callable, Container
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sottovoce import Graph, Logistic, ModuleProblem, simulate
from sottovoce.mechanisms import Bound, Mechanism
from sottovoce.problems.base import Problem
from sottovoce.randomness import Streams
from sottovoce.simulation.options import Options

DIMENSION, BATCH, SAMPLES, CLASSES = 784, 32, 100, 10
_WARM = 3


class Clocked(Problem):
    """A problem that notes the time at the start of a round and at the end, and measures nothing.

    clock: what the time is; the process's CPU time unless given. noted: at which rounds it is
    asked, all unless given: asking for CPU time takes 13 µs, where a round may take 200.
    """

    name = "clocked"

    def __init__(
        self,
        problem: Problem,
        clock: Callable[[], Any] = time.process_time,
        noted: Container[int] | None = None,
    ) -> None:
        self._problem, self._clock, self._noted = problem, clock, noted
        self.ticks = list[Any]()
        self.agents, self.dimension = problem.agents, problem.dimension
        self.dtype, self.device = problem.dtype, problem.device
        self.sampling = problem.sampling

    def _note(self, round: int) -> None:
        if self._noted is None or round in self._noted:
            self.ticks.append(self._clock())

    def gradient(self, state: Tensor, streams: Streams, round: int, out: Tensor) -> Tensor:
        self._note(round)
        return self._problem.gradient(state, streams, round, out)

    def clipped_gradient(
        self, state: Tensor, streams: Streams, round: int, out: Tensor, bound: Bound
    ) -> Tensor:
        self._note(round)
        return self._problem.clipped_gradient(state, streams, round, out, bound)

    def measure(self, state: Tensor) -> dict[str, Tensor]:
        self.ticks.append(self._clock())
        return {}

    def start(self, runs: range, streams: Streams) -> Tensor:
        return self._problem.start(runs, streams)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}


def seconds_a_round(
    problem: Problem, algorithm: Mechanism, graph: Graph, steps: int, runs: int = 1
) -> float:
    """Mean CPU seconds of a round, all its parts included, after a few rounds to warm up."""
    clocked = Clocked(problem, noted=(_WARM + 1,))
    last = steps + _WARM
    simulate(clocked, algorithm, graph, steps=last, runs=runs, options=Options(measure=[last]))
    return float(clocked.ticks[-1] - clocked.ticks[0]) / steps


@cache
def logistic(agents: int, dtype: torch.dtype = torch.float64) -> Logistic:
    """The logistic regression that all implementations solve."""
    return Logistic.random(agents, DIMENSION, n=SAMPLES, batch=BATCH, dtype=dtype)


@cache
def softmax_data(agents: int) -> list[tuple[Tensor, Tensor]]:
    """Gaussian inputs and random classes for every agent."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(agents, SAMPLES, DIMENSION, generator=generator)
    classes = torch.randint(CLASSES, (agents, SAMPLES), generator=generator)
    return list(zip(inputs, classes, strict=True))


@cache
def softmax(agents: int) -> ModuleProblem:
    """Softmax regression as a user would write it, in float32."""
    model = nn.Linear(DIMENSION, CLASSES)
    return ModuleProblem(model, cross_entropy, softmax_data(agents), batch=BATCH)


@cache
def cnn(model: str = "paper") -> ModuleProblem:
    """Five agents with the paper's CNN on the images that come with the package."""
    from sottovoce.studies.training import Training

    training = Training(model=model, batch=BATCH)
    data, validation, _ = training.portions(5)
    return training.problem(data, validation)


@cache
def tanh_cnn() -> ModuleProblem:
    """Five agents with the CNN of studies with a guarantee, on the same images."""
    from sottovoce.problems.data import models
    from sottovoce.studies.training import Training

    data, validation, _ = Training(batch=BATCH).portions(5)
    return ModuleProblem(models.tanh_cnn(), cross_entropy, data, validation, batch=BATCH)


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "logistic": logistic,
    "logistic float32": lambda agents: logistic(agents, torch.float32),
    "softmax": softmax,
    "cnn": lambda agents: cnn(),
}
