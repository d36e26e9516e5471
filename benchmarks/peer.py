"""decent-bench's DGD on the logistic regression of `benchmarks.cpu`, in an environment of its own.

Runs inside that environment (Python 3.13, `pip install decent-bench==0.3.0`) and knows nothing of
sottovoce. Answers a line {"agents": 20, "steps": 50, "whole": false} with the CPU seconds of a
step. Its DGD is x_i <- Σ_j W_ij x_j - ρ ∇f_i(x_i) with Metropolis weights on a ring; messages are
neither compressed, noisy nor dropped, states are kept at the end alone, and there is no
regulariser. With `whole` an agent owns 32 samples and uses all of them in every step, which
decent-bench keeps as one matrix; otherwise it draws 32 of 100.
"""

import json
import sys
import time
from functools import cache

import networkx as nx
import numpy as np
from decent_array import interoperability as iop
from decent_bench.agents import Agent
from decent_bench.algorithms.p2p import DGD
from decent_bench.costs import LogisticRegressionCost
from decent_bench.networks import P2PNetwork

DIMENSION, BATCH, SAMPLES, NEVER = 784, 32, 100, 10**9


@cache
def network(agents: int, whole: bool) -> P2PNetwork:
    """A ring of agents with Gaussian samples of their own; both labels occur at every agent."""
    rng = np.random.default_rng(0)
    truth = rng.standard_normal(DIMENSION)
    members = []
    for _ in range(agents):
        features = rng.standard_normal((BATCH if whole else SAMPLES, DIMENSION)) / DIMENSION**0.5
        labels = (features @ truth > 0).astype(np.int64)
        labels[:2] = 0, 1
        data = [
            (iop.from_numpy(row), iop.from_numpy(np.array([label])))
            for row, label in zip(features, labels, strict=True)
        ]
        cost = LogisticRegressionCost(data, batch_size="all" if whole else BATCH)
        members.append(Agent(cost, state_snapshot_period=NEVER))
    return P2PNetwork(nx.cycle_graph(agents), members)


def respond(agents: int, steps: int, whole: bool) -> dict[str, float]:
    ring = network(agents, whole)
    algorithm = DGD(step_size=0.1)
    algorithm.run(ring, 2)
    begun = time.process_time()
    algorithm.run(ring, steps)
    return {"seconds": (time.process_time() - begun) / steps}


if __name__ == "__main__":
    iop.set_backend("numpy")
    for line in sys.stdin:
        print(json.dumps(respond(**json.loads(line))), flush=True)
