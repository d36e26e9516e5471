"""A process that answers a line of JSON with the CPU seconds of a round: one revision's sources.

    {"work": "logistic", "agents": 20, "steps": 50, "algorithm": "pdsgd", "exact": false}

It runs in the folder of a checkout with that checkout on its path, and times the checkout's own
`benchmarks.workloads`, so that sources whose names have moved since can be compared. What differs
between revisions beyond that, since 0.1, is told apart here.
"""

import inspect
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from benchmarks import workloads

import sottovoce
from sottovoce import ring, simulate

WARM = 3
"""Rounds before the clock starts."""


def parsed(text: str) -> Any:
    """A rule from its text, wherever this revision parses it."""
    for place in ("sottovoce.mechanisms", "sottovoce.algorithms"):
        try:
            return import_module(place).parse_algorithm(text)
        except ModuleNotFoundError:
            continue
    raise ValueError("this revision parses no text as an algorithm")


def options(**wanted: Any) -> dict[str, Any]:
    """The options of `simulate` as this revision takes them: one object, or keywords in 0.1."""
    if "options" in inspect.signature(simulate).parameters:
        return {"options": import_module("sottovoce.simulation").Options(**wanted)}
    return wanted


def respond(
    work: str, agents: int, steps: int, algorithm: str = "pdsgd", exact: bool = False
) -> dict[str, Any]:
    """CPU seconds of a round on a ring, or why this revision cannot say."""
    try:
        rule, problem = parsed(algorithm), workloads.PROBLEMS[work](agents)
    except (ValueError, KeyError) as error:
        return {"refused": str(error)}
    clocked = workloads.Clocked(problem)
    last = steps + WARM
    simulate(clocked, rule, ring(agents), steps=last, **options(measure=[last], exact=exact))
    return {"seconds": (clocked.ticks[-1] - clocked.ticks[WARM]) / steps}


def main() -> None:
    torch.set_num_threads(1)
    for module in (sottovoce, workloads):
        if not Path(module.__file__ or "").resolve().is_relative_to(Path.cwd().resolve()):
            sys.exit(f"error: {module.__name__} came from {module.__file__}, not from {Path.cwd()}")
    for line in sys.stdin:
        print(json.dumps(respond(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
