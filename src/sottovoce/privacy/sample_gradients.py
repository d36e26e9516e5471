"""Gradients of many single records at one state, and what can be had without forming them.

Where the mechanism bounds what one record contributes, they are bounded as it does: a candidate is
compared with what it would have sent.
"""

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd import forward_ad as forward
from torch.func import functional_call, grad, vmap

from sottovoce.errors import AttackError
from sottovoce.privacy.knowledge import Knowledge
from sottovoce.problems.gradients.layout import ParameterLayout

_AT_ONCE = 500
"""Records in one forward pass."""
_BYTES = 1 << 24
"""Gradients held at a time, about what a processor's cache holds."""


class SampleGradients:
    """Gradients c ∇L(x, record) of single records, as the flat rows of `ParameterLayout`.

    c is the factor of the mechanism's bound, 1 where it has none.
    """

    def __init__(self, knowledge: Knowledge) -> None:
        self.model, self.loss, self.bound = knowledge.model, knowledge.loss, knowledge.bound
        self.layout = ParameterLayout(self.model)
        first = next(one for one in self.model.parameters() if one.requires_grad)
        self.dtype, self.device = first.dtype, first.device
        self._at_once = max(16, _BYTES // (self.layout.dimension * first.element_size()))

    def losses(self, state: Tensor, records: Tensor, labels: Tensor) -> Tensor:
        """The loss of every record at the state (d,): (n,)."""
        outputs = functional_call(self.model, self.layout.views(state), (records,))
        each: Tensor = vmap(self.loss)(outputs.unsqueeze(1), labels.unsqueeze(1))
        return each

    def along(self, state: Tensor, direction: Tensor, records: Tensor, labels: Tensor) -> Tensor:
        """<direction, c ∇L(record)> of every record, (n,), by one forward-mode derivative.

        The derivative of all losses along a direction costs about two forward passes and holds no
        gradient, whatever the number of parameters. A bound asks for norms as well.
        """
        state, direction = state.to(self.device, self.dtype), direction.to(self.device, self.dtype)
        found = []
        with torch.no_grad(), warnings.catch_warnings(), forward.dual_level():
            # torch's own rules for forward mode are scripts, which torch deprecates.
            warnings.simplefilter("ignore", DeprecationWarning)
            dual = forward.make_dual(state, direction)
            for x, y in self._parts(records, labels, _AT_ONCE):
                found.append(forward.unpack_dual(self.losses(dual, x, y)).tangent)
        slopes = torch.cat(found)
        if self.bound is None:
            return slopes
        lengths = [
            torch.linalg.vector_norm(one, dim=1) for one in self._raw(state, records, labels)
        ]
        return slopes * self.bound.factors(torch.cat(lengths))

    def rows(self, state: Tensor, records: Tensor, labels: Tensor) -> Iterator[Tensor]:
        """The gradients themselves, some records at a time: (records, d) each."""
        for one in self._raw(state, records, labels):
            if self.bound is None:
                yield one
            else:
                lengths = torch.linalg.vector_norm(one, dim=1, keepdim=True)
                yield one * self.bound.factors(lengths)

    def _raw(self, state: Tensor, records: Tensor, labels: Tensor) -> Iterator[Tensor]:
        state = state.to(self.device, self.dtype)
        one = grad(lambda at, x, y: self.losses(at, x[None], y[None])[0])
        try:
            for x, y in self._parts(records, labels, self._at_once):
                yield vmap(one, (None, 0, 0))(state, x, y)
        except RuntimeError as error:
            if "vmap" not in str(error) and "mutate" not in str(error):
                raise
            raise AttackError(
                f"torch cannot compute the gradients of single records of "
                f"{type(self.model).__name__}; the usual cause is a forward() that branches on "
                f"the values of its inputs, or one that writes to a buffer ({error})"
            ) from error

    def squared_norms(self, state: Tensor, records: Tensor, labels: Tensor) -> Tensor:
        """c² |∇L(record)|² of every record: (n,)."""
        return torch.cat([one.square().sum(1) for one in self.rows(state, records, labels)])

    def mean(self, state: Tensor, records: Tensor, labels: Tensor) -> Tensor:
        """The mean gradient over all records, (d,), by plain backward passes where they serve."""
        state = state.to(self.device, self.dtype)
        if self.bound is not None:
            each = (one.sum(0) for one in self.rows(state, records, labels))
            return sum(each, torch.zeros_like(state)) / len(records)
        total = torch.zeros_like(state)
        for x, y in self._parts(records, labels, _AT_ONCE):
            at = state.detach().requires_grad_()
            total += torch.autograd.grad(self.losses(at, x, y).sum(), at)[0]
        return total / len(records)

    def _parts(self, records: Tensor, labels: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        if not len(records):
            raise AttackError("there is no record to compute a gradient of")
        for x, y in zip(records.split(size), labels.split(size), strict=True):
            yield x.to(self.device), y.to(self.device)
