"""From a gradient estimate to the data behind it: deep leakage and scale-free projection.

The attacks know what is public (model, input shape and range) and the estimate, never the truth.
Those that need no search, `infer_label` and `linear_layer`, live in `layers`.
"""

import torch
from torch import Tensor, nn

from sottovoce.errors import AttackError
from sottovoce.privacy.readers.layers import infer_label
from sottovoce.privacy.readers.matching import (
    Inputs,
    Mismatch,
    full_precision,
    magnitude_misalignment,
    misalignment,
    sign_free_likelihood,
    squared_distance,
)
from sottovoce.privacy.readers.search import Decode, Inversion, MatchingProblem, Search


def dlg(
    model: nn.Module,
    state: Tensor,
    gradient: Tensor,
    inputs: Inputs,
    *,
    labels: Tensor | None = None,
    confined: bool = False,
    spread: float = 0.3,
    search: Search | None = None,
) -> Inversion:
    """Recover images and labels by matching the gradient itself: the paper's attacker.

    Deep leakage from gradients (Zhu, Liu and Han 2019): minimise |∇L(x, softmax(y)) - g|² over the
    unconfined input x and the label scores y jointly, by L-BFGS from normal points. It takes the
    scale of the estimate literally; see `projection` for an estimate without one.

    Args:
        model: a classifier trained by cross entropy; its weights are not read.
        state: (targets, d) or (d,), the parameters at which the gradients were taken, or a guess.
        gradient: (targets, d), flat in the order of parameters_to_vector.
        labels: fixed labels in place of the joint search, in the shapes that `projection` takes;
            with those of `infer_label` this is the attack of Zhao, Mopuri and Bilen (2020).
        confined: whether to search inside the pixel box, as `projection` does; the original does
            not, and is much slower on networks with max pooling.
        spread: standard deviation of the unconfined starting inputs; the original's 1 saturates
            the first layer of a sigmoid network with large weights.
    """
    problem = MatchingProblem(model, state, gradient, inputs, search or Search())
    hard = None if labels is None else _label_rows(problem, model, labels)

    start = _normal(problem, hard)
    start[:, : inputs.size] *= 0.2 if confined else spread
    if confined:
        start[:, : inputs.size] += _levels(problem)[:, None]
    with full_precision(gradient.device):
        return problem.solve(start, _decoder(problem, hard, confined), squared_distance, 0.0)


def projection(
    model: nn.Module,
    state: Tensor,
    gradient: Tensor,
    inputs: Inputs,
    *,
    labels: Tensor | None = None,
    power: float = 1.0,
    total_variation: float = 0.0,
    search: Search | None = None,
) -> Inversion:
    """Recover images from a gradient known up to one scalar of unknown sign.

    Minimise 1 - cos²(φ(∇L(x)), φ(g)) + τ TV(x) over pixels confined to [low, high] by
    x = low + (high - low)(1 + sin u)/2, with L-BFGS on u. φ(v) = sign(v)|v|^power: 1 suits exact
    gradients and additive noise; 1/4 suits a random stepsize for each coordinate, whose spread it
    shrinks (see `matching.compress`).

    Args:
        model, state, gradient: as for `dlg`.
        labels: (targets,) or (targets, batch), or (targets, candidates, batch), of which restart r
            tries candidate r mod candidates. None infers them from the last layer for a batch of
            one, and otherwise searches for soft labels together with the images.
        power: the exponent of φ, in (0, 1].
        total_variation: the weight τ of the prior that neighbouring pixels are alike.
    """
    if not 0 < power <= 1:
        raise AttackError(f"power must lie in (0, 1], got {power}")
    problem = MatchingProblem(model, state, gradient, inputs, search or Search())
    return _search_box(problem, model, labels, misalignment(power), total_variation)


