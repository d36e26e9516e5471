"""The three kinds of private data that the studio shows, each with its model and its words."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sottovoce.mechanisms import Bound
from sottovoce.privacy.knowledge import Inputs, Knowledge
from sottovoce.problems import ModuleProblem
from sottovoce.problems.data import census, partitions, records, sets, shakespeare, word_models
from sottovoce.studies.training import MNIST_PIXELS

_PUBLIC = 1000
"""Records that training never sees, which a listener may know."""


@dataclass(frozen=True, eq=False)
class Material:
    """Records of all agents, what is public of their form, and records that nobody trains on.

    parts: which records each agent holds.
    """

    kind: str
    model: nn.Module
    inputs: Inputs
    records: Tensor
    labels: Tensor
    parts: list[Tensor]
    unseen: tuple[Tensor, Tensor]

    def problem(self, batch: int, poisson: bool) -> ModuleProblem:
        """The training of all agents."""
        data = [(self.records[part], self.labels[part]) for part in self.parts]
        start = word_models.initialise_words if self.kind == "words" else _zero
        return ModuleProblem(
            self.model,
            cross_entropy,
            data,
            self.unseen,
            batch=batch,
            poisson=poisson,
            initialise=start,
        )

    def knowledge(self, batch: int, bound: Bound | None = None) -> Knowledge:
        """What a listener knows beside the messages; bound: what the mechanism clips with."""
        form = replace(self.inputs, batch_size=batch)
        return Knowledge(self.model, cross_entropy, form, *self.unseen, bound)

    def shown(self, record: Tensor) -> Any:
        """A record, or what was read of one, as the page shows it.

        Pixels from 0 to 255 for digits; sentences or words for the others, which are given as
        supports: (123,) features or (vocabulary,) tokens.
        """
        if self.kind == "digits":
            pixels = self.inputs.pixels(record).flatten().clamp(0, 1)
            return (255 * pixels).round().int().tolist()
        if self.kind == "census":
            return census.load_census().describe(record.float())
        words = shakespeare.load_plays().words
        return [words[at] for at in record.nonzero()[:, 0].tolist() if at]


def material(kind: str, agents: int) -> Material:
    """The shipped data of a kind, divided among agents."""
    model: nn.Module
    if kind == "digits":
        data = sets.load("subset")
        training, unseen = data.training, data.validation
        inputs = Inputs((1, 28, 28), 1, 0.0, 1.0, *MNIST_PIXELS)
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
        parts = partitions.equal(training.labels, agents, 0).indices
        public = unseen.standardised()[:_PUBLIC], unseen.labels[:_PUBLIC]
        return Material(
            kind, model, inputs, training.standardised(), training.labels, parts, public
        )
    if kind == "census":
        table = census.load_census()
        inputs = Inputs((sum(table.groups),), binary=True, groups=table.groups)
        model = nn.Sequential(nn.Linear(sum(table.groups), 2))
        whole, held = table.training, table.validation
    else:
        plays = shakespeare.load_plays()
        whole, held = plays.training, plays.validation
        inputs = Inputs(tuple(whole.inputs.shape[1:]), vocabulary=len(plays.words))
        model = word_models.WordAverage(len(plays.words), whole.inputs.shape[1])
    parts = records.by_owner(whole, agents).indices
    public = held.inputs[:_PUBLIC], held.labels[:_PUBLIC]
    return Material(kind, model, inputs, whole.inputs, whole.labels, parts, public)


def _zero(model: nn.Module, seed: int) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
