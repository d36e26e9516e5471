"""What an audit attacks: a recorded transcript, and apart from it the images behind it."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sottovoce.errors import AttackError
from sottovoce.graphs import Graph
from sottovoce.mechanisms import Algorithm
from sottovoce.privacy.readers.matching import Inputs
from sottovoce.problems import ModuleProblem
from sottovoce.randomness import private_streams
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Recording, Transcript
from sottovoce.stepsizes import Deterministic, Stepsize
from sottovoce.storage.tensors import load_pair, save_pair


@dataclass(frozen=True, eq=False)
class Recorded:
    """A transcript, and the private batches of the rounds to be attacked, to score attacks with.

    images: by round, (runs, agents, batch, *shape) in pixel space; labels: by round, (runs, agents,
    batch); mean_image: (*shape), the mean of all training images.
    """

    transcript: Transcript
    images: dict[int, Tensor]
    labels: dict[int, Tensor]
    mean_image: Tensor
    accuracy: float | None = None
    """Training accuracy after the last round, where there are classes."""

    def save(self, stem: str | Path) -> None:
        """Write `stem` (transcript) and `stem-truth`; the files hold every agent's secrets."""
        self.transcript.save(stem)
        tensors = {"mean_image": self.mean_image}
        for round in self.images:
            tensors |= {
                f"images.{round}": self.images[round],
                f"labels.{round}": self.labels[round],
            }
        facts: dict[str, Any] = {"kind": "audited images", "accuracy": self.accuracy}
        save_pair(f"{stem}-truth", tensors, facts)

    @classmethod
    def load(cls, stem: str | Path) -> "Recorded":
        """Read what `save` wrote."""
        tensors, facts = load_pair(f"{stem}-truth", "audited images")
        rounds = [int(name.partition(".")[2]) for name in tensors if name.startswith("images.")]
        return cls(
            Transcript.load(stem),
            {round: tensors[f"images.{round}"] for round in sorted(rounds)},
            {round: tensors[f"labels.{round}"] for round in sorted(rounds)},
            tensors["mean_image"],
            facts["accuracy"],
        )


def record(
    problem: ModuleProblem,
    algorithm: Algorithm,
    graph: Graph,
    inputs: Inputs,
    *,
    stepsize: Stepsize,
    attacked: Collection[int],
    recorded: Collection[int],
    runs: int,
    insecure_seed: int,
    private_start: float = 0.0,
    progress: bool = False,
) -> Recorded:
    """Train for as long as the recorded rounds ask, and keep what an audit needs.

    The seed lets the same private draws be made again, so that the batches behind the attacked
    rounds are known for scoring.
    """
    if min(attacked) < 1:
        raise AttackError(f"cannot attack round {min(attacked)}; rounds count from 1")
    steps = max(recorded)
    result = simulate(
        problem,
        algorithm,
        graph,
        steps=steps,
        runs=runs,
        stepsize=stepsize,
        insecure_seed=insecure_seed,
        options=Options(
            measure=[steps],
            record=Recording(sorted(recorded), range(runs)),
            private_start=private_start,
            progress=progress,
        ),
    )
    assert result.transcript is not None
    streams = private_streams(
        runs, problem.agents, insecure_seed=insecure_seed, device=problem.device
    )
    batches = {round: problem.samples(streams, round) for round in sorted(attacked)}
    accuracy = result.metrics.get("training_accuracy")
    return Recorded(
        result.transcript,
        {round: inputs.pixels(x).cpu() for round, (x, _) in batches.items()},
        {round: y.cpu() for round, (_, y) in batches.items()},
        inputs.pixels(problem.mean_input()).cpu(),
        None if accuracy is None else float(accuracy[-1].mean()),
    )


def suited(stepsize: Stepsize, algorithm: Algorithm) -> Stepsize:
    """The same schedule under the law that an algorithm uses: DSGD draws no private stepsizes."""
    if isinstance(algorithm.default_stepsize.law, Deterministic):
        return Stepsize(stepsize.schedule, Deterministic(), stepsize.per)
    return stepsize


def chosen_targets(agents: list[int], runs: int, targets: int) -> list[tuple[int, int]]:
    """Pairs (run, agent) to attack, all agents of a run before the next run."""
    pairs = [(run, agent) for run in range(runs) for agent in agents]
    if not agents or len(pairs) < targets:
        raise AttackError(f"{targets} targets were asked for, but there are only {len(pairs)}")
    return pairs[:targets]


def at_targets(values: Tensor, pairs: list[tuple[int, int]]) -> Tensor:
    """Pick (targets, ...) from (runs, agents, ...)."""
    runs, agents = (torch.tensor(part) for part in zip(*pairs, strict=True))
    return values[runs, agents]
