"""Read whole passages from the gradient of a transformer: words, their order, and the next word.

The gradient of a dense layer is Σ δ hᵀ over its inputs h, so that its rows span the inputs and
nothing else. Before the first attention h is a word at a place, and every pair of both can be
tested alone; before the second one h depends on all words up to its place, and tests a beginning.
Passages grow word by word along what passes both tests, and those are kept whose own gradients add
up to what was seen. The tests are those of DAGER (Petrov et al., NeurIPS 2024), with directions of
the gradient weighed by how far they stand above noise in place of a threshold.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sottovoce.mechanisms import Bound
from sottovoce.privacy.attacks import Estimate
from sottovoce.privacy.knowledge import Inputs, Knowledge
from sottovoce.privacy.readers.reader import Reader
from sottovoce.privacy.readers.search import Inversion
from sottovoce.privacy.readers.support import Support
from sottovoce.privacy.sample_gradients import SampleGradients
from sottovoce.problems.data.word_models import SmallTransformer
from sottovoce.problems.gradients.layout import ParameterLayout

_FIRST, _SECOND = "blocks.0.projections.weight", "blocks.1.projections.weight"
_OUT = "out.bias"
_AT_ONCE = 128
"""Passages with a next word whose gradients are compared with the estimate, at most."""
_TRIED = 4
"""Beginnings that are put to the second test, for each that is kept."""
_SWAPS = 4
"""How often each chosen passage may be exchanged for a better one."""


@dataclass(frozen=True)
class Passages(Reader):
    """Read the passages of a batch through a transformer of `problems.data.word_models`.

    It needs signs and scale. largest: batches above this size fill the space of the first
    attention's inputs, which then tests nothing. beginnings: how many are kept for each passage.
    bound: what the mechanism does to the gradient of one passage, None where it has no bound.
    """

    name: ClassVar[str] = "passages"
    tokens: ClassVar[bool] = True
    largest: int = 12
    beginnings: int = 32
    bound: Bound | None = None

    def informed(self, knowledge: Knowledge) -> "Passages":
        return replace(self, bound=knowledge.bound)

    def suits(self, model: nn.Module, inputs: Inputs, estimate: Estimate, noisy: bool) -> bool:
        known = estimate.signs_known and estimate.scale_known
        small = inputs.batch_size <= self.largest
        deep = isinstance(model, SmallTransformer) and len(model.blocks) > 1
        return deep and bool(inputs.vocabulary) and known and small

    def read(
        self, model: nn.Module, estimate: Estimate, inputs: Inputs, spread: float
    ) -> Inversion:
        # Zeros decide where there are some; through noise, rows that are longer than it makes them.
        plain, strong = (Support().read(model, estimate, inputs, noisy) for noisy in (False, True))
        most = inputs.batch_size * inputs.shape[0]
        present = torch.where(plain.sum(1, keepdim=True) > most, strong, plain).cpu()
        found = [
            self._passages(model, gradient.cpu(), state.cpu(), words.nonzero()[:, 0], inputs)
            for gradient, state, words in zip(
                estimate.gradient, estimate.state, present, strict=True
            )
        ]
        shown = torch.stack([passages for passages, _ in found])
        labels = torch.stack([one for _, one in found])
        nothing = torch.zeros(len(shown))
        return Inversion(shown, labels, nothing, nothing, nothing > 0, nothing.long())

    def _passages(
        self, model: nn.Module, gradient: Tensor, state: Tensor, words: Tensor, inputs: Inputs
    ) -> tuple[Tensor, Tensor]:
        """The batch of one target, (batch, places), and the word after each, (batch,)."""
        batch, (places,) = inputs.batch_size, inputs.shape
        if not len(words):
            return torch.zeros(batch, places).long(), torch.zeros(batch).long()
        seen = ParameterLayout(model).views(gradient.double())
        grown = self._grown(_Below.of(model, state, seen, batch * places), words, batch)
        following = seen[_OUT].argsort()[:batch]
        # The likeliest passages, each with every word that came next in the batch.
        passages = grown[: max(batch, _AT_ONCE // batch)]
        tried = passages.repeat_interleave(len(following), 0)
        labels = following.repeat(len(passages))
        terms = self._terms(model, state, inputs, tried, labels)
        chosen = _adding_up(terms @ terms.T, terms @ (batch * gradient.to(terms)), batch)
        return tried[chosen], labels[chosen]

    def _terms(
        self, model: nn.Module, state: Tensor, inputs: Inputs, records: Tensor, labels: Tensor
    ) -> Tensor:
        """What single passages add to the sum: (n, d)."""
        loss = nn.functional.cross_entropy
        known = Knowledge(model, loss, inputs, records, labels, self.bound)
        return torch.cat(list(SampleGradients(known).rows(state, records, labels))).cpu()

    def _grown(self, below: "_Below", words: Tensor, batch: int) -> Tensor:
        """Passages by how well their words pass both tests, the best first: (n, places)."""
        kept = self.beginnings * batch
        beginnings, cost = torch.empty(1, 0).long(), torch.zeros(1, dtype=torch.float64)
        for _ in range(below.places):
            # The first test is cheap, and what fails it need not be put to the second.
            place = beginnings.shape[1]
            costs = cost[:, None] + below.alone(words, place)
            order = costs.flatten().argsort()[: _TRIED * kept]
            longer = torch.cat(
                [beginnings[order // len(words)], words[order % len(words), None]], 1
            )
            cost = costs.flatten()[order] + below.together(longer)
            order = cost.argsort()[:kept]
            beginnings, cost = longer[order], cost[order]
        return beginnings


@dataclass(frozen=True, eq=False)
class _Below:
    """The transformer up to its second attention, and what the gradients of both span.

    spans: (width, width) each: h -> Σ_i c_i <v_i, h> v_i over the directions v_i of the gradient,
    c_i = 1 - (noise / strength of i)², not below 0.
    """

    model: SmallTransformer
    places: int
    spans: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, model: nn.Module, state: Tensor, seen: dict[str, Tensor], most: int) -> "_Below":
        assert isinstance(model, SmallTransformer)
        own = copy.deepcopy(model).cpu().double().requires_grad_(False)
        own.load_state_dict(ParameterLayout(model).views(state.double()))
        spans = _span(seen[_FIRST], most), _span(seen[_SECOND], most)
        return cls(own, len(own.place), spans)

    def _block(self, at: int) -> Any:
        # nn.ModuleList does not tell what its modules are.
        return self.model.blocks[at]

    def alone(self, words: Tensor, place: int) -> Tensor:
        """How much of a word at a place lies outside the first span: (n,)."""
        x = self.model.embedding(words) + self.model.place[place]
        return _outside(self._block(0).before(x), self.spans[0])

    def together(self, beginnings: Tensor) -> Tensor:
        """How much of a beginning's last place lies outside the second span: (n,)."""
        x = self.model.embedding(beginnings) + self.model.place[: beginnings.shape[1]]
        below = self._block(0)(x)[:, -1]
        return _outside(self._block(1).before(below), self.spans[1])


def _outside(inputs: Tensor, span: Tensor) -> Tensor:
    outside: Tensor = 1 - (inputs * (inputs @ span)).sum(1) / inputs.square().sum(1)
    return outside


def _span(gradient: Tensor, most: int) -> Tensor:
    """The weighed projection onto the rows of a gradient, of which `most` are more than noise."""
    _, strength, directions = torch.linalg.svd(gradient, full_matrices=False)
    noise = strength[most:].median() if most < len(strength) else strength[-1]
    weights = (1 - (noise / strength.clamp_min(1e-300)).square()).clamp_min(0)
    weights[most:] = 0
    span: Tensor = directions.T * weights @ directions
    return span


def _adding_up(products: Tensor, along: Tensor, batch: int) -> list[int]:
    """Which terms add up to a sum: chosen one after the other, then exchanged one by one.

    products: <term, term'>, (n, n); along: <term, sum>, (n,). A term may be chosen twice.
    """
    chosen: list[int] = []
    for turn in range(batch * (1 + _SWAPS)):
        others = chosen if turn < batch else chosen[1:]
        # What is left of the sum is to become as short as possible.
        gain = 2 * (along - products[:, others].sum(1)) - products.diagonal()
        chosen = [*others, int(gain.argmax())]
    return chosen
