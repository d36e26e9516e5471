"""The trainings that tests and their agents both know."""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sottovoce import (
    DECOR,
    DSGD,
    LDPDSGD,
    PDSGD,
    Custom,
    Deterministic,
    Estimation,
    Experiment,
    Graph,
    Logistic,
    Mechanism,
    ModuleProblem,
    NoisyDSGD,
    Power,
    PrivateDeviation,
    PrivatePDSGD,
    Problem,
    Quadratic,
    Stepsize,
    Uniform,
    ZeroSumDSGD,
    erdos_renyi,
    parse_algorithm,
    ring,
    star,
)

ROUNDS = 50
sys.path.insert(0, str(Path(__file__).parents[1]))
from chains import EDGES, GOSSIP, MOMENTUM  # noqa: E402
from own_mechanism import drowned  # noqa: E402

HALF = Power(0.5, 0.75)
CONSTANT = Stepsize(Power(0.05, 0.0), Uniform())
TRAINING_DIMENSION = 100


@dataclass(frozen=True)
class Case:
    problem: Problem
    algorithm: Mechanism
    graph: Graph
    stepsize: Stepsize
    private_start: float = 0.0


def equality_cases() -> dict[str, Case]:
    """Every algorithm on two graphs, then other problems and stepsizes."""
    quadratic = Quadratic.random(agents=5, d=300)
    plain, random = Stepsize(HALF, Deterministic()), Stepsize(HALF, Uniform())
    algorithms = [
        (DSGD(), plain),
        (PDSGD(), random),
        (PDSGD("coordinate"), random),
        (NoisyDSGD(0.1), plain),
        (ZeroSumDSGD(0.1), random),
    ]
    cases = {
        f"{algorithm}-{graph.name}".replace(":", ""): Case(quadratic, algorithm, graph, stepsize)
        for graph in (ring(5), star(5))
        for algorithm, stepsize in algorithms
    }
    erdos, scales = erdos_renyi(5, 0.5, 3), Power((0.1, 0.2, 0.3, 0.2, 0.1), 1.0)
    deviating = Stepsize(HALF, Experiment(), deviation=PrivateDeviation(30, 0.5))
    cases["estimation"] = Case(Estimation.random(agents=5), PDSGD(), star(5), random)
    cases["logistic"] = Case(Logistic.random(agents=5), NoisyDSGD(0.1), ring(5), plain)
    cases["deviating"] = Case(quadratic, PDSGD("dirichlet"), erdos, deviating)
    cases["one-number"] = Case(quadratic, PDSGD(), erdos, Stepsize(HALF, Uniform(), "agent"))
    cases["own-scales"] = Case(quadratic, PDSGD("equal"), ring(5), Stepsize(scales, Uniform()))
    cases["own-mechanism"] = Case(quadratic, drowned(0.3), star(5), random)
    cases["parts"] = Case(quadratic, parse_algorithm("gradient-noise:0.1+pdsgd"), erdos, random)
    cases["edges"] = Case(quadratic, EDGES, erdos, plain)
    cases["memory"] = Case(quadratic, MOMENTUM, star(5), random)
    cases["exchanges"] = Case(quadratic, GOSSIP, ring(5), plain)
    cases["private-start"] = Case(quadratic, ZeroSumDSGD(0.1), ring(5), plain, 0.3)
    return cases


def images() -> list[tuple[Tensor, Tensor]]:
    """Small random images and labels of five agents, who have unequally many."""
    generator = torch.Generator().manual_seed(7)
    return [
        (
            torch.randn(count, 1, 6, 6, dtype=torch.float64, generator=generator),
            torch.randint(0, 3, (count,), generator=generator),
        )
        for count in (40, 25, 40, 31, 60)
    ]


def convolution() -> nn.Module:
    """A small network in float64, the same at every agent."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 4, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    return nn.Sequential(*layers).double()


def clipped_cases() -> dict[str, Case]:
    """Chains that clip, with Poisson batches of a module's samples."""
    problem = ModuleProblem(convolution(), cross_entropy, images(), batch=8, poisson=True)
    public, random = Stepsize(HALF, Deterministic()), Stepsize(HALF, Uniform())
    return {
        "ldp": Case(problem, LDPDSGD(0.1, 0.5), ring(5), random),
        "decor": Case(problem, DECOR(0.05, 0.1, 0.5), star(5), public),
        "dp-pdsgd": Case(problem, PrivatePDSGD(0.05, 0.1, 0.5), erdos_renyi(5, 0.5, 3), public),
    }


def wire_cases() -> dict[str, Case]:
    quadratic = Quadratic.random(agents=5, d=300)
    random = Stepsize(HALF, Uniform())
    plain = Stepsize(HALF, Deterministic())
    return {
        "pdsgd": Case(quadratic, PDSGD(), ring(5), random),
        "noisy": Case(quadratic, NoisyDSGD(0.1), ring(5), plain),
        "coordinate": Case(quadratic, PDSGD("coordinate"), ring(5), random),
        "zero-sum": Case(quadratic, ZeroSumDSGD(0.1), ring(5), random),
        "dsgd": Case(quadratic, DSGD(), ring(5), plain),
    }


Start = tuple[int, torch.dtype, Graph, Mechanism, Stepsize | None]


def mismatches() -> dict[str, tuple[Start, Start]]:
    """What all have but agent 1, and what agent 1 has."""
    base: Start = (4, torch.float64, ring(5), PDSGD(), None)
    size, dtype, graph, algorithm, stepsize = base
    tame = Custom(lambda k: 0.1, name="mine")
    wild = Custom(lambda k: 0.2, name="mine")
    return {
        "graph": (base, (size, dtype, star(5), algorithm, stepsize)),
        "dimension": (base, (7, dtype, graph, algorithm, stepsize)),
        "dtype": (base, (size, torch.float32, graph, algorithm, stepsize)),
        "algorithm": (base, (size, dtype, graph, PDSGD("dirichlet"), stepsize)),
        "schedule": (base, (size, dtype, graph, algorithm, Stepsize(Power(2.0)))),
        "function": (
            (size, dtype, graph, algorithm, Stepsize(tame)),
            (size, dtype, graph, algorithm, Stepsize(wild)),
        ),
        "agents": (base, (size, dtype, ring(6), algorithm, stepsize)),
        "world": ((size, dtype, ring(6), algorithm, stepsize),) * 2,
        "same": (base, base),
    }
