"""From a gradient estimate to the data behind it, by a search for images with that gradient.

The search knows what is public (model, input shape and range) and the estimate, never the truth.
All targets and restarts are solved in one computation. What needs no search lives in `layers`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sottovoce.errors import AttackError
from sottovoce.privacy.knowledge import Inputs
from sottovoce.privacy.readers.adam import descend
from sottovoce.privacy.readers.lbfgs import minimise
from sottovoce.privacy.readers.matching import (
    BatchedGradient,
    Mismatch,
    classes_of,
    full_precision,
    jumps,
    variation_of,
)


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
        images: (targets, batch, *shape) in pixel space.
        labels: (targets, batch).
        loss: (targets,), the objective of the best restart.
        residual: (targets,), the share of the estimate's squared norm that the images leave
            unexplained (after compression, if any); 0 is a perfect match.
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
    trace: Tensor | None = None


class MatchingProblem:
    """Targets, their estimates and parameters; rows of a search are targets x restarts.

    Args:
        model: a classifier trained by cross entropy; its weights are not read.
        state: (targets, d) or (d,), the parameters at which the gradients were taken, or a guess.
        gradient: (targets, d), flat in the order of parameters_to_vector.
    """

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
        self.model, self.inputs, self.search = model, inputs, search
        self.targets = len(gradient)
        self.compute = BatchedGradient(model, gradient.shape[1], gradient.device, search.chunk)
        self.classes = classes_of(self.compute, self.state[0], inputs)
        self.warmup = search.warmup if search.warmup is not None else 1000 * jumps(model)
        self.rows = torch.arange(self.targets * search.restarts, device=gradient.device)
        self.target_of, self.restart_of = self.rows // search.restarts, self.rows % search.restarts

    def invert(
        self,
        mismatch: Mismatch,
        labels: Tensor | None = None,
        *,
        total_variation: float = 0.0,
        confined: bool = True,
        spread: float = 0.2,
        score_spread: float = 0.2,
    ) -> Inversion:
        """Minimise mismatch + τ TV(x) from normal points, and keep each target's best restart.

        Args:
            labels: (targets,) or (targets, batch), or (targets, candidates, batch), of which
                restart r tries candidate r mod candidates. None searches for soft labels together
                with the images.
            total_variation: the weight τ of the prior that neighbouring pixels are alike.
            confined: whether pixels stay in [low, high], by x = low + (high - low)(1 + sin u)/2
                with the search on u.
            spread: standard deviation of the starting points; score_spread: that of label scores.
        """
        inputs, wanted = self.inputs, set(self.search.trace)
        hard = None if labels is None else self._label_rows(labels)
        kept: dict[int, Tensor] = {}

        def keep(iteration: int, x: Tensor) -> None:
            if iteration in wanted:
                kept[iteration] = x.clone()

        def decode(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            """Turn points of the search into pixels and labels."""
            free = points[:, : inputs.size].view(-1, inputs.batch_size, *inputs.shape)
            pixels = inputs.in_box(free) if confined else inputs.pixels(free)
            if hard is not None:
                return pixels, hard[rows]
            scores = points[:, inputs.size :].view(-1, inputs.batch_size, self.classes)
            return pixels, scores.softmax(-1)

        def evaluate(points: Tensor, rows: Tensor, variation: float) -> tuple[Tensor, Tensor]:
            """Return loss (active,) and its gradient at points (active, n), chunk by chunk."""
            losses, gradients = [], []
            size = self.compute.chunk
            for part, r in zip(torch.split(points, size), torch.split(rows, size), strict=True):
                u = part.detach().requires_grad_()
                target = self.target_of[r]
                pixels, answers = decode(u, r)
                candidate = self.compute(self.state[target], inputs.standardise(pixels), answers)
                loss = mismatch(candidate, self.gradient[target])
                if variation:
                    loss = loss + variation * variation_of(pixels)
                gradients.append(torch.autograd.grad(loss.sum(), u)[0])
                losses.append(loss.detach())
            return torch.cat(losses), torch.cat(gradients)

        def objective(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            return evaluate(points, rows, total_variation)

        start = self._normal(inputs.size + (hard is None) * inputs.batch_size * self.classes)
        start[:, : inputs.size] *= spread
        start[:, inputs.size :] *= score_spread
        if confined:
            # First dark, then up to grey: bright starts saturate the first layer of a sigmoid
            # network and leave no slope to follow.
            levels = -1.0 + self.restart_of.to(self.gradient) / self.search.restarts
            start[:, : inputs.size] += levels[:, None]
        with full_precision(self.gradient.device):
            if self.warmup:
                start = descend(objective, start, iterations=self.warmup, observer=keep)
            found = minimise(
                objective,
                start,
                iterations=self.search.iterations,
                loss_tolerance=torch.finfo(start.dtype).eps ** 2,
                observer=lambda k, x: keep(self.warmup + k, x),
            )
            loss = found.loss.nan_to_num(torch.inf).view(self.targets, self.search.restarts)
            best = self.rows[:: self.search.restarts] + loss.argmin(1)
            images, soft = decode(found.x[best], best)
            residual, _ = evaluate(found.x[best], best, 0.0)
        finite = residual.isfinite() & images.flatten(1).isfinite().all(1)
        trace = [decode(kept.get(k, found.x)[best], best)[0] for k in self.search.trace]
        return Inversion(
            images,
            soft.argmax(-1),
            found.loss[best],
            residual,
            ~finite | (residual > 0.5),
            found.iterations[best] + self.warmup,
            torch.stack(trace) if trace else None,
        )

    def _normal(self, size: int) -> Tensor:
        """Draw (rows, size) standard normal numbers, the same on every device.

        Restart by restart, so that a search with more restarts begins with those of a smaller one.
        """
        generator = torch.Generator().manual_seed(self.search.seed)
        draws = torch.randn(self.search.restarts, self.targets, size, generator=generator)
        return draws.transpose(0, 1).reshape(len(self.rows), size).to(self.gradient)

    def _label_rows(self, labels: Tensor) -> Tensor:
        """Return one-hot labels (rows, batch, classes)."""
        candidates = labels if labels.dim() == 3 else labels.reshape(len(labels), 1, -1)
        if candidates.shape != (self.targets, candidates.shape[1], self.inputs.batch_size):
            raise AttackError(
                f"labels of shape {tuple(labels.shape)} do not fit {self.targets} targets with "
                f"batches of {self.inputs.batch_size}; accepted are (targets,) for a batch of one, "
                "(targets, batch) and (targets, candidates, batch)"
            )
        known = (candidates >= 0) & (candidates < self.classes)
        if candidates.is_floating_point() or not known.all():
            raise AttackError(f"labels must be integers from 0 to {self.classes - 1}")
        tried = self.restart_of % candidates.shape[1]
        chosen = candidates.to(self.gradient.device)[self.target_of, tried]
        return torch.nn.functional.one_hot(chosen, self.classes).to(self.gradient)