def sign_free(
    model: nn.Module,
    state: Tensor,
    gradient: Tensor,
    inputs: Inputs,
    *,
    likelihood: bool = False,
    labels: Tensor | None = None,
    total_variation: float = 0.01,
    search: Search | None = None,
) -> Inversion:
    """Recover images from a gradient whose coordinates each have a factor of unknown sign.

    Minimise 1 - corr²(|∇L(x)|^(1/2), |g|^(1/2)) + τ TV(x), or with `likelihood` the negative
    log-likelihood of factors that are Gaussian (`matching.sign_free_likelihood`). The label of a
    batch of one is that of the last layer's longest row. Other arguments are those of `projection`.
    """
    problem = MatchingProblem(model, state, gradient, inputs, search or Search())
    if labels is None and inputs.batch_size == 1:
        labels = infer_label(model, gradient, signs=False).labels
    mismatch = sign_free_likelihood if likelihood else magnitude_misalignment(0.5)
    return _search_box(problem, model, labels, mismatch, total_variation)


def _search_box(
    problem: MatchingProblem,
    model: nn.Module,
    labels: Tensor | None,
    mismatch: Mismatch,
    total_variation: float,
) -> Inversion:
    """Search over pixels confined to the box, and over soft labels of a batch without labels."""
    inputs = problem.inputs
    soft = labels is None and inputs.batch_size > 1
    hard = None if soft else _label_rows(problem, model, labels)

    start = 0.2 * _normal(problem, hard)
    start[:, : inputs.size] += _levels(problem)[:, None]
    with full_precision(problem.gradient.device):
        return problem.solve(start, _decoder(problem, hard, True), mismatch, total_variation)


def _normal(problem: MatchingProblem, hard: Tensor | None) -> Tensor:
    """Draw a starting point for each row: pixels and, without hard labels, label scores."""
    inputs = problem.inputs
    scores = inputs.batch_size * problem.classes if hard is None else 0
    return problem.normal(inputs.size + scores)


def _decoder(problem: MatchingProblem, hard: Tensor | None, confined: bool) -> Decode:
    """Return what turns points of the search into pixels and labels."""
    inputs = problem.inputs

    def decode(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        free = points[:, : inputs.size].view(-1, inputs.batch_size, *inputs.shape)
        pixels = _in_box(free, inputs) if confined else inputs.pixels(free)
        if hard is not None:
            return pixels, hard[rows]
        scores = points[:, inputs.size :].view(-1, inputs.batch_size, problem.classes)
        return pixels, scores.softmax(-1)

    return decode


def _in_box(angles: Tensor, inputs: Inputs) -> Tensor:
    return inputs.low + (inputs.high - inputs.low) * (1 + angles.sin()) / 2


def _levels(problem: MatchingProblem) -> Tensor:
    """Return the starting brightness of each row as an angle: first dark, then spread up to grey.

    Bright starts saturate the first layer of a sigmoid network and leave no slope to follow.
    """
    restart = torch.arange(problem.rows, device=problem.gradient.device) % problem.search.restarts
    return -1.0 + restart.to(problem.gradient) / problem.search.restarts


def _label_rows(problem: MatchingProblem, model: nn.Module, labels: Tensor | None) -> Tensor:
    """Return one-hot labels (rows, batch, classes)."""
    inputs, device = problem.inputs, problem.gradient.device
    if labels is None:
        labels = infer_label(model, problem.gradient).labels
    candidates = labels if labels.dim() == 3 else labels.reshape(len(labels), 1, -1)
    if candidates.shape != (problem.targets, candidates.shape[1], inputs.batch_size):
        raise AttackError(
            f"labels of shape {tuple(labels.shape)} do not fit {problem.targets} targets with "
            f"batches of {inputs.batch_size}; accepted are (targets,) for a batch of one, "
            "(targets, batch) and (targets, candidates, batch)"
        )
    known = (candidates >= 0) & (candidates < problem.classes)
    if candidates.is_floating_point() or not known.all():
        raise AttackError(f"labels must be integers from 0 to {problem.classes - 1}")
    restart = torch.arange(problem.rows, device=device) % problem.search.restarts
    chosen = candidates.to(device)[problem.target_of, restart % candidates.shape[1]]
    return torch.nn.functional.one_hot(chosen, problem.classes).to(problem.gradient)
