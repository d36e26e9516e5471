"""How fast the simulator is on a CPU, beside other programs that compute the same: `make bench`.

    OMP_NUM_THREADS=1 python -m benchmarks.cpu [--only logistic,softmax] [--peer]
    OMP_NUM_THREADS=1 python -m benchmarks.cpu --against HEAD~1

Every figure is a ratio to something that ran by turns with it, in CPU seconds on one thread.
Prints a table and writes JSON with machine, versions and commit.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.baselines import NumpyDSGD, TorchLoop, seconds_of_copying
from benchmarks.common import (
    ONE_THREAD,
    ROOT,
    Ratio,
    Worker,
    by_turns,
    git,
    machine,
    ratio,
    save,
    show,
    simulator,
)
from benchmarks.workloads import (
    BATCH,
    CLASSES,
    DIMENSION,
    SAMPLES,
    cnn,
    logistic,
    seconds_a_round,
    softmax,
    softmax_data,
    tanh_cnn,
)
from torch import nn

from sottovoce import DSGD, PDSGD, ring
from sottovoce.mechanisms import Clip
from sottovoce.randomness import private_streams

PEER, PEER_PYTHON = "decent-bench==0.3.0", "3.13"
PARTS = ("logistic", "softmax", "privacy", "cipher")
AGAINST = (
    ("logistic", "pdsgd", 100, 20),
    ("logistic float32", "pdsgd", 100, 20),
    ("softmax", "pdsgd", 100, 10),
    *(("logistic", rule, 20, 50) for rule in ("pdsgd", "dsgd", "pdsgd:coordinate")),
    ("logistic", "zero-sum:0.1", 20, 20),
    ("logistic", "pdsgd, message by message", 20, 20),
)
"""What revisions are compared by: problem, algorithm, agents, rounds."""
SLOWER = 0.95
"""A revision is called faster than these sources where the whole interval lies below."""
RUNS_TOGETHER = {1: "", 32: ", 32 runs at once"}
"""Studies average over runs, and the simulator takes them together; times are for one of them."""

Row = dict[str, Any]


def compared(
    subject: str, times: dict[str, list[float]], ours: str, per: float, wanted: dict[str, float]
) -> list[Row]:
    """Rows of the table: how many times as fast as each of the others ours is.

    per: units of work (agent-steps, bytes) in one of the measured times. wanted: the smallest
    ratios that we set out to reach, by the other's name.
    """
    rate = per / statistics.median(times[ours])
    rows = []
    for other in times:
        if other != ours:
            found = ratio(times[other], times[ours])
            rows.append(
                {
                    "subject": subject,
                    "ours": ours,
                    "other": other,
                    "ratio": found,
                    "wanted": wanted.get(other),
                    "ours_per_second": rate,
                    "other_per_second": per / statistics.median(times[other]),
                }
            )
    return rows


def bare_numpy(agents: int, steps: int, dtype: torch.dtype) -> Callable[[], float]:
    """The same problem by a bare numpy program that draws nothing: CPU seconds of a round."""
    problem = logistic(agents, dtype)
    features = -problem._rows.view(agents, SAMPLES, DIMENSION).numpy()
    program = NumpyDSGD(features, ring(agents), problem.regularisation)
    chosen = np.random.default_rng(0).integers(0, SAMPLES, (steps, agents, BATCH))

    def timed() -> float:
        program.step(chosen[0], 0.1)
        begun = time.process_time()
        for numbers in chosen:
            program.step(numbers, 0.1)
        return (time.process_time() - begun) / steps

    return timed


def logistic_rows(agents: int, repetitions: int, peer: Worker | None) -> list[Row]:
    """PDSGD on logistic regression beside bare numpy and beside decent-bench."""
    steps, graph = max(10, 2000 // agents), ring(agents)
    precisions = {"float64": torch.float64, "float32": torch.float32}
    works: dict[str, Callable[[], float]] = {}
    for name, dtype in precisions.items():
        problem = logistic(agents, dtype)
        for runs, shown in RUNS_TOGETHER.items():
            works[f"PDSGD, {name}{shown}"] = lambda p=problem, r=runs: (  # type: ignore[misc]
                seconds_a_round(p, PDSGD(), graph, max(10, steps // r), r) / r
            )
        works[f"numpy DSGD, {name}"] = bare_numpy(agents, steps, dtype)
    if peer:
        for name, whole in (("decent-bench DGD", False), ("decent-bench DGD, no drawing", True)):
            works[name] = lambda w=whole: float(  # type: ignore[misc]
                peer.ask(agents=agents, steps=steps, whole=w)["seconds"]
            )
    times = by_turns(works, repetitions)
    wanted = {"decent-bench DGD": 5.0 if agents >= 20 else 0.0}
    wanted["numpy DSGD, float64"] = {5: 0.4, 20: 0.6}.get(agents, 0.0)
    rows = []
    for name in precisions:
        numpy_name = f"numpy DSGD, {name}"
        others = [numpy_name, *(other for other in times if "decent-bench" in other)]
        for shown in RUNS_TOGETHER.values():
            ours = f"PDSGD, {name}{shown}"
            part = {one: times[one] for one in (ours, *others)}
            rows += compared(f"logistic, {agents} agents", part, ours, agents, wanted)
    return rows


def softmax_rows(agents: int, repetitions: int) -> list[Row]:
    """PDSGD on softmax regression beside a plain loop over torch modules."""
    steps, graph, problem = 10, ring(agents), softmax(agents)
    loop = TorchLoop(nn.Linear(DIMENSION, CLASSES), softmax_data(agents), graph)
    chosen = torch.randint(SAMPLES, (steps, agents, BATCH))

    def plain() -> float:
        begun = time.process_time()
        for numbers in chosen:
            loop.step(numbers, 0.01)
        return (time.process_time() - begun) / steps

    times = by_turns(
        {
            "PDSGD": lambda: seconds_a_round(problem, PDSGD(), graph, steps),
            "loop over torch modules": plain,
        },
        repetitions,
    )
    wanted = {"loop over torch modules": 3.0}
    return compared(f"softmax, {agents} agents", times, "PDSGD", agents, wanted)


def privacy_rows(repetitions: int) -> list[Row]:
    """What privacy costs: DSGD beside PDSGD, and PDSGD beside itself with clipped samples."""
    rows = []
    for name, problem, steps in (
        ("logistic, 20 agents", logistic(20), 50),
        ("the tanh CNN, 5 agents", tanh_cnn(), 2),
        ("the paper's CNN, 5 agents", cnn(), 1),
    ):
        algorithms = {"DSGD": DSGD(), "PDSGD": PDSGD(), "PDSGD, clipped": PDSGD() + Clip(1.0)}
        times = by_turns(
            {
                shown: lambda a=algorithm, p=problem, n=steps: seconds_a_round(
                    p, a, ring(p.agents), n
                )
                for shown, algorithm in algorithms.items()
            },
            repetitions,
        )
        for ours, other in (("PDSGD", "DSGD"), ("PDSGD, clipped", "PDSGD")):
            part = {one: times[one] for one in (ours, other)}
            rows += compared(name, part, ours, problem.agents, {})
    return rows


def cipher_rows(repetitions: int) -> list[Row]:
    """Private numbers beside a bare copy of the same bytes, and their share of a round."""
    agents, rounds = 100, 20
    gradient = torch.ones(1, agents, DIMENSION, dtype=torch.float64)
    size = gradient.numel() * gradient.element_size()
    streams = private_streams(1, agents)

    def draw() -> float:
        begun = time.process_time()
        for round in range(1, rounds + 1):
            streams.scale_(gradient, 0.5, 1.5, "stepsize", round)
        return (time.process_time() - begun) / rounds

    problem, graph = logistic(agents), ring(agents)
    times = by_turns(
        {
            "draw and multiply": draw,
            "bare copy of as many bytes": lambda: seconds_of_copying(size),
            "whole round of PDSGD": lambda: seconds_a_round(problem, PDSGD(), graph, 20),
        },
        repetitions,
    )
    return compared(f"stepsizes of {agents} agents, float64", times, "draw and multiply", size, {})


def against_rows(revision: str, repetitions: int, notes: list[str]) -> list[Row]:
    """The same rounds by these sources and by another revision's, in two processes by turns.

    Each process times its own revision's `benchmarks/workloads.py`, so that names may have moved.
    """
    rows = []
    with other_tree(revision) as tree, simulator() as here, simulator(tree) as there:
        workers = {"these sources": here, revision: there}
        for work, named, agents, steps in AGAINST:
            rule, _, exact = named.partition(", ")
            question = {"work": work, "algorithm": rule, "agents": agents, "exact": bool(exact)}
            subject = f"{work}, {named}, {agents} agents"
            refused = {
                name: answer["refused"]
                for name, worker in workers.items()
                if "refused" in (answer := worker.ask(**question, steps=1))
            }
            if refused:
                notes += [f"{subject}: {name} says {why}" for name, why in refused.items()]
                continue
            times = by_turns(
                {
                    name: lambda w=worker, q=question, n=steps: w.ask(**q, steps=n)["seconds"]
                    for name, worker in workers.items()
                },
                repetitions,
            )
            rows += compared(subject, times, "these sources", agents, {})
    slower = [row["subject"] for row in rows if row["ratio"].high < SLOWER]
    notes.append(
        f"slower than {revision} (the interval lies below {SLOWER}): {'; '.join(slower)}"
        if slower
        else f"no row's interval lies below {SLOWER} of {revision}'s speed"
    )
    return rows


@contextmanager
def other_tree(revision: str) -> Iterator[Path]:
    """A revision's files, in a worktree of their own that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="sottovoce-against-") as folder:
        tree = Path(folder).resolve() / "tree"
        subprocess.run(
            ["git", "worktree", "add", "--detach", "--force", str(tree), revision],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def real_interpreter(python: str) -> Path | str:
    """The interpreter behind a name, which may be that of a version manager's shim; or why none."""
    found = shutil.which(python)
    if found is None:
        return f"{python} was not found; name a Python {PEER_PYTHON} with --peer-python"
    said = ""
    # A shim of pyenv runs nothing until it is told which version is meant.
    for environment in ({}, {"PYENV_VERSION": PEER_PYTHON}):
        done = subprocess.run(
            [found, "-c", "import sys; print(sys.executable)"],
            env=os.environ | environment,
            capture_output=True,
            text=True,
        )
        if not done.returncode:
            return Path(done.stdout.strip())
        said = said or done.stderr.strip().partition("\n")[0]
    return f"{found} does not run ({said}); name a Python {PEER_PYTHON} with --peer-python"


def peer_command(python: str, environment: str | None) -> list[str] | str:
    """How to start decent-bench, its environment made first; or why that cannot be."""
    folder = Path(environment or ROOT / "sottovoce-results" / "peer")
    found = folder / "bin" / "python"
    if not found.exists():
        interpreter = real_interpreter(python)
        if isinstance(interpreter, str):
            return interpreter
        for command in (
            [str(interpreter), "-m", "venv", str(folder)],
            [str(found), "-m", "pip", "install", "--quiet", PEER],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                shutil.rmtree(folder, ignore_errors=True)
                return f"{' '.join(command)} failed: {done.stderr.strip().splitlines()[-1:]}"
    return [str(found), str(ROOT / "benchmarks" / "peer.py")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", help=f"some of {','.join(PARTS)}; unless given all, or with --against none"
    )
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--peer", action="store_true", help=f"compare with {PEER}, too")
    parser.add_argument("--peer-environment", help="a virtual environment that has it")
    parser.add_argument(
        "--peer-python", default=f"python{PEER_PYTHON}", help="what makes that environment"
    )
    parser.add_argument("--against", metavar="REVISION", help="compare with another revision")
    parser.add_argument("--output", default="sottovoce-results/bench-cpu.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    alone = options.against and not options.peer
    chosen = options.only.split(",") if options.only else () if alone else PARTS
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"--only does not know {', '.join(unknown)}; accepted: {', '.join(PARTS)}")
    repetitions = options.repetitions
    rows: list[Row] = []
    notes: list[str] = []
    if "logistic" in chosen:
        command: list[str] | str = "--peer was not given"
        if options.peer:
            command = peer_command(options.peer_python, options.peer_environment)
        if isinstance(command, str):
            notes.append(f"no comparison with decent-bench: {command}")
            for agents in (5, 20, 100):
                rows += logistic_rows(agents, repetitions, None)
        else:
            with Worker(command, ROOT, **ONE_THREAD) as peer:
                for agents in (5, 20, 100):
                    rows += logistic_rows(agents, repetitions, peer)
    if "softmax" in chosen:
        rows += softmax_rows(100, repetitions)
    if "privacy" in chosen:
        rows += privacy_rows(repetitions)
    if "cipher" in chosen:
        found = cipher_rows(repetitions)
        share = 1 / found[-1]["ratio"].median
        notes.append(
            f"private numbers: {found[0]['ours_per_second'] / 1e6:,.0f} MB a second (300 wanted), "
            f"{share:.0%} of a round"
        )
        rows += found
    if options.against and git("rev-parse", "--verify", f"{options.against}^{{commit}}"):
        rows += against_rows(options.against, repetitions, notes)
    elif options.against:
        notes.append(f"no comparison with {options.against}: no such revision, or no repository")
    facts = machine()
    report(rows, notes, facts)
    kept = [row | {"ratio": vars(row["ratio"])} for row in rows]
    save(options.output, {"machine": facts, "notes": notes, "rows": kept})


def report(rows: list[Row], notes: list[str], facts: dict[str, Any]) -> None:
    """Print the table and what is to be said about it."""
    show(
        f"CPU seconds of others over ours, medians by turns, one thread ({facts['processor']})",
        ("what", "ours", "beside", "times as fast (quartiles)", "wanted", "ours a second"),
        [
            (
                row["subject"],
                row["ours"],
                row["other"],
                row["ratio"],
                verdict(row["ratio"], row["wanted"]),
                f"{row['ours_per_second']:,.0f}",
            )
            for row in rows
        ],
    )
    for note in notes:
        print(note)


def verdict(found: Ratio, wanted: float | None) -> str:
    if not wanted:
        return ""
    return f"{wanted:g}: {'reached' if found.median >= wanted else 'missed'}"


if __name__ == "__main__":
    main()
