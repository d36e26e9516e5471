"""What a simulation computes, what decides its numbers, and the state from which it goes on."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sottovoce.graphs import Graph
from sottovoce.mechanisms import Mechanism
from sottovoce.problems.base import Problem
from sottovoce.simulation.options import Options
from sottovoce.stepsizes import Stepsize
from sottovoce.storage.store import Store

SECONDS_BETWEEN_CHECKPOINTS = 60.0
_MEMORY = "memory"


def describe(
    problem: Problem,
    algorithm: Mechanism,
    graph: Graph,
    stepsize: Stepsize,
    steps: int,
    runs: range,
    private_start: float,
    insecure_seed: int | None,
) -> dict[str, Any]:
    """What a simulation computes, as JSON: a result's facts."""
    return {
        "problem": problem.describe(),
        "algorithm": algorithm.spec,
        "stepsize": stepsize.describe(),
        "graph": graph.describe(),
        "steps": steps,
        "runs": len(runs),
        **({"first_run": runs.start} if runs.start else {}),
        "private_start": private_start,
        "insecure_seed": insecure_seed,
    }


def simulation_spec(
    problem: Problem,
    algorithm: Mechanism,
    graph: Graph,
    stepsize: Stepsize,
    steps: int,
    rounds: list[int],
    options: Options,
    insecure_seed: int | None,
) -> dict[str, Any]:
    """All that decides the numbers of every run, as JSON: what a stored part is found by.

    rounds: those measured. Recorded rounds count because they are computed message by message.
    """
    record = options.record
    return {
        "kind": "simulation",
        "problem": problem.spec,
        "algorithm": algorithm.spec,
        "graph": graph.spec,
        "stepsize": stepsize.spec,
        "steps": steps,
        "measured": rounds,
        "recorded": record and [sorted(record.rounds), sorted(record.runs)],
        "exact": options.exact,
        "private_start": options.private_start,
        "insecure_seed": insecure_seed,
    }


@dataclass(frozen=True)
class Saved:
    """States (runs, agents, d) after a round, what was measured until then, and what parts keep."""

    round: int
    state: Tensor
    measured: dict[int, dict[str, Tensor]]
    memory: dict[str, Tensor]


class Checkpoint:
    """The state of one chunk of runs in a store, kept now and then and at the end."""

    def __init__(
        self, store: Store, spec: Mapping[str, Any], runs: range, device: torch.device
    ) -> None:
        self.store, self.runs, self.device = store, runs, device
        self.spec = {**spec, "runs": [runs.start, runs.stop]}
        self.saved_at = time.monotonic()

    def load(self) -> Saved | None:
        """Where the same simulation was stopped, or finished."""
        if (found := self.store.load(self.spec)) is None:
            return None
        tensors = {name: tensor.to(self.device) for name, tensor in found.tensors.items()}
        state, round = tensors.pop("state"), found.facts["round"]
        measured: dict[int, dict[str, Tensor]] = {}
        memory: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            at, _, rest = name.partition(".")
            held = memory if at == _MEMORY else measured.setdefault(int(at), {})
            held[rest] = tensor
        runs = f"runs {self.runs.start} to {self.runs.stop - 1}"
        done = "all" if round == self.spec["steps"] else "the first"
        self.store.say(f"reused {done} {round} rounds of {runs} from {self.store.folder}")
        return Saved(round, state, dict(sorted(measured.items())), memory)

    def maybe_save(self, now: Saved, final: bool) -> None:
        """Save at the end, and otherwise once a minute."""
        if final or time.monotonic() - self.saved_at > SECONDS_BETWEEN_CHECKPOINTS:
            self.save(now)

    def save(self, now: Saved) -> None:
        """Keep the states, and all that was measured or is remembered."""
        tensors = {
            f"{at}.{name}": values
            for at, found in (*now.measured.items(), (_MEMORY, now.memory))
            for name, values in found.items()
        }
        self.store.save(self.spec, {"state": now.state, **tensors}, {"round": now.round})
        self.saved_at = time.monotonic()


def runs_at_once(problem: Problem, store: Store, spec: Mapping[str, Any], runs: range) -> int:
    """How many runs to simulate together; a simulation that goes on keeps what it first chose."""
    chosen = problem.runs_at_once() or len(runs)
    plan = {**spec, "kind": "plan", "runs": [runs.start, runs.stop]}
    if found := store.load(plan):
        return int(found.facts["runs_at_once"])
    store.save(plan, {}, {"runs_at_once": chosen})
    return chosen
