"""Many runs in pieces, each kept when it is finished: a stopped study continues with the next."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from sottovoce.errors import SimulationError
from sottovoce.graphs import Graph
from sottovoce.mechanisms import Mechanism
from sottovoce.problems.base import Problem
from sottovoce.simulation.checkpoint import Task
from sottovoce.simulation.options import Options
from sottovoce.simulation.result import Result, join
from sottovoce.simulation.runner import run_task
from sottovoce.stepsizes import Stepsize
from sottovoce.storage.store import Store, lock


def pieces_of(runs: int, piece: int) -> list[range]:
    """Runs 0 to `runs` - 1 in pieces of `piece`, the last one perhaps smaller."""
    if piece < 1 or runs < 1:
        raise SimulationError(f"piece is {piece} and runs is {runs}; both must be at least 1")
    return [range(runs)[first : first + piece] for first in range(0, runs, piece)]


def simulate_in_pieces(
    problem: Problem,
    algorithm: Mechanism,
    graph: Graph,
    *,
    steps: int,
    runs: Sequence[range],
    stepsize: Stepsize,
    options: Options,
    insecure_seed: int | None = None,
) -> Result:
    """Simulate some runs at a time and keep each piece's measurements in `options.checkpoint`.

    runs: the pieces in turn, as `pieces_of(1000, 200)` gives them.
    A piece that is there already, from the same arguments, data and code, is read and not computed
    again; pieces computed elsewhere may be put there. The last states are not kept. With
    `insecure_seed` the result is that of one simulation of all runs.
    """
    if options.record is not None:
        raise SimulationError("pieces keep measurements alone; record messages with simulate")
    store = Store.of(options.checkpoint)
    task = Task(problem, algorithm, graph, stepsize, steps, options, insecure_seed)
    spec = task.spec
    task = replace(task, options=replace(options, checkpoint=None, keep_final=False))
    parts = []
    with lock(store.folder):
        for some in runs:
            entry = {**spec, "kind": "piece", "runs": [some.start, some.stop]}
            if (found := store.load(entry)) is not None:
                final = torch.empty(len(some), graph.agents, 0, dtype=problem.dtype)
                part = Result(task.rounds, found.tensors, final, found.facts)
            else:
                part = run_task(task, some)
                store.save(entry, part.metrics, part.facts)
            parts.append(part)
    store.report("piece", "pieces")
    return replace(join(parts), facts={**parts[0].facts, "runs": sum(map(len, runs))})
