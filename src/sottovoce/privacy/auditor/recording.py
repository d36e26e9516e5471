"""What an audit attacks: a recorded transcript, and apart from it the images behind it."""

import secrets
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sottovoce.errors import AttackError
from sottovoce.graphs import Graph
from sottovoce.mechanisms import Mechanism
from sottovoce.privacy.auditor.settings import AuditSettings
from sottovoce.privacy.readers import Answer, Inputs
from sottovoce.problems import ModuleProblem
from sottovoce.randomness import private_streams
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Recording, Transcript
from sottovoce.stepsizes import Deterministic, Stepsize
from sottovoce.storage.identity import fingerprint
from sottovoce.storage.tensors import load_pair, save_pair

_NEARBY = 20_000
"""Records behind recorded rounds that are kept."""
Pairs = list[tuple[int, int]]
"""Targets: (run, agent) each."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """A transcript, and the private batches of the rounds to be attacked, to score attacks with.

    images: by round, (runs, agents, batch, *shape) in pixel space; labels: by round, (runs, agents,
    batch); mean_image: (*shape), the mean of all training images. nearby: (n, *shape), the records
    behind all recorded rounds, where they are known and not too many.
    """

    transcript: Transcript
    images: dict[int, Tensor]
    labels: dict[int, Tensor]
    mean_image: Tensor
    accuracy: float | None = None
    """Training accuracy after the last round, where there are classes."""
    nearby: Tensor | None = None

    @classmethod
    def of(
        cls,
        problem: ModuleProblem,
        inputs: Inputs,
        transcript: Transcript,
        rounds: Collection[int],
        insecure_seed: int,
    ) -> "Recorded":
        """A simulated transcript with the batches behind some rounds.

        The seed of the simulation lets the same private draws be made again.
        """
        streams = private_streams(
            range(max(transcript.runs) + 1),
            problem.agents,
            insecure_seed=insecure_seed,
            device=problem.device,
        )
        if problem.sampling.poisson:
            raise AttackError(
                "a Poisson sample has no fixed number of records to look for; audit the same "
                "training with batches of a fixed size"
            )
        batches = {round: problem.samples(streams, round) for round in sorted(rounds)}
        count = len(transcript.rounds) * len(transcript.runs) * problem.agents * problem.batch
        around = transcript.rounds if count <= _NEARBY else []
        drawn = [problem.samples(streams, k)[0][transcript.runs].flatten(0, 2) for k in around]
        return cls(
            transcript,
            {k: inputs.pixels(x[transcript.runs]).cpu() for k, (x, _) in batches.items()},
            {k: y[transcript.runs].cpu() for k, (_, y) in batches.items()},
            inputs.pixels(problem.mean_input()).cpu(),
            nearby=inputs.pixels(torch.cat(drawn)).cpu() if drawn else None,
        )

    def answer(self, pairs: Pairs, round: int) -> Answer:
        """The truth about some targets in a round."""
        at, truth = self.transcript.rounds.index(round), self.transcript.truth
        return Answer(
            at_targets(self.images[round], pairs),
            at_targets(self.labels[round], pairs),
            at_targets(truth.gradients[at], pairs),
            at_targets(truth.states[at], pairs),
        )

    def pairs(self, agents: list[int], targets: int, a_run: int | None = None) -> Pairs:
        """Pairs (run, agent) to attack, `a_run` agents of a run, or all, before the next run."""
        runs, some = len(self.transcript.runs), min(a_run or len(agents), len(agents))
        found = [
            (run, agents[(run * some + at) % len(agents)])
            for run in range(runs)
            for at in range(some)
        ]
        if len(found) < targets:
            raise AttackError(f"{targets} targets were asked for, but there are only {len(found)}")
        return found[:targets]

    @cached_property
    def spec(self) -> dict[str, Any]:
        """What tells this recording from every other, as JSON."""
        one = self.transcript
        secret = one.truth.states, one.truth.gradients, one.truth.steps
        return {
            "algorithm": one.algorithm.spec,
            "stepsize": one.stepsize.spec,
            "graph": one.graph.spec,
            "rounds": one.rounds,
            "runs": one.runs,
            "private_start": one.private_start,
            "seen": fingerprint(one.sender, one.receiver, one.messages),
            "start": None if one.start is None else fingerprint(one.start),
            "secret": fingerprint(*secret, *self.images.values(), *self.labels.values()),
        }

    def save(self, stem: str | Path) -> None:
        """Write `stem` (transcript) and `stem-truth`; the files hold every agent's secrets."""
        self.transcript.save(stem)
        tensors = {"mean_image": self.mean_image}
        tensors |= {} if self.nearby is None else {"nearby": self.nearby}
        tensors |= {f"images.{round}": images for round, images in self.images.items()}
        tensors |= {f"labels.{round}": labels for round, labels in self.labels.items()}
        save_pair(f"{stem}-truth", tensors, {"kind": "audited images", "accuracy": self.accuracy})

    @classmethod
    def load(
        cls,
        stem: str | Path,
        algorithm: Mechanism | None = None,
        stepsize: Stepsize | None = None,
    ) -> "Recorded":
        """Read what `save` wrote; algorithm, stepsize: as for `Transcript.load`."""
        tensors, facts = load_pair(f"{stem}-truth", "audited images")
        rounds = sorted(int(name[7:]) for name in tensors if name.startswith("images."))
        return cls(
            Transcript.load(stem, algorithm, stepsize),
            {round: tensors[f"images.{round}"] for round in rounds},
            {round: tensors[f"labels.{round}"] for round in rounds},
            tensors["mean_image"],
            facts["accuracy"],
            tensors.get("nearby"),
        )


def record(
    problem: ModuleProblem,
    algorithm: Mechanism,
    graph: Graph,
    inputs: Inputs,
    settings: AuditSettings,
    *,
    progress: bool = False,
) -> Recorded:
    """Train for as long as the attacks ask, and keep what an audit needs.

    As many runs are made as the settings' targets ask. Without a seed one is drawn.
    """
    fewest = min(len(settings.attacked(graph, who)) for who in settings.adversaries)
    if not fewest:
        raise AttackError("an adversary holds every agent to attack; nobody is left")
    a_run = min(settings.targets_a_run or fewest, fewest)
    runs, rounds = -(-settings.targets // a_run), settings.recorded_rounds()
    seed = secrets.randbits(62) if settings.insecure_seed is None else settings.insecure_seed
    result = simulate(
        problem,
        algorithm,
        graph,
        steps=rounds[-1],
        runs=runs,
        stepsize=suited(settings.stepsize, algorithm),
        insecure_seed=seed,
        options=Options(
            measure=[rounds[-1]],
            record=Recording(rounds, range(runs)),
            private_start=settings.private_start,
            progress=progress,
        ),
    )
    assert result.transcript is not None
    made = Recorded.of(problem, inputs, result.transcript, settings.rounds, seed)
    accuracy = result.metrics.get("training_accuracy")
    return made if accuracy is None else replace(made, accuracy=float(accuracy[-1].mean()))


def suited(stepsize: Stepsize | None, algorithm: Mechanism) -> Stepsize:
    """The same schedule under the law that an algorithm uses: DSGD draws no private stepsizes."""
    own = algorithm.default_stepsize
    if stepsize is not None and isinstance(own.law, Deterministic):
        return Stepsize(stepsize.schedule, Deterministic(), stepsize.per)
    return stepsize or own


def at_targets(values: Tensor, pairs: Pairs) -> Tensor:
    """Pick (targets, ...) from (runs, agents, ...)."""
    runs, agents = (torch.tensor(part) for part in zip(*pairs, strict=True))
    return values[runs, agents]
