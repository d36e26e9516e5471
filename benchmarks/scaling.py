"""How time and memory of a round grow with agents, links, dimension, runs and threads.

    python -m benchmarks.scaling [--repetitions 5] [--output sottovoce-results/scaling]
    python -m benchmarks.scaling --only many-agents

`many-agents` goes up to a million agents, each size in a process of its own
(`benchmarks/many_agents.py`); it takes minutes and 3 GB.

The problem is the plainest (its gradient is one subtraction), so that the round itself is measured:
private stepsizes and coefficients, the update and the check of the states. CPU seconds on one
thread; every sweep is repeated, its sizes taking turns, and an exponent is fitted to each sweep.
Prints tables, writes JSON and a chart.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from benchmarks.common import (
    ONE_THREAD,
    ROOT,
    by_turns,
    machine,
    ratio,
    save,
    show,
    simulator,
)
from benchmarks.workloads import logistic, seconds_a_round
from torch import Tensor

from sottovoce import PDSGD, Graph, random_regular, ring, simulate
from sottovoce.problems.base import Problem
from sottovoce.randomness import Streams
from sottovoce.simulation.options import Options

if TYPE_CHECKING:
    import altair as alt

Works = dict[int, Callable[[], float]]


class Towards(Problem):
    """f_i(x) = ½ ||x - c_i||² without noise: the least work that a gradient can be."""

    name = "towards"

    def __init__(self, agents: int, dimension: int) -> None:
        self.agents, self.dimension = agents, dimension
        self._centres = torch.linspace(-1, 1, agents, dtype=torch.float64).unsqueeze(-1)

    def gradient(self, state: Tensor, streams: Streams, round: int, out: Tensor) -> Tensor:
        return torch.sub(state, self._centres, out=out)

    def measure(self, state: Tensor) -> dict[str, Tensor]:
        return {}

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}


def timed(problem: Problem, graph: Graph, runs: int = 1) -> Callable[[], float]:
    """CPU seconds of a round, from as many rounds as make the clock's steps small."""
    steps = max(3, int(3e6 / (runs * problem.agents * problem.dimension)))
    return lambda: seconds_a_round(problem, PDSGD(), graph, min(steps, 200), runs)


def tensor_bytes(problem: Problem, graph: Graph, runs: int = 1) -> int:
    """The most memory that torch's allocator held at once in a simulation of three rounds.

    The profiler now and then misses events: the larger of two looks counts.
    """
    return max(_held(problem, graph, runs) for _ in range(2))


def _held(problem: Problem, graph: Graph, runs: int) -> int:
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        simulate(problem, PDSGD(), graph, steps=3, runs=runs, options=Options(measure=[3]))
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = np.cumsum([change for _, change in changes])
    return int(held.max(initial=0))


