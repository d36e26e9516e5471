"""Guesses that use no message, and how far they get: what every measure stands beside."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sottovoce.privacy.readers import Answer

_SOME = 200
"""Public records of a label that are compared with one another."""


def classes_of(labels: Tensor) -> Tensor | None:
    """Labels that name classes, as whole numbers; None where they are measured numbers or several.

    Whole numbers kept as real ones, as a loss of two classes asks for, are classes, too.
    """
    flat = labels.squeeze(-1) if labels.dim() == 2 and labels.shape[1] == 1 else labels
    if flat.dim() != 1 or not bool((flat == flat.double().round()).all()):
        return None
    return flat.long()


@dataclass(frozen=True, eq=False)
class Guesses:
    """The best guesses that use no message: of somebody who knows nothing, and who knows labels.

    blind: (*shape), the mean of public records, or zeros where these have the lower median error on
    the public records themselves. labels: (classes,), ascending; by_label: (classes, *shape), the
    means of the records with a label; shares: (classes,), how common it is; some: for each, (n, d)
    records with it. Without classes all records are of one.
    """

    blind: Tensor
    labels: Tensor
    by_label: Tensor
    shares: Tensor
    some: tuple[Tensor, ...]

    @classmethod
    def of(cls, pixels: Tensor, labels: Tensor) -> "Guesses":
        """From public records (n, *shape) in pixel space."""
        pixels = pixels.double()
        mean, black = pixels.mean(0), torch.zeros_like(pixels[0])
        errors = [(pixels - one).flatten(1).square().sum(1).median() for one in (mean, black)]
        blind = mean if errors[0] <= errors[1] else black
        known = classes_of(labels)
        if known is None:
            known = torch.zeros(len(pixels), dtype=torch.long)
        each, member, counts = known.unique(return_inverse=True, return_counts=True)
        own = [pixels[member == one] for one in range(len(each))]
        means = [blind] if len(each) == 1 else [one.mean(0) for one in own]
        some = tuple(one[:_SOME].flatten(1) for one in own)
        return cls(blind, each, torch.stack(means), counts.double() / len(pixels), some)

    def _told(self, answer: Answer) -> tuple[Tensor, Tensor]:
        """Where the labels of the answer stand among the known ones, and which are known."""
        labels = classes_of(answer.labels.flatten())
        shape = answer.images.shape[:2]
        if labels is None or len(self.labels) == 1 or len(labels) != shape.numel():
            return torch.zeros(shape, dtype=torch.long), torch.ones(shape, dtype=torch.bool)
        labels = labels.view(shape)
        at = torch.searchsorted(self.labels, labels).clamp_max(len(self.labels) - 1)
        return at, self.labels[at] == labels

    def errors(self, answer: Answer) -> tuple[Tensor, Tensor]:
        """Errors of the blind and of the label-knowing guess: (targets,) each."""
        truth = answer.images.double()
        at, known = self._told(answer)
        told = self.by_label[at]
        told[~known] = self.blind
        return record_errors(self.blind.expand_as(truth), truth), record_errors(told, truth)

    def luck(self, answer: Answer, threshold: float) -> float:
        """How often the best single guess that knows the label counts as recovered.

        A record of few numbers is near some guess by chance. For each label the public record is
        taken that is near most others of its label.
        """
        rates = []
        for mean, own in zip(self.by_label, self.some, strict=True):
            limit = threshold * (own - mean.flatten()).square().sum(1)
            near = torch.cdist(own, own).square() < limit[:, None]
            near.fill_diagonal_(False)
            rates.append(float(near.sum(0).max()) / max(1, len(own) - 1))
        at, _ = self._told(answer)
        return float(torch.tensor(rates, dtype=torch.float64)[at].mean())

    def label_chance(self, batch: int) -> float:
        """Of naming all labels of a batch, in any order, by the likeliest guess."""
        counts = torch.zeros_like(self.shares)
        for _ in range(batch):
            counts[(self.shares / (counts + 1)).argmax()] += 1
        logarithm = math.lgamma(batch + 1) - torch.lgamma(counts + 1).sum()
        return float((logarithm + torch.special.xlogy(counts, self.shares).sum()).exp())


def record_errors(found: Tensor, truth: Tensor) -> Tensor:
    """Summed squared error of a record, mean over the batch: (targets,) in float64."""
    difference = found.double() - truth.double()
    return difference.square().flatten(2).sum(2).mean(1)
