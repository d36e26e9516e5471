"""What the learning experiments train, on what, by whom and for how long."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn.functional import cross_entropy

from sottovoce.errors import ProblemError
from sottovoce.problems import Compute, ModuleProblem
from sottovoce.problems.data import models, partitions, sets
from sottovoce.problems.gradients.methods import PRECISIONS, Precision
from sottovoce.problems.module import Samples
from sottovoce.stepsizes import Law, Power, Stepsize
from sottovoce.studies.study import Table

_MODELS: dict[str, Callable[..., torch.nn.Sequential]] = {
    "paper": models.paper_cnn,
    "small": models.small_cnn,
}
DATA = {"subset": "subset", "full": "mnist", "fashion": "fashion-mnist"}


@dataclass(frozen=True)
class Training:
    """What is trained, on what, by whom and for how long.

    schedule: what k counts in the stepsize scale/k: `epoch` or, as the paper's text reads,
    `iteration`. partition: `equal`, `dirichlet:0.5`, `shards:2`, `counts:...`. precision: of
    activations, `float32` or `bfloat16`.
    """

    model: str = "small"
    data: str = "subset"
    activation: str = "sigmoid"
    epochs: int = 10
    batch: int = 8
    scale: float = 0.5
    schedule: Literal["epoch", "iteration"] = "epoch"
    partition: str = "equal"
    private_start: float = 0.0
    data_dir: str | None = None
    device: str = "cpu"
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        for name, value, accepted in (
            ("model", self.model, _MODELS),
            ("data", self.data, DATA),
            ("schedule", self.schedule, ("epoch", "iteration")),
            ("precision", self.precision, PRECISIONS),
        ):
            if value not in accepted:
                raise ProblemError(
                    f"{name} {value!r} is not known; accepted: {', '.join(accepted)}"
                )
        if self.epochs < 1:
            raise ProblemError(f"epochs is {self.epochs}; it must be at least 1")

    def portions(self, agents: int) -> tuple[list[Samples], list[Samples], Table]:
        """Each agent's portion, part of the training and part of the validation images.

        With them the table of what every agent holds, by label.
        """
        loaded = sets.load(DATA[self.data], self.data_dir)
        divide = partitions.parse_partition(self.partition)
        held = divide(loaded.training.labels, agents, 0)
        kept = partitions.equal(loaded.validation.labels, agents, 1)
        counts = held.table(loaded.training.labels)
        table = Table(
            f"Training images of every agent, by label ({self.partition})",
            ("agent", *map(str, range(len(counts[0]))), "all"),
            [(agent, *row, sum(row)) for agent, row in enumerate(counts)],
        )
        return _samples(loaded.training, held), _samples(loaded.validation, kept), table

    def problem(self, data: list[Samples], validation: list[Samples]) -> ModuleProblem:
        """The model with its loss and the agents' portions."""
        return ModuleProblem(
            _MODELS[self.model](self.activation),
            cross_entropy,
            data,
            validation,
            batch=self.batch,
            initialise=lambda model, run: models.initialise(model, run, self.activation),
            compute=Compute(precision=self.precision),
            device=self.device,
        )

    def stepsize(self, law: Law, rounds_an_epoch: int) -> Stepsize:
        block = rounds_an_epoch if self.schedule == "epoch" else 1
        return Stepsize(Power(self.scale, block=block), law)

    def command_options(self) -> str:
        return (
            f"--model {self.model} --data {self.data} --epochs {self.epochs} "
            f"--batch-size {self.batch} --scale {self.scale:g} --schedule {self.schedule} "
            f"--partition {self.partition} --device {self.device} --precision {self.precision}"
        )


def _samples(images: sets.ImageData, partition: partitions.Partition) -> list[Samples]:
    inputs = images.standardised()
    return [(inputs[part], images.labels[part]) for part in partition.indices]
