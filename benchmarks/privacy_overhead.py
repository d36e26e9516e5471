"""What privacy costs: a PDSGD step against a DSGD step of the same model, in one run.

    python benchmarks/privacy_overhead.py [--model paper|small] [--batch 32] [--rounds 10]

Prints the ratio of median times of one round (gradient, private draws, update), measured by turns.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

from sottovoce import DSGD, PDSGD, ring
from sottovoce.algorithms import Algorithm
from sottovoce.experiments import Training
from sottovoce.simulate import _Simulation


def round_of(algorithm: Algorithm, training: Training) -> Callable[[int], float]:
    """A function that times one round of the simulation, in seconds of CPU time."""
    data, validation, _ = training.portions(5)
    problem = training.problem(data, validation)
    stepsize = training.stepsize(algorithm.default_stepsize.law, 100)
    simulation = _Simulation(problem, algorithm, ring(5), stepsize, range(1), None)

    def timed(round: int) -> float:
        start = time.process_time()
        simulation._advance_fused(round)
        return time.process_time() - start

    return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="paper")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    training = Training(model=options.model, batch=options.batch)
    rounds = {"PDSGD": round_of(PDSGD(), training), "DSGD": round_of(DSGD(), training)}
    times: dict[str, list[float]] = {name: [] for name in rounds}
    for round in range(1, options.rounds + 2):
        for name, timed in rounds.items():
            times[name].append(timed(round))
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    ratios = [ours / theirs for ours, theirs in zip(times["PDSGD"], times["DSGD"], strict=True)][1:]
    print(
        json.dumps(
            {
                "model": options.model,
                "batch": options.batch,
                "rounds": options.rounds,
                "cpu_seconds_a_round": medians,
                "ratio": medians["PDSGD"] / medians["DSGD"],
                "ratio_quartiles": statistics.quantiles(ratios, n=4),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
