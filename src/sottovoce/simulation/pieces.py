"""Many runs in pieces, each kept when it is finished: a stopped study continues with the next."""

import json
from dataclasses import replace
from pathlib import Path

from sottovoce.errors import ResultError, SimulationError
from sottovoce.graphs import Graph
from sottovoce.mechanisms import Algorithm
from sottovoce.problems.base import Problem
from sottovoce.simulation.checkpoint import describe
from sottovoce.simulation.options import Options
from sottovoce.simulation.result import Result, join
from sottovoce.simulation.runner import simulate
from sottovoce.stepsizes import Stepsize
from sottovoce.storage.tensors import beside


def simulate_in_pieces(
    problem: Problem,
    algorithm: Algorithm,
    graph: Graph,
    *,
    piece: int,
    steps: int,
    runs: int,
    stepsize: Stepsize,
    options: Options,
    insecure_seed: int | None = None,
) -> Result:
    """Simulate `piece` runs at a time and keep each piece's measurements in `options.checkpoint`.

    A piece that is there already, from the same settings, is read and not computed again; pieces
    computed elsewhere may be put there. The last states are not kept. With `insecure_seed` the
    result is that of one simulation of all runs.
    """
    if piece < 1 or runs < 1:
        raise SimulationError(f"piece is {piece} and runs is {runs}; both must be at least 1")
    parts = []
    for first in range(0, runs, piece):
        some = range(first, min(first + piece, runs))
        stem = Path(options.checkpoint or ".") / f"runs-{some.start}-{some.stop - 1}"
        facts = describe(
            problem, algorithm, graph, stepsize, steps, some, options.private_start, insecure_seed
        )
        if beside(stem, ".json").exists():
            part = Result.load(stem)
            if part.facts != json.loads(json.dumps(facts)) or part.rounds != sorted(
                options.measure or ()
            ):
                raise ResultError(
                    f"{stem} belongs to a simulation with other settings; "
                    "give another folder or remove this one"
                )
        else:
            part = simulate(
                problem,
                algorithm,
                graph,
                steps=steps,
                runs=some,
                stepsize=stepsize,
                insecure_seed=insecure_seed,
                options=replace(options, checkpoint=None, keep_final=False),
            )
            part.save(stem)
        parts.append(part)
    return replace(join(parts), facts={**parts[0].facts, "runs": runs})
