"""What a round costs beside a bare exchange of the same bytes: `make bench-exchange`.

    torchrun --standalone --nproc-per-node 4 benchmarks/exchange.py

Bare and real rounds take turns, so that both meet the same load; medians over the slowest agent of
each round are compared.
"""

import argparse
import json
import statistics
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn

import sottovoce.distributed as sd
from sottovoce import (
    DSGD,
    PDSGD,
    Algorithm,
    Deterministic,
    NoisyDSGD,
    Power,
    Stepsize,
    Uniform,
    ring,
)

warnings.simplefilter("ignore")
SCHEDULE = Power(1e-3, 0.0)
ROUNDS: dict[str, tuple[Algorithm, Stepsize]] = {
    "dsgd": (DSGD(), Stepsize(SCHEDULE, Deterministic())),
    "pdsgd, one stepsize an agent": (PDSGD(), Stepsize(SCHEDULE, Uniform(), "agent")),
    "pdsgd, one stepsize a coordinate": (PDSGD(), Stepsize(SCHEDULE, Uniform())),
    "noisy-dsgd": (NoisyDSGD(1e-3), Stepsize(SCHEDULE, Deterministic())),
}


def bare_exchange(neighbours: list[int], size: int) -> None:
    """The primitive alone, in buffers of its own that are used again."""
    if size not in BUFFERS:
        out = {i: torch.ones(size, dtype=torch.uint8) for i in neighbours}
        into = {j: torch.zeros(size, dtype=torch.uint8) for j in neighbours}
        BUFFERS[size] = [dist.P2POp(dist.irecv, into[j], j) for j in neighbours] + [
            dist.P2POp(dist.isend, out[i], i) for i in neighbours
        ]
    for work in dist.batch_isend_irecv(BUFFERS[size]):
        work.wait()


BUFFERS: dict[int, list[dist.P2POp]] = {}


def slowest(seconds: list[float]) -> list[float]:
    """The time of the slowest agent in every round."""
    times = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return times.tolist()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dimension", type=int, default=1_700_000)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    agent = sd.connect()
    graph = ring(dist.get_world_size())
    for name, (algorithm, stepsize) in ROUNDS.items():
        point = nn.Parameter(torch.randn(options.dimension))
        optimizer = sd.DecentralizedSGD([point], graph, algorithm, stepsize)
        point.grad = torch.randn(options.dimension)
        size = optimizer.bytes_per_message
        times: dict[str, list[float]] = {"bare": [], "round": []}
        work: dict[str, float] = {"bare": 0.0, "round": 0.0}
        for number in range(options.rounds + 3):
            for kind in ("bare", "round"):
                dist.barrier()
                begun, spent = time.perf_counter(), time.process_time()
                if kind == "bare":
                    bare_exchange(graph.neighbours(agent), size)
                else:
                    optimizer.step()
                if number >= 3:
                    times[kind].append(time.perf_counter() - begun)
                    work[kind] += time.process_time() - spent
        bare, real = (statistics.median(slowest(times[kind])) * 1e3 for kind in ("bare", "round"))
        cpu = {kind: value / options.rounds * 1e3 for kind, value in work.items()}
        if agent == 0:
            figures = {
                "algorithm": name,
                "agents": graph.agents,
                "dimension": options.dimension,
                "bare_ms": round(bare, 2),
                "round_ms": round(real, 2),
                "ratio": round(real / bare, 2),
                "cpu_bare_ms": round(cpu["bare"], 2),
                "cpu_round_ms": round(cpu["round"], 2),
            }
            print(json.dumps(figures), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
