"""What single layers of a gradient give away without a search: the label, a dense layer's input."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sottovoce.errors import AttackError
from sottovoce.privacy.knowledge import Inputs
from sottovoce.problems.gradients.layout import ParameterLayout


@dataclass(frozen=True)
class LabelGuess:
    """labels: (targets,); confidence: (targets,), 1 when every sign agrees, near 0 for noise.

    ranked: (targets, classes), all labels from the likeliest to the least likely.
    """

    labels: Tensor
    confidence: Tensor
    ranked: Tensor


def _layer_gradient(model: nn.Module, layer: nn.Linear, gradient: Tensor) -> Tensor:
    """Return a dense layer's gradient (targets, outputs, inputs + 1), the bias as last column."""
    layout = ParameterLayout(model)
    if gradient.dim() != 2 or gradient.shape[1] != layout.dimension:
        raise AttackError(
            f"gradients must have shape (targets, {layout.dimension}) for this model, got "
            f"{tuple(gradient.shape)}"
        )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = layout.views(gradient)
    weight, bias = (found.get(names.get(id(part), "")) for part in (layer.weight, layer.bias))
    if weight is None:
        raise AttackError("the layer's weights are frozen: no message depends on their gradient")
    return weight if bias is None else torch.cat([weight, bias[:, :, None]], 2)


def _weighted(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]


def dense_first_layer(model: nn.Module) -> nn.Linear | None:
    """The first layer with weights, where it is dense and trained."""
    first = next(iter(_weighted(model)), None)
    return first if isinstance(first, nn.Linear) and first.weight.requires_grad else None


def infer_label(model: nn.Module, gradient: Tensor, *, signs: bool = True) -> LabelGuess:
    """Read the label of a batch of one from the signs of the last dense layer's gradient.

    Row c of that gradient is (p_c - [c = y]) h: the rows of all wrong classes point the same way
    and the row of the label y the other way (Zhao, Mopuri and Bilen 2020, for the bias). The inner
    products of the rows keep their signs when each coordinate is multiplied by a private positive
    stepsize, and when the whole gradient is multiplied by one scalar of unknown sign. The guess is
    the row least aligned with the others; its margin over the second is the confidence. Without
    `signs` it is the longest row: |p_y - 1| is the sum of all other p_c.
    gradient: (targets, d).
    """
    layers = _weighted(model)
    if not layers or not isinstance(layers[-1], nn.Linear):
        last = type(layers[-1]).__name__ if layers else "nothing"
        raise AttackError(
            f"the label is read from a dense last layer; the last layer with weights is {last}"
        )
    rows = _layer_gradient(model, layers[-1], gradient)
    classes = rows.shape[1]
    if classes < 3:
        raise AttackError(
            f"with {classes} classes the label's row cannot be told from the other up to sign; "
            "at least 3 are needed"
        )
    if not signs:
        lengths, ranked = rows.norm(dim=2).sort(dim=1, descending=True)
        ratio = lengths[:, 1] / lengths[:, 0].clamp_min(torch.finfo(rows.dtype).tiny)
        return LabelGuess(ranked[:, 0], 1 - ratio, ranked)
    unit = torch.nn.functional.normalize(rows, dim=2, eps=torch.finfo(rows.dtype).tiny)
    alignment = unit @ unit.mT
    others = alignment.sum(2) - alignment.diagonal(dim1=1, dim2=2)
    sums, ranked = others.sort(dim=1)
    margin = (sums[:, 1] - sums[:, 0]) / (2 * (classes - 2))
    return LabelGuess(ranked[:, 0], margin.clamp(0, 1), ranked)


def linear_layer(model: nn.Module, gradient: Tensor, inputs: Inputs) -> Tensor:
    """Read the image of a batch of one from a dense first layer's gradient: (targets, *shape).

    The weight gradient is δ xᵀ: rows proportional to the input x, which is therefore the leading
    right singular vector up to a scalar. With a bias, whose gradient is δ, the scalar is known too;
    without one, sign and scale are chosen so that the pixels fill the box [low, high]. Under
    private stepsizes the singular vector averages over all rows. A batch of several gives their
    mixture. gradient: (targets, d).
    """
    layer = dense_first_layer(model)
    if layer is None:
        first = type(next(iter(_weighted(model)), None)).__name__
        raise AttackError(
            "linear-layer needs a dense first layer that is trained; the first layer with weights "
            f"is {first}"
        )
    if layer.in_features != inputs.size or inputs.batch_size != 1:
        raise AttackError(
            f"the first layer takes {layer.in_features} numbers, the inputs are "
            f"{inputs.batch_size} x {inputs.shape}; accepted is one input of that size"
        )
    broken = (~gradient.isfinite().all(1)).nonzero()[:, 0].tolist()
    if broken:
        raise AttackError(f"the gradients of targets {broken} are not finite")
    both = _layer_gradient(model, layer, gradient)
    weight = both[:, :, : layer.in_features]
    vector = torch.linalg.svd(weight, full_matrices=False).Vh[:, 0]
    if both.shape[2] > layer.in_features:
        delta, response = both[:, :, -1], (weight @ vector[:, :, None])[:, :, 0]
        # First moments: a regression on δ would be biased by the spread of private stepsizes.
        size = response.abs().sum(1) / delta.abs().sum(1)
        fed = vector * (size * (response * delta).sum(1).sign())[:, None]
    else:
        fed = _fill_box(vector, inputs)
    return inputs.pixels(fed.view(-1, *inputs.shape)).clamp(inputs.low, inputs.high)


def _fill_box(vector: Tensor, inputs: Inputs) -> Tensor:
    """Scale each row so that its pixels lie in the box and its extreme pixel touches it."""

    def room(direction: Tensor) -> Tensor:
        ones = torch.ones(inputs.shape, dtype=vector.dtype, device=vector.device)
        low = inputs.standardise(ones * inputs.low).flatten()
        high = inputs.standardise(ones * inputs.high).flatten()
        limit = torch.where(direction > 0, high, low) / direction
        return torch.where(direction.abs() > 1e-6, limit, torch.inf).amin(1)

    plus, minus = room(vector), room(-vector)
    scale = torch.where(plus >= minus, plus, -minus)
    return vector * scale[:, None]
