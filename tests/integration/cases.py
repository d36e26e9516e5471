"""The trainings that tests and their agents both know."""

from dataclasses import dataclass

import torch

from sottovoce import (
    DSGD,
    PDSGD,
    Algorithm,
    Custom,
    Deterministic,
    Estimation,
    Experiment,
    Graph,
    Logistic,
    NoisyDSGD,
    Power,
    PrivateDeviation,
    Problem,
    Quadratic,
    Stepsize,
    Uniform,
    erdos_renyi,
    ring,
    star,
)

ROUNDS = 50
HALF = Power(0.5, 0.75)
CONSTANT = Stepsize(Power(0.05, 0.0), Uniform())
TRAINING_DIMENSION = 100


@dataclass(frozen=True)
class Case:
    problem: Problem
    algorithm: Algorithm
    graph: Graph
    stepsize: Stepsize


def equality_cases() -> dict[str, Case]:
    problems = {
        "estimation": Estimation.random(agents=5),
        "quadratic": Quadratic.random(agents=5, d=300),
        "logistic": Logistic.random(agents=5),
    }
    random = Stepsize(HALF, Uniform())
    cases = {}
    for graph in (ring(5), star(5)):
        for name, problem in problems.items():
            for algorithm in (DSGD(), PDSGD(), NoisyDSGD(0.1)):
                key = f"{name}-{algorithm.name}-{graph.name.replace(':', '')}"
                stepsize = random if algorithm.name == "pdsgd" else Stepsize(HALF, Deterministic())
                cases[key] = Case(problem, algorithm, graph, stepsize)
    quadratic, erdos = problems["quadratic"], erdos_renyi(5, 0.5, 3)
    scales = Power((0.1, 0.2, 0.3, 0.2, 0.1), 1.0)
    cases["deviating"] = Case(
        quadratic,
        PDSGD("dirichlet"),
        erdos,
        Stepsize(HALF, Experiment(), deviation=PrivateDeviation(30, 0.5)),
    )
    cases["one-number"] = Case(quadratic, PDSGD(), erdos, Stepsize(HALF, Uniform(), "agent"))
    cases["own-scales"] = Case(quadratic, PDSGD("equal"), ring(5), Stepsize(scales, Uniform()))
    return cases


def wire_cases() -> dict[str, Case]:
    quadratic = Quadratic.random(agents=5, d=300)
    random = Stepsize(HALF, Uniform())
    plain = Stepsize(HALF, Deterministic())
    return {
        "pdsgd": Case(quadratic, PDSGD(), ring(5), random),
        "noisy": Case(quadratic, NoisyDSGD(0.1), ring(5), plain),
        "dsgd": Case(quadratic, DSGD(), ring(5), plain),
    }


Start = tuple[int, torch.dtype, Graph, Algorithm, Stepsize | None]


def mismatches() -> dict[str, tuple[Start, Start]]:
    """What agents 0 and 2 have, and what agent 1 has."""
    base: Start = (4, torch.float64, ring(3), PDSGD(), None)
    size, dtype, graph, algorithm, stepsize = base
    tame = Custom(lambda k: 0.1, name="mine")
    wild = Custom(lambda k: 0.2, name="mine")
    return {
        "graph": (base, (size, dtype, star(3), algorithm, stepsize)),
        "dimension": (base, (5, dtype, graph, algorithm, stepsize)),
        "dtype": (base, (size, torch.float32, graph, algorithm, stepsize)),
        "algorithm": (base, (size, dtype, graph, PDSGD("dirichlet"), stepsize)),
        "schedule": (base, (size, dtype, graph, algorithm, Stepsize(Power(2.0)))),
        "function": (
            (size, dtype, graph, algorithm, Stepsize(tame)),
            (size, dtype, graph, algorithm, Stepsize(wild)),
        ),
        "agents": (base, (size, dtype, ring(4), algorithm, stepsize)),
        "world": ((size, dtype, ring(4), algorithm, stepsize),) * 2,
        "same": (base, base),
    }
