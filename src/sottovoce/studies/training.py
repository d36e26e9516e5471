"""What the learning studies train, on what, by whom and for how long."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch.nn.functional import cross_entropy

from sottovoce.errors import ProblemError
from sottovoce.problems import Compute, ModuleProblem
from sottovoce.problems.data import models, partitions, sets
from sottovoce.problems.gradients.methods import PRECISIONS, Precision
from sottovoce.problems.module import Samples
from sottovoce.stepsizes import Law, Power, Stepsize
from sottovoce.studies.settings import option
from sottovoce.studies.study import Table

MNIST_PIXELS = (0.1307, 0.3081)
"""Mean and standard deviation of MNIST's pixels, between 0 and 1."""

_MODELS: dict[str, Callable[..., torch.nn.Sequential]] = {
    "paper": models.paper_cnn,
    "small": models.small_cnn,
    "softmax": models.softmax_regression,
}


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is trained, on what, by whom and for how long."""

    model: str = option("small", "paper (1,676,266 parameters), small (19,430) or softmax (7,850).")
    data: str = option("subset", "subset (shipped), mnist or fashion-mnist.")
    activation: str = option("sigmoid", "sigmoid, relu or tanh.")
    epochs: int = option(10, "Passes over an agent's data.", min=1)
    batch: int = option(8, "Samples in a gradient.", option="--batch-size", min=1)
    scale: float = option(0.5, "c in the stepsize c/k.")
    schedule: Literal["epoch", "iteration"] = option(
        "epoch", "What k counts; the paper's text reads as if iterations."
    )
    partition: str = option("equal", "equal, dirichlet:0.5, shards:2 or counts:100,200,...")
    private_start: float = option(
        0.0, "Standard deviation of private numbers added to the starting point."
    )
    data_dir: str | None = option(None, "Folder of IDX files (or set SOTTOVOCE_DATA).")
    device: str = option("cpu", "cpu or cuda.")
    precision: Precision = field(
        default="float32", metadata={"help": "Of activations; bfloat16 is faster on a GPU."}
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", sets.OLD_NAMES.get(self.data, self.data))
        for name, accepted in (
            ("model", _MODELS),
            ("data", ("subset", *sets.SOURCES)),
            ("schedule", ("epoch", "iteration")),
            ("precision", PRECISIONS),
        ):
            if (value := getattr(self, name)) not in accepted:
                raise ProblemError(
                    f"{name} {value!r} is not known; accepted: {', '.join(accepted)}"
                )
        if self.epochs < 1:
            raise ProblemError(f"epochs is {self.epochs}; it must be at least 1")

    def portions(self, agents: int) -> tuple[list[Samples], list[Samples], Table]:
        """Each agent's portion, part of the training and part of the validation images.

        With them the table of what every agent holds, by label.
        """
        loaded = sets.load(self.data, self.data_dir)
        held = partitions.parse_partition(self.partition)(loaded.training.labels, agents, 0)
        kept = partitions.equal(loaded.validation.labels, agents, 1)
        counts = held.table(loaded.training.labels)
        table = Table(
            f"Training images of every agent, by label ({self.partition})",
            ("agent", *map(str, range(len(counts[0]))), "all"),
            [(agent, *row, sum(row)) for agent, row in enumerate(counts)],
        )
        return samples(loaded.training, held), samples(loaded.validation, kept), table

    def problem(
        self,
        data: list[Samples],
        validation: list[Samples] | None = None,
        init: Callable[[torch.nn.Module, int], None] | None = None,
    ) -> ModuleProblem:
        """The model with its loss and the agents' portions.

        init: sets the starting weights of a run, by default to weights from which SGD learns.
        """
        return ModuleProblem(
            _MODELS[self.model](self.activation).to(self.device),
            cross_entropy,
            data,
            validation,
            batch=self.batch,
            initialise=init or partial(models.initialise, activation=self.activation),
            compute=Compute(precision=self.precision),
        )

    def stepsize(self, law: Law, rounds_an_epoch: int) -> Stepsize:
        """The mean scale/k with this law; k counts epochs or rounds."""
        block = rounds_an_epoch if self.schedule == "epoch" else 1
        return Stepsize(Power(self.scale, block=block), law)


def samples(
    images: sets.ImageData, held: partitions.Partition, pixels: tuple[float, float] = MNIST_PIXELS
) -> list[Samples]:
    """What the model is fed with its labels, agent by agent; pixels: mean and deviation."""
    inputs = images.standardised(*pixels)
    return [(inputs[part], images.labels[part]) for part in held.indices]