def exponent(sizes: list[int], values: list[float], least: int) -> float:
    """Slope of log value against log size, from `least` on."""
    chosen = [at for at, size in enumerate(sizes) if size >= least]
    logs = np.log([[sizes[at], values[at]] for at in chosen])
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def sweep(
    name: str,
    cases: dict[int, tuple[Problem, Graph, int]],
    repetitions: int,
    least: int,
    memory: bool = True,
) -> dict[str, Any]:
    """Times, memory and exponents over sizes; `least`: the smallest size that is fitted."""
    sizes = list(cases)
    times = by_turns({str(size): timed(*case) for size, case in cases.items()}, repetitions)
    columns = [times[str(size)] for size in sizes]
    slopes = [exponent(sizes, list(values), least) for values in zip(*columns, strict=True)]
    found: dict[str, Any] = {
        "name": name,
        "sizes": sizes,
        "links": [int(graph.degrees.sum()) // 2 for _, graph, _ in cases.values()],
        "seconds": [statistics.median(values) for values in columns],
        "low": [min(values) for values in columns],
        "high": [max(values) for values in columns],
        "fitted_from": least,
        "exponent": statistics.median(slopes),
        "exponents": sorted(slopes),
    }
    if memory:
        held = [tensor_bytes(*case) for case in cases.values()]
        found["bytes"] = held
        found["bytes_exponent"] = exponent(sizes, [float(size) for size in held], least)
    return found


def sweeps(repetitions: int) -> list[dict[str, Any]]:
    """Everything that is varied, one at a time."""
    regular = {m: random_regular(4, m) for m in (10, 30, 100, 300, 1000, 3000, 10_000)}
    degrees = {4: 0, 8: 0, 16: 0, 32: 0, 64: 0}
    return [
        sweep(
            "agents",
            {m: (Towards(m, 1000), graph, 1) for m, graph in regular.items()},
            repetitions,
            least=100,
        ),
        sweep(
            "links",
            {500 * k: (Towards(1000, 1000), random_regular(k, 1000), 1) for k in degrees},
            repetitions,
            least=2000,
            memory=False,
        ),
        sweep(
            "dimension",
            {d: (Towards(20, d), ring(20), 1) for d in (10, 100, 1000, 10_000, 100_000)},
            repetitions,
            least=1000,
        ),
        sweep(
            "runs",
            {r: (Towards(5, 10), ring(5), r) for r in (1, 10, 100, 1000, 10_000)},
            repetitions,
            least=100,
        ),
    ]


def threads(repetitions: int) -> dict[str, Any]:
    """Wall time of a round of logistic regression by torch's threads; others' load disturbs it."""
    problem, graph, rounds = logistic(100), ring(100), 30

    def wall(count: int) -> float:
        torch.set_num_threads(count)
        begun = time.perf_counter()
        simulate(problem, PDSGD(), graph, steps=rounds, options=Options(measure=[rounds]))
        return (time.perf_counter() - begun) / rounds

    counts = sorted({1, torch.get_num_threads()})
    times = by_turns({str(n): lambda n=n: wall(n) for n in counts}, repetitions)  # type: ignore[misc]
    return _counted(counts, times)


def processes(repetitions: int) -> dict[str, Any]:
    """Wall time of a round a process, where several processes of one thread simulate at once."""
    counts = sorted({1, os.cpu_count() or 1})
    with ExitStack() as stack, ThreadPoolExecutor(counts[-1]) as pool:
        workers = [stack.enter_context(simulator()) for _ in range(counts[-1])]
        rounds = 100
        question = {"work": "logistic", "agents": 100, "steps": rounds}

        def wall(count: int) -> float:
            begun = time.perf_counter()
            list(pool.map(lambda worker: worker.ask(**question), workers[:count]))
            return (time.perf_counter() - begun) / rounds / count

        for worker in workers:
            worker.ask(**question | {"steps": 1})
        times = by_turns({str(n): lambda n=n: wall(n) for n in counts}, repetitions)  # type: ignore[misc]
    return _counted(counts, times)


def many_agents(repetitions: int) -> list[dict[str, Any]]:
    """Time and memory of a round up to a million agents, on a torus and on a random graph."""
    found = []
    for kind in ("torus", "random"):
        rows = []
        for agents in (10_000, 100_000, 1_000_000):
            command = [sys.executable, "-m", "benchmarks.many_agents", str(agents)]
            command += ["--graph", kind, "--rounds", str(repetitions)]
            done = subprocess.run(
                command, cwd=ROOT, env=os.environ | ONE_THREAD, stdout=subprocess.PIPE, check=True
            )
            rows.append(json.loads(done.stdout))
        sizes, seconds = ([row[key] for row in rows] for key in ("agents", "seconds"))
        slope = exponent(sizes, seconds, sizes[0])
        found.append({"graph": kind, "exponent": slope, "fitted_from": sizes[0], "rows": rows})
        show(
            f"PDSGD on the quadratic problem, 4 neighbours each ({kind}), d = 100, float32: "
            f"exponent {slope:.2f} from {sizes[0]:,} on",
            ("agents", "CPU s a round", "rounds a CPU s", "s to build", "peak GB", "less data"),
            [
                (
                    f"{row['agents']:,}",
                    f"{row['seconds']:.4f}",
                    f"{1 / row['seconds']:.2f}",
                    f"{row['graph_seconds']:.2f}",
                    f"{row['peak_bytes'] / 1e9:.2f}",
                    f"{(row['peak_bytes'] - row['data_bytes']) / 1e9:.2f}",
                )
                for row in rows
            ],
        )
    return found


def _counted(counts: list[int], times: dict[str, list[float]]) -> dict[str, Any]:
    medians = [statistics.median(times[str(n)]) for n in counts]
    return {
        "counts": counts,
        "seconds": medians,
        "fastest": [min(times[str(n)]) for n in counts],
        "times_as_fast": str(ratio(times[str(counts[0])], times[str(counts[-1])])),
    }


def chart(found: list[dict[str, Any]]) -> "alt.ConcatChart":
    """Time a round over each size, and memory beside it."""
    from sottovoce.charts import Series, line_chart, panel

    titles = {
        "agents": "agents, 4 neighbours each (d = 1,000)",
        "links": "links (1,000 agents, d = 1,000)",
        "dimension": "dimension (20 agents on a ring)",
        "runs": "runs (5 agents on a ring, d = 10)",
    }
    charts = []
    for one in found:
        times = Series(
            "median of repetitions, band: all",
            one["sizes"],
            one["seconds"],
            one["low"],
            one["high"],
        )
        at = one["sizes"].index(one["fitted_from"])
        linear = Series(
            "linear growth",
            one["sizes"][at:],
            [one["seconds"][at] * size / one["fitted_from"] for size in one["sizes"][at:]],
            dashed=True,
        )
        charts.append(
            line_chart(
                [times, linear],
                title=f"Time of a round over {one['name']}",
                subtitle=f"exponent {one['exponent']:.2f} from {one['fitted_from']:,} on",
                x_title=titles[one["name"]],
                y_title="CPU seconds, one thread",
                log="xy",
                size=(380, 250),
            )
        )
    agents = next(one for one in found if one["name"] == "agents")
    state = [8 * 1000 * m for m in agents["sizes"]]
    charts.append(
        line_chart(
            [
                Series("most held at once", agents["sizes"], agents["bytes"]),
                Series("one tensor of states", agents["sizes"], state, dashed=True),
            ],
            title="Memory over agents",
            subtitle=f"exponent {agents['bytes_exponent']:.2f} from 100 on",
            x_title=titles["agents"],
            y_title="bytes of tensors",
            log="xy",
            size=(380, 250),
        )
    )
    return panel(charts)


def joined(values: list[float]) -> str:
    """Counts as they are, seconds in thousandths."""
    return ", ".join(str(v) if isinstance(v, int) else f"{1e3 * v:.2f}" for v in values)


def main() -> None:
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", default="sottovoce-results/scaling", help="without ending")
    parser.add_argument("--only", choices=("many-agents",), help="leave the other sweeps out")
    options = parser.parse_args()
    if options.only:
        found = many_agents(options.repetitions)
        save(f"{options.output}.json", {"machine": machine(), "many_agents": found})
        return
    at_once = {"threads": threads(options.repetitions), "processes": processes(options.repetitions)}
    torch.set_num_threads(1)
    found = sweeps(options.repetitions)
    for one in found:
        low, *_, high = one["exponents"]
        memory = one.get("bytes", [""] * len(one["sizes"]))
        grows = f", memory {one['bytes_exponent']:.2f}" if "bytes" in one else ""
        show(
            f"{one['name']}: exponent {one['exponent']:.2f} ({low:.2f} to {high:.2f}){grows}, "
            f"from {one['fitted_from']:,} on",
            ("size", "links", "CPU ms a round", "fastest", "bytes of tensors"),
            [
                (f"{size:,}", f"{links:,}", f"{1e3 * s:.3f}", f"{1e3 * low_s:.3f}", held)
                for size, links, s, low_s, held in zip(
                    *(one[key] for key in ("sizes", "links", "seconds", "low")), memory, strict=True
                )
            ],
        )
    show(
        "logistic regression, 100 agents, by what works at once: wall ms a round",
        ("what", "how many", "wall ms", "fastest", "times as fast (quartiles)"),
        [
            (
                name,
                *(joined(one[key]) for key in ("counts", "seconds", "fastest")),
                one["times_as_fast"],
            )
            for name, one in at_once.items()
        ],
    )
    save(f"{options.output}.json", {"machine": machine(), "sweeps": found} | at_once)
    from sottovoce.charts import picture
    from sottovoce.storage.files import write_atomic

    write_atomic(Path(f"{options.output}.svg"), picture(chart(found), "svg"))


if __name__ == "__main__":
    main()
