"""What one agent learns: a model, a loss, its own samples, and samples that training never sees."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, default_collate

from sottovoce.distributed.launch import Training
from sottovoce.errors import DataError, DistributedError, ProblemError
from sottovoce.mechanisms import parse_algorithm
from sottovoce.problems.data.models import small_cnn, tanh_cnn
from sottovoce.problems.data.partitions import Partition, parse_partition
from sottovoce.problems.data.sets import Datasets, load
from sottovoce.problems.gradients.layout import Loss
from sottovoce.storage.user_files import function_in, is_in_file

_SHARED_SEED = 0
"""Partition and initial weights are public and the same for all agents."""
_AT_ONCE = 1000
"""Unseen samples that go through the model together."""

Samples = tuple[Tensor, Tensor]
"""Inputs and targets, (n, ...) each."""


@dataclass(frozen=True, eq=False)
class Task:
    """An agent's part of a training; rounds: of an epoch, the same for all agents."""

    model: nn.Module
    loss: Loss
    samples: Samples
    unseen: Samples | None
    rounds: int

    def scores(self) -> dict[str, float]:
        """Mean loss on the unseen samples, and accuracy where the targets are classes.

        Samples that the agent trains on are never scored: what protects gradients does not protect
        such a number.
        """
        if self.unseen is None or not len(self.unseen[1]):
            return {}
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            parts = [self._part(*part) for part in _parts(self.unseen)]
        self.model.train(was_training)
        count = len(self.unseen[1])
        found = {"loss": sum(loss for loss, _ in parts) / count}
        if all(right is not None for _, right in parts):
            found = {"accuracy": sum(right or 0 for _, right in parts) / count, **found}
        return found

    def _part(self, inputs: Tensor, targets: Tensor) -> tuple[float, int | None]:
        """Sum of the losses, and how many classes are right, of some samples."""
        outputs = self.model(inputs)
        loss = float(self.loss(outputs, targets)) * len(targets)
        classes = outputs.ndim == 2 and targets.ndim == 1 and not targets.is_floating_point()
        return loss, int((outputs.argmax(1) == targets).sum()) if classes else None


def task_for(training: Training, agent: int, agents: int, device: torch.device) -> Task:
    """The task of one agent, its model and samples on the device.

    The model's function is called with torch's generator at a seed that all agents share, so that
    they begin with the same weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SHARED_SEED)
        model = function_in(training.model, ProblemError)() if training.model else _ours(training)
    if not isinstance(model, nn.Module):
        raise ProblemError(
            f"{training.model} returned {type(model).__name__}; accepted: a torch.nn.Module"
        )
    samples, unseen, rounds = _own(training, agent, agents) or _shared(training, agent, agents)
    return Task(
        model.to(device),
        function_in(training.loss, ProblemError) if training.loss else cross_entropy,
        _on(samples, device),
        unseen and _on(unseen, device),
        rounds,
    )


def _ours(training: Training) -> nn.Module:
    """A small CNN; where samples are clipped, the one that loses little by it."""
    return tanh_cnn() if parse_algorithm(training.algorithm).bound else small_cnn()


def sizes_of(training: Training, agents: int) -> tuple[int, ...] | None:
    """How many samples each agent has, None where the data are the user's."""
    if is_in_file(training.data):
        return None
    return tuple(_divided(training, agents)[1].sizes)


def rounds_of(training: Training, sizes: Sequence[int] | None) -> int:
    """The rounds of an epoch, by the samples of each agent where they are known."""
    if sizes is None:
        # Never counted from the samples: how many an agent has is its own affair.
        return training.rounds or Training.ROUNDS
    rounds = training.rounds or max(sizes) // training.batch_size
    if not rounds:
        raise DistributedError(
            f"a batch of {training.batch_size} images is more than the {max(sizes)} that an agent "
            "holds; give a smaller batch size"
        )
    return rounds


def _divided(training: Training, agents: int) -> tuple[Datasets, Partition]:
    data = load(training.data)
    return data, parse_partition(training.partition)(data.training.labels, agents, _SHARED_SEED)


def _shared(training: Training, agent: int, agents: int) -> tuple[Samples, Samples, int]:
    """An agent's part of images that all agents could load."""
    data, divided = _divided(training, agents)
    rounds = rounds_of(training, divided.sizes)
    own = data.training.subset(divided.indices[agent])
    unseen = data.validation
    return (own.standardised(), own.labels), (unseen.standardised(), unseen.labels), rounds


def _own(training: Training, agent: int, agents: int) -> tuple[Samples, Samples | None, int] | None:
    """What the user's function returns for this agent, if the data are the user's."""
    if not is_in_file(training.data):
        return None
    given = function_in(training.data, DataError)(agent, agents)
    if not isinstance(given, tuple | list) or len(given) != 2:
        shape = f" of {len(given)}" if isinstance(given, tuple | list) else ""
        raise DataError(
            f"{training.data} returned {type(given).__name__}{shape}; accepted: two data sets, to "
            "train on and to validate with (None for no validation)"
        )
    samples = _samples(given[0], training.data)
    unseen = None if given[1] is None else _samples(given[1], training.data)
    if unseen and parse_algorithm(training.algorithm).bound and _alike(samples, unseen):
        raise DataError(
            f"{training.data} returned the same samples to train on and to validate with: what "
            "protects gradients does not protect a score of samples; give others, or None"
        )
    return samples, unseen, rounds_of(training, None)


def _alike(one: Samples, other: Samples) -> bool:
    kinds = [[tensor.dtype for tensor in each] for each in (one, other)]
    return kinds[0] == kinds[1] and all(map(torch.equal, one, other))


def _samples(given: Any, text: str) -> Samples:
    """A data set as two tensors."""
    if isinstance(given, Dataset):
        every = [given[place] for place in range(len(given))]  # type: ignore[arg-type]
        given = default_collate(every) if every else ()
    fits = isinstance(given, tuple | list) and [type(one) for one in given] == [Tensor, Tensor]
    if not fits or len(given[0]) != len(given[1]) or not len(given[0]):
        raise DataError(
            f"{text} returned a data set that cannot be used; accepted: two tensors (inputs, "
            "targets) of equal and positive length, or a torch Dataset of such pairs"
        )
    return given[0], given[1]


def _on(samples: Samples, device: torch.device) -> Samples:
    return samples[0].to(device), samples[1].to(device)


def _parts(samples: Samples) -> Iterator[Samples]:
    return zip(samples[0].split(_AT_ONCE), samples[1].split(_AT_ONCE), strict=True)
