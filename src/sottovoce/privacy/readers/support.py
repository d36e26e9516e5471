"""Zeros stay zeros: where a gradient is exactly zero tells what is in a record.

The gradient of a dense first layer is r xᵀ: the columns of features that are 0 in every record of
the batch are 0. An embedding has a gradient in the rows of the tokens of the batch alone. Private
stepsizes and coefficients multiply and leave zeros where they are, whatever their law, one for each
coordinate included. So the support of an estimated step is the union of the batch's features or
tokens; for a single binary record it is the record. Noise fills the zeros: then columns or rows
count that are longer than noise alone makes them.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from scipy.stats import beta, chi2
from torch import Tensor, nn

from sottovoce.errors import AttackError
from sottovoce.privacy.attacks import Estimate
from sottovoce.privacy.knowledge import Inputs
from sottovoce.privacy.readers.layers import dense_first_layer
from sottovoce.privacy.readers.reader import Answer
from sottovoce.problems.gradients.layout import ParameterLayout

_LEAST_GAP = 30.0
"""How many times larger than the largest zero the smallest other number must be."""
_ROUNDING = 4.0
"""How many times the rounding of a message a coordinate must exceed not to count as zero."""
_FALSE = 0.5
"""How many features or tokens of a target may stand out by noise alone, on average."""


@dataclass(frozen=True)
class Support:
    """Read which features or tokens are in a batch, for binary records and for tokens.

    It suits a model whose first layer is dense where all numbers of a record are 0 or 1
    (`Inputs(binary=True)`), and one that embeds tokens (`Inputs(vocabulary=1024)`). Through noise,
    of a batch of one with `Inputs.groups`, the strongest feature of each group is taken. padding: a
    token that is no word, whose row of an embedding never has a gradient.
    """

    name: ClassVar[str] = "support"
    padding: int | None = None

    @classmethod
    def of(cls, model: nn.Module) -> "Support":
        """With the padding of the model's embedding, if it has any."""
        layer = _embedding(model)
        return cls(None if layer is None else layer.padding_idx)

    def suits(self, model: nn.Module, inputs: Inputs) -> bool:
        """Whether the model's first layer shows which features or tokens a record has."""
        if inputs.vocabulary:
            return _embedding(model) is not None
        return inputs.binary and dense_first_layer(model) is not None

    def read(self, model: nn.Module, estimate: Estimate, inputs: Inputs, noisy: bool) -> Tensor:
        """Which features or tokens are in each target's batch: (targets, n) bool.

        noisy: whether there is noise on the estimate that does not scale with it.
        """
        columns = _columns(model, inputs)
        strength, rounding = columns.largest(estimate)
        if not noisy:
            return not_zero(strength, rounding)
        if inputs.groups and inputs.batch_size == 1:
            return strongest(strength, inputs.groups)
        return above_noise(columns.energy(estimate), columns.length)

    def truth(self, records: Tensor, inputs: Inputs) -> Tensor:
        """The supports of batches of records, (targets, batch, *shape) -> (targets, n) bool."""
        if not inputs.vocabulary:
            return (records.flatten(2) != inputs.low).any(1)
        found = torch.zeros(len(records), inputs.vocabulary, dtype=torch.bool)
        found = found.scatter_(1, records.flatten(1).round().long().cpu(), True)
        if self.padding is not None:
            found[:, self.padding] = False
        return found

    def controls(self, answer: Answer) -> dict[str, Estimate]:
        """`exact gradient`, which must give supports away, and `noise`, which must not."""
        gradient, state = answer.gradient.double(), answer.state.double()
        rms = gradient.square().mean(1, keepdim=True).sqrt()
        draws = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0)).double()
        return {
            "exact gradient": Estimate(gradient, True, state),
            "noise": Estimate(rms * draws, True, state),
        }


@dataclass(frozen=True, eq=False)
class _Columns:
    """Where a gradient has one column for each feature, or one row for each token."""

    layout: ParameterLayout
    name: str
    over: int
    length: int

    def _parts(self, flat: Tensor) -> Tensor:
        return self.layout.views(flat.double())[self.name]

    def largest(self, estimate: Estimate) -> tuple[Tensor, Tensor | None]:
        """The largest magnitude of each column, (targets, n), and of its rounding where known."""
        rounding = estimate.rounding
        strength = self._parts(estimate.gradient).abs().amax(self.over)
        return strength, None if rounding is None else self._parts(rounding).abs().amax(self.over)

    def energy(self, estimate: Estimate) -> Tensor:
        """The squared length of each column: (targets, n)."""
        return self._parts(estimate.gradient).square().sum(self.over)


