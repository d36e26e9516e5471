"""Minimise many independent functions at once: L-BFGS in which every row is its own problem.

`torch.optim.LBFGS` treats all its parameters as one problem, so that one hard problem decides the
step of all. Here history, line search and convergence are kept for each row, and rows that have
stopped cost nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Observer = Callable[[int, Tensor], None]


@dataclass(frozen=True)
class Minimum:
    """What `minimise` found, row by row.

    Attributes:
        x: (problems, dimension), the best point visited.
        loss: (problems,), the objective there; infinite or NaN where it was so at the start.
        iterations: (problems,), steps taken before the row stopped.
        converged: (problems,), whether the gradient or the loss fell below its tolerance.
    """

    x: Tensor
    loss: Tensor
    iterations: Tensor
    converged: Tensor


def _direction(
    gradient: Tensor, steps: Tensor, changes: Tensor, curvature: Tensor, scale: Tensor
) -> Tensor:
    """Apply the inverse Hessian estimate to -gradient by the two-loop recursion.

    steps, changes: (history, problems, dimension), newest last; curvature: (history, problems), the
    inner products <step, change>, 0 where a pair was skipped; scale: (problems,).
    """
    tiny = torch.finfo(curvature.dtype).tiny
    inverse = torch.where(curvature > 0, 1.0 / curvature.clamp_min(tiny), 0.0)
    q = gradient.clone()
    coefficients = torch.zeros_like(curvature)
    for h in reversed(range(len(steps))):
        coefficients[h] = inverse[h] * (steps[h] * q).sum(1)
        q -= coefficients[h, :, None] * changes[h]
    q *= scale[:, None]
    for h in range(len(steps)):
        correction = inverse[h] * (changes[h] * q).sum(1)
        q += (coefficients[h] - correction)[:, None] * steps[h]
    return -q


def _line_search(
    objective: Objective,
    rows: Tensor,
    x: Tensor,
    loss: Tensor,
    gradient: Tensor,
    direction: Tensor,
    evaluations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Bracket a step with sufficient decrease and flattened slope, for each row apart.

    Weak Wolfe conditions by bisection (Lewis and Overton 2013), which keep <step, change> positive.
    Returns step length (0 where no decrease was found), and loss and gradient there.
    """
    slope = (gradient * direction).sum(1)
    low, high = torch.zeros_like(loss), torch.full_like(loss, torch.inf)
    length = torch.ones_like(loss)
    best, best_loss, best_gradient = torch.zeros_like(loss), loss.clone(), gradient.clone()
    open_rows = torch.arange(len(rows), device=x.device)
    for _ in range(evaluations):
        k = open_rows
        step = length[k]
        new_loss, new_gradient = objective(x[k] + step[:, None] * direction[k], rows[k])
        finite = new_loss.isfinite() & new_gradient.isfinite().all(1)
        decrease = finite & (new_loss <= loss[k] + 1e-4 * step * slope[k])
        flat = (new_gradient * direction[k]).sum(1) >= 0.9 * slope[k]
        better = decrease & (new_loss < best_loss[k])
        best[k[better]] = step[better]
        best_loss[k[better]] = new_loss[better]
        best_gradient[k[better]] = new_gradient[better]
        low[k] = torch.where(decrease, step, low[k])
        high[k] = torch.where(decrease, high[k], step)
        middle = (low[k] + high[k]) / 2
        length[k] = torch.where(high[k].isinf(), 2 * step, middle)
        open_rows = k[~(decrease & flat)]
        if not len(open_rows):
            break
    return best, best_loss, best_gradient


def minimise(
    objective: Objective,
    start: Tensor,
    *,
    iterations: int = 200,
    history: int = 20,
    gradient_tolerance: float = 0.0,
    loss_tolerance: float = -torch.inf,
    evaluations: int = 12,
    observer: Observer = lambda iteration, x: None,
) -> Minimum:
    """Minimise each row of `start` by L-BFGS with a line search of its own (Liu and Nocedal 1989).

    Args:
        objective: takes points (active, dimension) and the rows (active,) they belong to, returns
            their losses (active,) and gradients (active, dimension).
        start: (problems, dimension).
        iterations: the most steps a row may take.
        history: pairs kept for the inverse Hessian estimate.
        gradient_tolerance: a row has converged when its largest gradient entry is not above this.
        loss_tolerance: a row has converged when its loss is not above this.
        evaluations: the most evaluations in one line search.
        observer: called as observer(iteration, x) at the start (0) and after each iteration, until
            every row has stopped; x must not be changed or kept.

    A row whose line search finds no decrease drops its history once and stops the second time.
    """
    x = start.detach().clone()
    problems, dimension = x.shape
    everyone = torch.arange(problems, device=x.device)
    loss, gradient = objective(x, everyone)
    steps = x.new_zeros(history, problems, dimension)
    changes, curvature = torch.zeros_like(steps), x.new_zeros(history, problems)
    scale = 1.0 / gradient.abs().sum(1).clamp_min(torch.finfo(x.dtype).tiny)
    taken = torch.zeros(problems, dtype=torch.long, device=x.device)
    stalled = torch.zeros(problems, dtype=torch.bool, device=x.device)
    converged = (gradient.abs().amax(1) <= gradient_tolerance) | (loss <= loss_tolerance)
    running = loss.isfinite() & gradient.isfinite().all(1) & ~converged
    observer(0, x)
    for iteration in range(1, iterations + 1):
        rows = running.nonzero()[:, 0]
        if not len(rows):
            break
        filled = min(iteration - 1, history)
        kept = slice(history - filled, history)
        direction = _direction(
            gradient[rows],
            steps[kept, rows],
            changes[kept, rows],
            curvature[kept, rows],
            scale[rows],
        )
        uphill = (direction * gradient[rows]).sum(1) >= 0
        direction[uphill] = -gradient[rows[uphill]] * scale[rows[uphill], None]
        length, new_loss, new_gradient = _line_search(
            objective, rows, x[rows], loss[rows], gradient[rows], direction, evaluations
        )
        moved = length > 0
        step = length[:, None] * direction
        change = new_gradient - gradient[rows]
        product = (step * change).sum(1)
        useful = moved & (product > 1e-10 * change.square().sum(1) * scale[rows])
        steps, changes, curvature = (t.roll(-1, 0) for t in (steps, changes, curvature))
        curvature[-1] = 0.0
        steps[-1, rows], changes[-1, rows] = step, change
        curvature[-1, rows] = torch.where(useful, product, 0.0)
        squared = change.square().sum(1).clamp_min(torch.finfo(x.dtype).tiny)
        scale[rows] = torch.where(useful, product / squared, scale[rows])
        x[rows] += step
        loss[rows], gradient[rows] = new_loss, new_gradient
        taken[rows] += moved.long()
        stuck, again = rows[~moved], stalled[rows[~moved]]
        curvature[:, stuck] = 0.0
        scale[stuck] = 1.0 / gradient[stuck].abs().sum(1).clamp_min(torch.finfo(x.dtype).tiny)
        stalled[rows] = ~moved
        running[stuck[again]] = False
        done = (gradient[rows].abs().amax(1) <= gradient_tolerance) | (loss[rows] <= loss_tolerance)
        converged[rows] = done
        running[rows[done]] = False
        observer(iteration, x)
    return Minimum(x, loss, taken, converged)
