"""Take a batch of binary records apart: which records add up to the gradient of a linear model.

A softmax regression has the gradient Σ_i (p_i - e_{y_i}) x_iᵀ / b. Where the state is known, a
record with its label fixes its own term. A search over records whose features are in the support
finds those whose terms add up to what was seen: one feature of one record is changed at a time,
from many starting points, of which the worse half goes on from changed copies of the better. A
batch of one needs no search: its support is the record.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from sottovoce.errors import AttackError
from sottovoce.privacy.attacks import Estimate
from sottovoce.privacy.knowledge import Inputs
from sottovoce.privacy.readers.layers import dense_first_layer
from sottovoce.privacy.readers.reader import Reader
from sottovoce.privacy.readers.search import Inversion
from sottovoce.privacy.readers.support import Support, not_zero
from sottovoce.problems.gradients.layout import ParameterLayout

_QUIET = 5
"""Sweeps at the end in which no starting point is given up."""
_MIXED = 0.3
"""The share of features that a copy exchanges between two of its records."""
_ZERO = 1e-6
"""Columns shorter than this part of the longest are zero."""


@dataclass(frozen=True)
class BinaryRecords(Reader):
    """Read the records of a small batch from the gradient of a softmax regression.

    It needs `Inputs(binary=True, groups=...)`. A batch of one is read off its support, whatever is
    known of scale and signs; a larger one needs both, and an exact estimate. largest: batches above
    this size are left to others, since the search then seldom finds them. starts, sweeps: how many
    starting points are improved how often.
    """

    name: ClassVar[str] = "binary-records"
    largest: int = 4
    starts: int = 256
    sweeps: int = 30

    def suits(self, model: nn.Module, inputs: Inputs, estimate: Estimate, noisy: bool) -> bool:
        if not inputs.binary or not inputs.groups or dense_first_layer(model) is None:
            return False
        if inputs.batch_size == 1:
            return True
        known = estimate.signs_known and estimate.scale_known and not noisy
        return known and _is_linear(model) and inputs.batch_size <= self.largest

    def read(
        self, model: nn.Module, estimate: Estimate, inputs: Inputs, spread: float
    ) -> Inversion:
        if inputs.batch_size == 1:
            found = _alone(model, estimate, inputs)[:, None]
            labels = _labels(model, estimate)[:, None]
        else:
            each = [
                self._apart(_Sum.of(model, gradient, state, inputs))
                for gradient, state in zip(estimate.gradient, estimate.state, strict=True)
            ]
            found = torch.stack([one for one, _ in each])
            labels = torch.stack([one for _, one in each])
        shown = torch.where(found, inputs.high, inputs.low).unflatten(2, inputs.shape)
        nothing = torch.zeros(len(shown))
        return Inversion(shown, labels, nothing, nothing, nothing > 0, nothing.long())

    def _apart(self, seen: "_Sum") -> tuple[Tensor, Tensor]:
        """Features (batch, n) bool and labels (batch,) of the best starting point."""
        generator = torch.Generator().manual_seed(0)
        shape = (self.starts, seen.batch)
        places = seen.drawn(shape, generator)
        labels = torch.randint(seen.classes, shape, generator=generator)
        for sweep in range(self.sweeps):
            for record in torch.randperm(seen.batch, generator=generator).tolist():
                seen.improve(places, labels, record, generator)
            if sweep < self.sweeps - _QUIET:
                seen.give_up_worst(places, labels, generator)
        best = seen.cost(places, labels).argmin()
        found = torch.zeros(seen.batch, seen.features + 1, dtype=torch.bool)
        return found.scatter_(1, places[best], True)[:, :-1], labels[best]


@dataclass(frozen=True, eq=False)
class _Sum:
    """What the terms of all records must add up to, and how a record's own term is computed.

    seen: (classes, n + 1), b times the gradient, with a column for "no feature" at the end; weight
    likewise, bias: (classes,). options: for every group the columns that are not zero.
    """

    seen: Tensor
    weight: Tensor
    bias: Tensor
    options: list[Tensor]
    batch: int

    @classmethod
    def of(cls, model: nn.Module, gradient: Tensor, state: Tensor, inputs: Inputs) -> "_Sum":
        layer = dense_first_layer(model)
        assert layer is not None
        layout = ParameterLayout(model)
        names = {id(one): name for name, one in model.named_parameters()}
        name, bias = names[id(layer.weight)], names.get(id(layer.bias))
        parts, now = layout.views(gradient.double()), layout.views(state.double())
        none = torch.zeros(layer.out_features, 1, dtype=torch.float64)
        seen = torch.cat([inputs.batch_size * parts[name], none], 1)
        strength = seen[:, :-1].abs().amax(0)
        present = not_zero(strength[None])[0] & (strength > _ZERO * strength.max())
        first, options = 0, []
        for size in inputs.groups:
            own = present[first : first + size].nonzero()[:, 0] + first
            options.append(own if len(own) else torch.tensor([layer.in_features]))
            first += size
        start = none[:, 0] if bias is None else now[bias]
        return cls(seen, torch.cat([now[name], none], 1), start, options, inputs.batch_size)

    @property
    def classes(self) -> int:
        return len(self.bias)

    @property
    def features(self) -> int:
        return self.seen.shape[1] - 1

    def drawn(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Random records: (*shape, groups), the column of each group."""
        size = math.prod(shape)
        chosen = [
            one[torch.randint(len(one), (size,), generator=generator)] for one in self.options
        ]
        return torch.stack(chosen, 1).view(*shape, -1)

    def errors(self, places: Tensor, labels: Tensor) -> Tensor:
        """p - e_y of records: (..., classes)."""
        scores = self.weight.T[places].sum(-2) + self.bias
        return scores.softmax(-1) - nn.functional.one_hot(labels, self.classes)

    def rest(self, places: Tensor, labels: Tensor) -> Tensor:
        """What is left of the sum without the records: (starts, classes, n + 1)."""
        terms = self.errors(places, labels).transpose(1, 2)
        groups = places.shape[-1]
        at = places.flatten(1)[:, None].expand(-1, self.classes, -1)
        each = terms[..., None].expand(-1, -1, -1, groups).flatten(2)
        left = self.seen.expand(len(places), -1, -1).scatter_add(2, at, -each)
        left[..., -1] = 0
        return left

    def cost(self, places: Tensor, labels: Tensor) -> Tensor:
        return self.rest(places, labels).square().sum((1, 2))

    def improve(
        self, places: Tensor, labels: Tensor, record: int, generator: torch.Generator
    ) -> None:
        """Give one record of every starting point better features, group by group, and label."""
        others = [one for one in range(self.batch) if one != record]
        rest, own = self.rest(places[:, others], labels[:, others]), places[:, record]
        for group in torch.randperm(own.shape[1], generator=generator).tolist():
            columns = self.options[group]
            kept = own[:, [one for one in range(own.shape[1]) if one != group]]
            at = kept[:, None].expand(-1, self.classes, -1)
            along = rest.gather(2, at).sum(2)[..., None] + rest[:, :, columns]
            scores = (self.weight.T[kept].sum(1) + self.bias)[..., None] + self.weight[:, columns]
            chance = scores.softmax(1)
            present = (kept < self.features).sum(1, keepdim=True) + (columns < self.features)
            costs = []
            for label in range(self.classes):
                error = chance.clone()
                error[:, label] -= 1
                costs.append(present * error.square().sum(1) - 2 * (error * along).sum(1))
            best = torch.cat(costs, 1).argmin(1)
            labels[:, record] = best // len(columns)
            own[:, group] = columns[best % len(columns)]

    def give_up_worst(self, places: Tensor, labels: Tensor, generator: torch.Generator) -> None:
        """Put changed copies of the best quarter of starting points in place of the worst half."""
        order = self.cost(places, labels).argsort()
        good, bad = order[: max(1, len(order) // 4)], order[len(order) // 2 :]
        source = good[torch.randint(len(good), (len(bad),), generator=generator)]
        places[bad], labels[bad] = places[source], labels[source]
        one, other = torch.randint(self.batch, (2, len(bad)), generator=generator)
        fresh, second = self.drawn((len(bad),), generator), places[bad, other]
        moved = torch.rand(fresh.shape, generator=generator) < _MIXED
        places[bad, other] = torch.where(moved, fresh, second)
        places[bad, one] = torch.where(moved, second, fresh)


def _alone(model: nn.Module, estimate: Estimate, inputs: Inputs) -> Tensor:
    """The features of batches of one, (targets, n) bool.

    A record has at most one feature of a group. Where noise leaves no zeros, more are seen, and the
    strongest of each group is taken.
    """
    plain, strong = (Support().read(model, estimate, inputs, noisy) for noisy in (False, True))
    most = torch.stack([part.sum(1) for part in plain.split(list(inputs.groups), 1)]).amax(0)
    return torch.where((most > 1)[:, None], strong, plain)


def _is_linear(model: nn.Module) -> bool:
    """Whether the model is one dense layer, a softmax regression."""
    trained = [
        one for one in model.modules() if next(one.parameters(recurse=False), None) is not None
    ]
    others = [
        one
        for one in model.modules()
        if not isinstance(one, nn.Linear | nn.Flatten | nn.Sequential)
    ]
    return len(trained) == 1 and not others


def _labels(model: nn.Module, estimate: Estimate) -> Tensor:
    """The label of a batch of one, (targets,): the row of the last layer with the least sum.

    The features are not negative, so that the label's row alone is. A scalar of unknown sign turns
    rows around; of more than two classes the row that differs from the others in sign is taken.
    """
    last = [one for one in model.modules() if isinstance(one, nn.Linear)]
    if not last:
        raise AttackError("labels are read from a dense last layer; the model has none")
    name = next(name for name, one in model.named_parameters() if one is last[-1].weight)
    sums = ParameterLayout(model).views(estimate.gradient)[name].sum(2)
    if not estimate.scale_known and sums.shape[1] > 2:
        sums = sums * -(sums.sign().sum(1, keepdim=True).sign())
        return sums.argmax(1)
    return sums.argmin(1)