def _embedding(model: nn.Module) -> nn.Embedding | None:
    """The first embedding, where it is trained."""
    first = next((one for one in model.modules() if isinstance(one, nn.Embedding)), None)
    return first if first is not None and first.weight.requires_grad else None


def _columns(model: nn.Module, inputs: Inputs) -> _Columns:
    layer = _embedding(model) if inputs.vocabulary else dense_first_layer(model)
    if layer is None:
        raise AttackError(
            "support needs an embedding that is trained"
            if inputs.vocabulary
            else "support needs a dense first layer that is trained"
        )
    rows, columns = layer.weight.shape
    size = inputs.vocabulary or math.prod(inputs.shape)
    over, found, length = (2, rows, columns) if inputs.vocabulary else (1, columns, rows)
    if found != size:
        raise AttackError(f"the first layer takes {found} features or tokens, not {size}")
    name = next(name for name, one in model.named_parameters() if one is layer.weight)
    return _Columns(ParameterLayout(model), name, over, length)


def not_zero(strength: Tensor, rounding: Tensor | None = None) -> Tensor:
    """Tell numbers from zeros that rounding has moved: (targets, n) -> (targets, n) bool.

    Where the rounding is known it decides. Else the widest gap between sorted logarithms does; if
    none is a factor of 30, nothing is zero.
    """
    if rounding is not None:
        return strength > _ROUNDING * rounding
    floor = strength.amax(1, keepdim=True).clamp_min(1e-300) * 1e-12
    ordered, _ = strength.clamp_min(floor).log().sort(1)
    gaps = ordered.diff(dim=1)
    widest, at = gaps.max(1, keepdim=True)
    limit = (ordered.gather(1, at) + widest / 2).exp()
    return torch.where(widest > math.log(_LEAST_GAP), strength > limit, strength > 0)


def strongest(strength: Tensor, groups: tuple[int, ...]) -> Tensor:
    """The strongest feature of each public group, unless all are zero: (targets, n) bool."""
    if sum(groups) != strength.shape[1]:
        raise AttackError(
            f"the groups have {sum(groups)} features together, the first layer takes "
            f"{strength.shape[1]}"
        )
    parts = strength.split(list(groups), 1)
    return torch.cat([(part == part.amax(1, keepdim=True)) & (part > 0) for part in parts], 1)


def above_noise(energy: Tensor, length: int) -> Tensor:
    """Columns longer than noise makes them, where more than half hold noise alone.

    energy: (targets, n), squared lengths of columns of `length` numbers. Their median over that of
    the chi-squared distribution is the noise's variance; the limit lets half a column of noise
    through for each target.
    """
    middle = energy.quantile(0.5, dim=1, keepdim=True)
    high = float(chi2.isf(_FALSE / energy.shape[1], length) / chi2.median(length))
    return energy > middle * high


@dataclass(frozen=True)
class SupportScore:
    """How well supports were read, over all targets.

    exact: targets whose support is right in every place, with the 95 % interval of Clopper and
    Pearson; precision: how much of what was found is true; recall: how much of what is true was
    found, of features or tokens over all targets.
    """

    targets: int
    exact: int
    low: float
    high: float
    precision: float
    recall: float

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "interval": [self.low, self.high]}


def score_support(found: Tensor, truth: Tensor) -> SupportScore:
    """Compare supports (targets, n) with the true ones."""
    if found.shape != truth.shape or not len(found):
        raise AttackError(
            f"supports of shape {tuple(found.shape)} cannot be compared with {tuple(truth.shape)}"
        )
    targets, exact = len(found), int((found == truth).all(1).sum())
    right = float((found & truth).sum())
    low = float(beta.ppf(0.025, exact, targets - exact + 1)) if exact else 0.0
    high = float(beta.ppf(0.975, exact + 1, targets - exact)) if exact < targets else 1.0
    return SupportScore(
        targets,
        exact,
        low,
        high,
        right / max(1.0, float(found.sum())),
        right / max(1.0, float(truth.sum())),
    )


def likeliest_support(
    records: Tensor,
    inputs: Inputs,
    reader: Support | None = None,
    draws: int = 200,
) -> tuple[Tensor, float]:
    """The best guess without messages, (n,) bool: what is in most batches of public records.

    With it the share of other batches that have the commonest support.
    records: (n, *shape) in pixel space.
    """
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(records), (draws, inputs.batch_size), generator=generator)
    found = (reader or Support()).truth(records[chosen], inputs)
    most = int(found.unique(dim=0, return_counts=True)[1].max())
    return found.double().mean(0) > 0.5, (most - 1) / (draws - 1)
