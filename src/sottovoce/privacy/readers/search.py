"""Gradient matching as a search: how hard it tries, what it finds, and the batched problem.

All targets and restarts are solved in one computation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sottovoce.errors import AttackError
from sottovoce.privacy.readers.adam import descend
from sottovoce.privacy.readers.lbfgs import Minimum, minimise
from sottovoce.privacy.readers.matching import (
    BatchedGradient,
    Inputs,
    Mismatch,
    classes_of,
    jumps,
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


class MatchingProblem:
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
        self.classes = classes_of(self.compute, self.state[0], inputs)
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
