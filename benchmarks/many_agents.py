"""Rounds of very many agents in a process of its own: time, memory, and what they are made of.

    OMP_NUM_THREADS=1 python -m benchmarks.many_agents 1000000 [--graph torus] [--rounds 5]

PDSGD on the quadratic problem with one curvature for all agents and no noise, four neighbours each,
d = 100, float32. Answers with one line of JSON. CPU seconds on one thread; memory is the most that
the process held, the problem's data (one tensor of states) included and stated.
"""

import argparse
import json
import math
import resource
import statistics
import time

import torch
from benchmarks.workloads import Clocked

from sottovoce import PDSGD, Graph, Quadratic, random_regular, simulate, torus
from sottovoce.simulation.options import Options

DIMENSION = 100


def peak() -> int:
    """The most bytes that this process held so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def built(kind: str, agents: int) -> Graph:
    """A graph with four neighbours at each agent: random, or a torus as square as it can be."""
    if kind == "random":
        return random_regular(4, agents)
    side = next(one for one in range(math.isqrt(agents), 2, -1) if agents % one == 0)
    return torus(side, agents // side)


def quadratic(agents: int) -> Quadratic:
    """Eigenvalues from 0.5 to 1.5 for all agents, and a target for each."""
    generator = torch.Generator().manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(DIMENSION, DIMENSION, generator=generator).double())
    curvature = basis @ torch.diag(torch.linspace(0.5, 1.5, DIMENSION).double()) @ basis.T
    target = torch.randn(agents, DIMENSION, generator=generator)
    return Quadratic((curvature + curvature.T) / 2, target, noise=0.0, dtype=torch.float32)


def measured(agents: int, kind: str, rounds: int) -> dict[str, float | int | str]:
    """Figures of one simulation, the first of its rounds left out."""
    at_start, begun = peak(), time.process_time()
    graph = built(kind, agents)
    after_graph, graph_seconds = peak(), time.process_time() - begun
    clocked = Clocked(quadratic(agents))
    begun = time.process_time()
    steps = rounds + 1
    options = Options(measure=[steps], keep_final=False)
    simulate(clocked, PDSGD(), graph, steps=steps, options=options)
    apart = [late - early for early, late in zip(clocked.ticks, clocked.ticks[1:], strict=False)]
    return {
        "agents": agents,
        "graph": graph.name,
        "graph_seconds": graph_seconds,
        "setup_seconds": clocked.ticks[0] - begun,
        "seconds": statistics.median(apart[1:]),
        "seconds_all": apart[1:],
        "state_bytes": 4 * agents * DIMENSION,
        "data_bytes": 4 * agents * DIMENSION,
        "start_bytes": at_start,
        "graph_bytes": after_graph,
        "peak_bytes": peak(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("agents", type=int)
    parser.add_argument("--graph", choices=("torus", "random"), default="random")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(measured(given.agents, given.graph, given.rounds)))


if __name__ == "__main__":
    main()
