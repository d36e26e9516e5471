"""From a gradient estimate to the data behind it: deep leakage and scale-free projection.

Both attacks know what is public (model, input shape and range) and the estimate, never the truth.
All targets and restarts are solved in one batched computation. The attacks that need no search,
`infer_label` and `linear_layer`, live in `layers`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sottovoce.errors import AttackError
from sottovoce.privacy.readers.adam import descend
from sottovoce.privacy.readers.layers import infer_label
from sottovoce.privacy.readers.lbfgs import Minimum, minimise
from sottovoce.privacy.readers.matching import (
    BatchedGradient,
    Inputs,
    Mismatch,
    classes_of,
    full_precision,
    jumps,
    magnitude_misalignment,
    misalignment,
    sign_free_likelihood,
    squared_distance,
    total_variation,
)

Decode = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Search:
    """How hard an inversion searches.

    Attributes:
        iterations: the most L-BFGS steps of each restart.
        warmup: Adam steps before those. None takes 1000 for a model with max pooling or ReLU, whose
            gradients jump and would stop a line search early, and 0 for a smooth model.
        restarts: starting points for each target; the one with the lowest loss is kept.
        seed: of the starting points.
        trace: iterations, warmup included, at which to keep the images; 0 is the start.
        chunk: problems evaluated together; None chooses by model size and device.
    """

    iterations: int = 200
    warmup: int | None = None
    restarts: int = 2
    seed: int = 0
    trace: Sequence[int] = ()
    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.restarts < 1 or (self.warmup or 0) < 0:
            raise AttackError(
                "iterations and restarts must be at least 1 and warmup at least 0, got "
                f"{self.iterations}, {self.restarts} and {self.warmup}"
            )


@dataclass(frozen=True)
class Inversion:
    """What an attack read out of each target's gradient.

    Attributes:
        images: (targets, batch, *shape) in pixel space; `dlg` does not confine them to the box.
        labels: (targets, batch).
        loss: (targets,), the objective of the best restart.
        residual: (targets,), the share of the estimate's squared norm that the images leave
            unexplained (after `projection`'s compression, if any); 0 is a perfect match.
        diverged: (targets,), whether the search failed: non-finite values, or a residual above 1/2.
        iterations: (targets,), steps that the best restart took, warmup included.
        trace: (len(search.trace), targets, batch, *shape), or None; the best restart's images.
    """

    images: Tensor
    labels: Tensor
    loss: Tensor
    residual: Tensor
    diverged: Tensor
    iterations: Tensor
    trace: Tensor | None = field(default=None)


class _Problem:
    """Targets, their estimates and parameters; rows of a search are targets x restarts."""

    def __init__(
        self, model: nn.Module, state: Tensor, gradient: Tensor, inputs: Inputs, search: Search
    ):
        if gradient.dim() != 2 or not gradient.is_floating_point():
            raise AttackError(
                f"gradients must be floating point of shape (targets, d), got {gradient.dtype} "
                f"{tuple(gradient.shape)}"
            )
        if state.shape not in (gradient.shape, gradient.shape[1:]):
            raise AttackError(
                f"state must have shape {tuple(gradient.shape)} or {tuple(gradient.shape[1:])} "
                f"like the gradients, got {tuple(state.shape)}"
            )
        self.gradient = gradient.detach()
        self.state = state.detach().to(gradient).expand_as(gradient)
        self.inputs, self.search = inputs, search
        self.targets = len(gradient)
        self.compute = BatchedGradient(model, gradient.shape[1], gradient.device, search.chunk)
        self.classes = classes_of(model, self.compute, self.state[0], inputs)
        self.warmup = search.warmup if search.warmup is not None else 1000 * jumps(model)
        self.rows = self.targets * search.restarts
        self.target_of = torch.arange(self.rows, device=gradient.device) // search.restarts

    def normal(self, size: int) -> Tensor:
        """Draw (rows, size) standard normal numbers, the same on every device.

        Restart by restart, so that a search with more restarts begins with those of a smaller one.
        """
        generator = torch.Generator().manual_seed(self.search.seed)
        draws = torch.randn(self.search.restarts, self.targets, size, generator=generator)
        return draws.transpose(0, 1).reshape(self.rows, size).to(self.gradient)

    def evaluate(
        self, points: Tensor, rows: Tensor, decode: Decode, mismatch: Mismatch, variation: float
    ) -> tuple[Tensor, Tensor]:
        """Return loss (active,) and its gradient at points (active, n), chunk by chunk."""
        losses, gradients = [], []
        size = self.compute.chunk
        for part, r in zip(torch.split(points, size), torch.split(rows, size), strict=True):
            u = part.detach().requires_grad_()
            target = self.target_of[r]
            pixels, labels = decode(u, r)
            candidate = self.compute(self.state[target], self.inputs.standardise(pixels), labels)
            loss = mismatch(candidate, self.gradient[target])
            if variation:
                loss = loss + variation * total_variation(pixels)
            gradients.append(torch.autograd.grad(loss.sum(), u)[0])
            losses.append(loss.detach())
        return torch.cat(losses), torch.cat(gradients)

    def solve(
        self, start: Tensor, decode: Decode, mismatch: Mismatch, variation: float
    ) -> Inversion:
        """Minimise from every starting point and keep each target's best restart."""
        kept: dict[int, Tensor] = {}
        wanted = set(self.search.trace)

        def keep(iteration: int, x: Tensor) -> None:
            if iteration in wanted:
                kept[iteration] = x.clone()

        def objective(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            return self.evaluate(points, rows, decode, mismatch, variation)

        if self.warmup:
            start = descend(objective, start, iterations=self.warmup, observer=keep)
        found = minimise(
            objective,
            start,
            iterations=self.search.iterations,
            loss_tolerance=torch.finfo(start.dtype).eps ** 2,
            observer=lambda k, x: keep(self.warmup + k, x),
        )
        best = self._best(found)
        images, labels = self._decoded(found.x, best, decode)
        residual, _ = self.evaluate(found.x[best], best, decode, mismatch, 0.0)
        finite = residual.isfinite() & images.flatten(1).isfinite().all(1)
        trace = [self._decoded(kept.get(k, found.x), best, decode)[0] for k in self.search.trace]
        return Inversion(
            images,
            labels.argmax(-1),
            found.loss[best],
            residual,
            ~finite | (residual > 0.5),
            found.iterations[best] + self.warmup,
            torch.stack(trace) if trace else None,
        )

    def _best(self, found: Minimum) -> Tensor:
        loss = found.loss.nan_to_num(torch.inf).view(self.targets, self.search.restarts)
        first = torch.arange(self.targets, device=loss.device) * self.search.restarts
        return first + loss.argmin(1)

    def _decoded(self, points: Tensor, best: Tensor, decode: Decode) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return decode(points[best], best)


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
    problem = _Problem(model, state, gradient, inputs, search or Search())
    hard = None if labels is None else _label_rows(problem, model, labels)

    def decode(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        free = points[:, : inputs.size].view(-1, inputs.batch_size, *inputs.shape)
        pixels = _in_box(free, inputs) if confined else inputs.pixels(free)
        if hard is not None:
            return pixels, hard[rows]
        scores = points[:, inputs.size :].view(-1, inputs.batch_size, problem.classes)
        return pixels, scores.softmax(-1)

    joint = inputs.batch_size * problem.classes if hard is None else 0
    start = problem.normal(inputs.size + joint)
    start[:, : inputs.size] *= 0.2 if confined else spread
    if confined:
        start[:, : inputs.size] += _levels(problem)[:, None]
    with full_precision(gradient.device):
        return problem.solve(start, decode, squared_distance, 0.0)


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
    problem = _Problem(model, state, gradient, inputs, search or Search())
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
    problem = _Problem(model, state, gradient, inputs, search or Search())
    if labels is None and inputs.batch_size == 1:
        labels = infer_label(model, gradient, signs=False).labels
    mismatch = sign_free_likelihood if likelihood else magnitude_misalignment(0.5)
    return _search_box(problem, model, labels, mismatch, total_variation)


def _search_box(
    problem: _Problem,
    model: nn.Module,
    labels: Tensor | None,
    mismatch: Mismatch,
    total_variation: float,
) -> Inversion:
    """Search over pixels confined to the box, and over soft labels of a batch without labels."""
    inputs = problem.inputs
    soft = labels is None and inputs.batch_size > 1
    hard = None if soft else _label_rows(problem, model, labels)

    def decode(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        angles = points[:, : inputs.size].view(-1, inputs.batch_size, *inputs.shape)
        pixels = _in_box(angles, inputs)
        if hard is not None:
            return pixels, hard[rows]
        scores = points[:, inputs.size :].view(-1, inputs.batch_size, problem.classes)
        return pixels, scores.softmax(-1)

    free = inputs.batch_size * problem.classes if soft else 0
    start = 0.2 * problem.normal(inputs.size + free)
    start[:, : inputs.size] += _levels(problem)[:, None]
    with full_precision(problem.gradient.device):
        return problem.solve(start, decode, mismatch, total_variation)


def _in_box(angles: Tensor, inputs: Inputs) -> Tensor:
    return inputs.low + (inputs.high - inputs.low) * (1 + angles.sin()) / 2


def _levels(problem: _Problem) -> Tensor:
    """Return the starting brightness of each row as an angle: first dark, then spread up to grey.

    Bright starts saturate the first layer of a sigmoid network and leave no slope to follow.
    """
    restart = torch.arange(problem.rows, device=problem.gradient.device) % problem.search.restarts
    return -1.0 + restart.to(problem.gradient) / problem.search.restarts


def _label_rows(problem: _Problem, model: nn.Module, labels: Tensor | None) -> Tensor:
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
