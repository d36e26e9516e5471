"""What a simulation is, and the state in which it can be continued."""

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sottovoce.errors import ResultError
from sottovoce.graphs import Graph
from sottovoce.mechanisms import Algorithm
from sottovoce.problems.base import Problem
from sottovoce.stepsizes import Stepsize
from sottovoce.storage.files import write_json
from sottovoce.storage.tensors import read_tensors, write_tensors

SECONDS_BETWEEN_CHECKPOINTS = 60.0


def describe(
    problem: Problem,
    algorithm: Algorithm,
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
        "algorithm": algorithm.describe(),
        "stepsize": stepsize.describe(),
        "graph": graph.describe(),
        "steps": steps,
        "runs": len(runs),
        **({"first_run": runs.start} if runs.start else {}),
        "private_start": private_start,
        "insecure_seed": insecure_seed,
    }


@dataclass(frozen=True)
class Saved:
    round: int
    state: Tensor
    measured: dict[int, dict[str, Tensor]]


class Checkpoint:
    """The checkpoint of one chunk of runs: one file, replaced in one step."""

    def __init__(self, folder: str | Path, runs: range, identity: str) -> None:
        self.path = Path(folder) / f"runs-{runs.start}-{runs.stop - 1}.safetensors"
        self.digest = hashlib.sha256(identity.encode()).hexdigest()
        self.saved_at = time.monotonic()

    def load(self) -> Saved | None:
        if not self.path.exists():
            return None
        tensors, facts = read_tensors(self.path)
        if facts.get("digest") != self.digest:
            raise ResultError(
                f"{self.path} belongs to a simulation with other settings; "
                "give another checkpoint folder or remove this one"
            )
        measured: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name != "state":
                round, _, metric = name.partition(".")
                measured.setdefault(int(round), {})[metric] = tensor
        return Saved(facts["round"], tensors["state"], dict(sorted(measured.items())))

    def maybe_save(
        self, round: int, state: Tensor, measured: dict[int, dict[str, Tensor]], final: bool
    ) -> None:
        if final or time.monotonic() - self.saved_at > SECONDS_BETWEEN_CHECKPOINTS:
            self.save(round, state, measured)

    def save(self, round: int, state: Tensor, measured: dict[int, dict[str, Tensor]]) -> None:
        tensors = {
            f"{at}.{name}": values
            for at, found in measured.items()
            for name, values in found.items()
        }
        facts = {"digest": self.digest, "round": round}
        write_tensors(self.path, {"state": state, **tensors}, facts)
        self.saved_at = time.monotonic()


def runs_at_once(problem: Problem, checkpoint: str | Path | None) -> int | None:
    """How many runs to simulate together; a checkpoint folder keeps what was first chosen."""
    chosen = problem.runs_at_once()
    if checkpoint is None or chosen is None:
        return chosen
    plan = Path(checkpoint) / "plan.json"
    if plan.exists():
        try:
            return int(json.loads(plan.read_text())["runs_at_once"])
        except (ValueError, KeyError, TypeError) as error:
            raise ResultError(f"{plan} is not a checkpoint's plan; remove its folder") from error
    write_json(plan, {"runs_at_once": chosen})
    return chosen
