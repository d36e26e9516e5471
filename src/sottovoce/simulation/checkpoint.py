"""What a simulation computes, what decides its numbers, and the state from which it goes on."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from sottovoce.errors import SimulationError
from sottovoce.graphs import Graph
from sottovoce.mechanisms import Flow, Mechanism
from sottovoce.problems.base import Problem
from sottovoce.simulation.options import Options
from sottovoce.stepsizes import Stepsize
from sottovoce.storage.store import Store

SECONDS_BETWEEN_CHECKPOINTS = 60.0
_MEMORY = "memory"


Measured = dict[int, dict[str, Tensor]]
"""What was measured after which round, by name."""


@dataclass(frozen=True, eq=False)
class Task:
    """What a simulation computes, whichever runs of it."""

    problem: Problem
    mechanism: Mechanism
    graph: Graph
    stepsize: Stepsize
    steps: int
    options: Options
    insecure_seed: int | None

    @cached_property
    def rounds(self) -> list[int]:
        """After which rounds to measure, ascending."""
        if self.options.measure is None:
            spread = np.geomspace(1, self.steps, 100).round().astype(int)
            return sorted({0, *spread.tolist()})
        rounds = sorted(set(self.options.measure))
        if not rounds or rounds[0] < 0 or rounds[-1] > self.steps:
            raise SimulationError(
                f"cannot measure after rounds {rounds[:3]}...{rounds[-1:]}: rounds go from 0 to "
                f"{self.steps}"
            )
        return rounds

    def facts(self, runs: range) -> dict[str, Any]:
        """What is simulated, as JSON: a result's facts."""
        sampling = self.problem.sampling
        return {
            "problem": self.problem.describe(),
            "algorithm": self.mechanism.spec,
            "stepsize": self.stepsize.describe(),
            "graph": self.graph.describe(),
            "public": {
                "graph": self.graph.spec,
                "stepsize": self.stepsize.spec,
                "sampling": sampling and {**asdict(sampling), "samples": list(sampling.samples)},
            },
            "steps": self.steps,
            "runs": len(runs),
            **({"first_run": runs.start} if runs.start else {}),
            "private_start": self.options.private_start,
            "insecure_seed": self.insecure_seed,
            **self._masked,
        }

    @property
    def _masked(self) -> dict[str, str]:
        """What kind of links the numbers depend on; plain ones are not mentioned."""
        return {"links": self.options.links} if self.options.links != "plain" else {}

    @property
    def spec(self) -> dict[str, Any]:
        """All that decides the numbers of every run, as JSON: what a stored part is found by.

        Recorded rounds count because they are computed message by message.
        """
        record = self.options.record
        return {
            "kind": "simulation",
            "problem": self.problem.spec,
            "algorithm": self.mechanism.spec,
            "graph": self.graph.spec,
            "stepsize": self.stepsize.spec,
            "steps": self.steps,
            "measured": self.rounds,
            "recorded": record and [sorted(record.rounds), sorted(record.runs)],
            "exact": self.options.exact,
            "private_start": self.options.private_start,
            "insecure_seed": self.insecure_seed,
            **self._masked,
        }


class Checkpoint:
    """The state of one chunk of runs in a store, kept now and then and at the end."""

    def __init__(self, store: Store, spec: Mapping[str, Any], runs: range) -> None:
        self.store, self.runs = store, runs
        self.spec = {**spec, "runs": [runs.start, runs.stop]}
        self.saved_at = time.monotonic()

    def load(self, flow: Flow) -> tuple[int, Measured]:
        """Put `flow` where the same simulation was stopped, or finished.

        Returns after how many rounds that was, and what was measured until then.
        """
        measured: Measured = {}
        if (found := self.store.load(self.spec)) is None:
            return 0, measured
        tensors = {name: tensor.to(flow.x.device) for name, tensor in found.tensors.items()}
        flow.x.copy_(tensors.pop("state"))
        for name, tensor in tensors.items():
            at, _, rest = name.partition(".")
            held = flow.memory if at == _MEMORY else measured.setdefault(int(at), {})
            held[rest] = tensor
        round = int(found.facts["round"])
        runs = f"runs {self.runs.start} to {self.runs.stop - 1}"
        done = "all" if round == self.spec["steps"] else "the first"
        self.store.say(f"reused {done} {round} rounds of {runs} from {self.store.folder}")
        return round, dict(sorted(measured.items()))

    def is_due(self) -> bool:
        """Whether a minute has passed since the last save; never where nothing is kept."""
        if self.store.folder is None:
            return False
        return time.monotonic() - self.saved_at > SECONDS_BETWEEN_CHECKPOINTS

    def save(self, round: int, flow: Flow, measured: Measured) -> None:
        """Keep the states (runs, agents, d), and all that was measured or is remembered."""
        tensors = {
            f"{at}.{name}": values
            for at, found in (*measured.items(), (_MEMORY, flow.memory))
            for name, values in found.items()
        }
        self.store.save(self.spec, {"state": flow.x, **tensors}, {"round": round})
        self.saved_at = time.monotonic()


def runs_at_once(problem: Problem, store: Store, spec: Mapping[str, Any], runs: range) -> int:
    """How many runs to simulate together; a simulation that goes on keeps what it first chose."""
    chosen = problem.runs_at_once() or len(runs)
    plan = {**spec, "kind": "plan", "runs": [runs.start, runs.stop]}
    if found := store.load(plan):
        return int(found.facts["runs_at_once"])
    store.save(plan, {}, {"runs_at_once": chosen})
    return chosen
