"""What every benchmark shares: the machine, repetitions by turns, ratios, tables and JSON."""

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sottovoce.storage.files import write_json

ROOT = Path(__file__).resolve().parent.parent
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def machine() -> dict[str, Any]:
    """Processor, memory, threads and versions: what a figure depends on."""
    import torch

    packages = ("sottovoce", "torch", "numpy", "scipy", "cryptography", "triton")
    facts = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "versions": {"python": platform.python_version()}
        | {name: found for name in packages if (found := _version(name))},
        "commit": commit(),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git(*arguments: str) -> str | None:
    """What git answers about this project; None where there is no git or no repository."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def commit() -> str | None:
    """The commit measured, with a mark where files differ from it."""
    changed = git("status", "--porcelain", "--untracked-files=no")
    name = git("rev-parse", "--short", "HEAD")
    return f"{name} with changes" if name and changed else name


@dataclass(frozen=True)
class Ratio:
    """Median and quartiles of the ratios of one repetition to its neighbour in time."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Compare two things that were measured by turns."""
    ratios = [above / below for above, below in zip(numerators, denominators, strict=True)]
    if len(ratios) == 1:
        return Ratio(ratios[0], ratios[0], ratios[0])
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(median, low, high)


def by_turns(works: Mapping[str, Callable[[], float]], repetitions: int) -> dict[str, list[float]]:
    """Let works take turns, so that all meet the same load; each says what it took.

    The first turn warms up and is left out.
    """
    found: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repetitions + 1):
        for name, work in works.items():
            took = work()
            if turn:
                found[name].append(took)
    return found


class Worker:
    """A process in the folder `cwd` that answers a line of JSON with a line of JSON."""

    def __init__(self, command: Sequence[str], cwd: Path = ROOT, **environment: str) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
            cwd=cwd,
        )

    def ask(self, **question: Any) -> dict[str, Any]:
        """Send a question and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended with {self._process.wait()}")
        return dict(json.loads(line))

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def simulator(tree: Path = ROOT) -> Worker:
    """A process of one thread that times the simulator of a checkout (`benchmarks/worker.py`)."""
    # -P: the script's own folder is not on the path, so that all but itself is the checkout's.
    command = [sys.executable, "-P", str(ROOT / "benchmarks" / "worker.py")]
    path = os.pathsep.join([str(tree / "src"), str(tree)])
    return Worker(command, tree, PYTHONPATH=path, **ONE_THREAD)


def show(title: str, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(str, row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    console.print(table)


def save(path: str | Path, content: Any) -> None:
    """Write figures as JSON and say where."""
    write_json(path, content)
    print(f"written: {path}")
