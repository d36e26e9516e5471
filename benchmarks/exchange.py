"""What a round costs beside a bare exchange of the same bytes: `make bench-exchange`.

    torchrun --standalone --nproc-per-node 4 benchmarks/exchange.py --threads 1 2

Bare and real rounds take turns, so that both meet the same load; medians over the slowest agent of
each round are compared. `make bench-network` runs it on links of a stated rate. On loopback there
is none, and both kinds are bound by processor and memory.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
import warnings
from itertools import product
from pathlib import Path
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import nn

import sottovoce.distributed as sd
from sottovoce import (
    DSGD,
    PDSGD,
    Deterministic,
    Graph,
    NoisyDSGD,
    Power,
    Stepsize,
    Uniform,
    ZeroSumDSGD,
    ring,
)
from sottovoce.distributed import frames
from sottovoce.mechanisms import Mechanism
from sottovoce.simulation.options import Links

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.tls_links import BareTls, Organisations

Carried = Literal["gloo", "tls"]
SCHEDULE = Power(1e-3, 0.0)
ROUNDS: dict[str, tuple[Mechanism, Stepsize]] = {
    "dsgd": (DSGD(), Stepsize(SCHEDULE, Deterministic())),
    "pdsgd, one stepsize an agent": (PDSGD(), Stepsize(SCHEDULE, Uniform(), "agent")),
    "pdsgd, one stepsize a coordinate": (PDSGD(), Stepsize(SCHEDULE, Uniform())),
    "pdsgd:coordinate": (PDSGD("coordinate"), Stepsize(SCHEDULE, Uniform())),
    "noisy-dsgd": (NoisyDSGD(1e-3), Stepsize(SCHEDULE, Deterministic())),
    "zero-sum:0.1": (ZeroSumDSGD(0.1), Stepsize(SCHEDULE, Deterministic())),
}
WARM_UP = 3
PLAIN_BYTES = 1 << 25


class Bare:
    """The primitive alone, in buffers of its own that are used again."""

    def __init__(self, neighbours: list[int], size: int) -> None:
        buffers = {i: torch.ones(2, size, dtype=torch.uint8) for i in neighbours}
        self.operations = [dist.P2POp(dist.irecv, buffers[j][0], j) for j in neighbours] + [
            dist.P2POp(dist.isend, buffers[i][1], i) for i in neighbours
        ]

    def step(self) -> None:
        for work in dist.batch_isend_irecv(self.operations):
            work.wait()

    def close(self) -> None:
        """Connections belong to the process group."""


def plain_rate() -> float:
    """Megabits a second, at the slowest agent, of one long transfer from each to the next."""
    agent, agents = dist.get_rank(), dist.get_world_size()
    content, room = torch.ones(2, PLAIN_BYTES, dtype=torch.uint8)
    dist.barrier()
    begun = time.perf_counter()
    sent = dist.isend(content, (agent + 1) % agents)
    dist.recv(room, (agent - 1) % agents)
    assert sent is not None
    sent.wait()
    [seconds] = slowest([time.perf_counter() - begun])
    return PLAIN_BYTES * 8 / seconds / 1e6


def slowest(seconds: list[float]) -> list[float]:
    """The time of the slowest agent in every round."""
    times = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return times.tolist()


def measure(
    graph: Graph,
    algorithm: Mechanism,
    stepsize: Stepsize,
    dimension: int,
    rounds: int,
    links: Links,
    organisations: Organisations | None,
) -> dict[str, float]:
    point = nn.Parameter(torch.randn(dimension))
    transport = organisations.transport() if organisations else None
    optimizer = sd.DecentralizedSGD(
        [point], algorithm, graph, stepsize, links=links, transport=transport
    )
    point.grad = torch.randn(dimension)
    size = optimizer.bytes_per_message
    bare = (
        BareTls(organisations, size)
        if organisations
        else Bare(graph.neighbours(dist.get_rank()), size)
    )
    kinds = {"bare": bare, "round": optimizer}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    work = dict.fromkeys(kinds, 0.0)
    for number in range(WARM_UP + rounds):
        for kind, one in kinds.items():
            dist.barrier()
            begun, spent = time.perf_counter(), time.process_time()
            one.step()
            if kind == "round":
                # What is drawn for the next round belongs to the costs of a round.
                optimizer.streams.wait()
            if number >= WARM_UP:
                times[kind].append(time.perf_counter() - begun)
                work[kind] += time.process_time() - spent
    bare.close()
    if transport:
        transport.close()
    all_times = {kind: slowest(seconds) for kind, seconds in times.items()}
    ratios = [real / bare for bare, real in zip(*all_times.values(), strict=True)]
    quarters = statistics.quantiles(ratios, n=4)
    alone, real = (statistics.median(seconds) * 1e3 for seconds in all_times.values())
    return {
        "bare_ms": round(alone, 2),
        "round_ms": round(real, 2),
        "ratio": round(real / alone, 2),
        "ratio_quarter": round(quarters[0], 2),
        "ratio_three_quarters": round(quarters[2], 2),
        **{f"cpu_{kind}_ms": round(spent / rounds * 1e3, 2) for kind, spent in work.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dimension", type=int, default=1_700_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--algorithms", nargs="+", choices=ROUNDS, default=list(ROUNDS))
    parser.add_argument("--link", default="loopback", help="what joins the agents, for the record")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--segments", type=int, nargs="+", default=[frames.MOST_SEGMENTS])
    parser.add_argument("--links", nargs="+", choices=get_args(Links), default=["plain"])
    parser.add_argument("--over", nargs="+", choices=get_args(Carried), default=["gloo"])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    agent = sd.connect()
    graph = ring(dist.get_world_size())
    rate = plain_rate()
    if agent == 0:
        machine = {
            "link": options.link,
            "plain_transfer_mbit": round(rate),
            "load": os.getloadavg()[0],
            "cores": len(os.sched_getaffinity(0)),
            "agents": graph.agents,
            "dimension": options.dimension,
            "rounds": options.rounds,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        print(json.dumps(machine), flush=True)
    organisations = {"gloo": None, "tls": Organisations(graph)}
    cases = product(options.over, options.threads, options.segments, options.links)
    for over, threads, segments, links in cases:
        torch.set_num_threads(threads)
        frames.MOST_SEGMENTS = segments
        for name in options.algorithms:
            algorithm, stepsize = ROUNDS[name]
            sizes = (options.dimension, options.rounds)
            figures = measure(graph, algorithm, stepsize, *sizes, links, organisations[over])
            case = {"algorithm": name, "link": options.link, "segments": segments}
            case |= {"threads": threads, "links": links, "over": over}
            if agent == 0:
                print(json.dumps(case | figures), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
