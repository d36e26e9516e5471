"""Descend many independent functions at once where they jump and a line search would get stuck."""

import math

import torch
from torch import Tensor

from sottovoce.privacy.readers.lbfgs import Objective, Observer


def descend(
    objective: Objective,
    start: Tensor,
    *,
    iterations: int,
    rate: float = 0.1,
    observer: Observer = lambda iteration, x: None,
) -> Tensor:
    """Return the best point of each row after `iterations` Adam steps, (problems, dimension).

    Kingma and Ba (2015), with a rate that falls from `rate` to 0 along a cosine. Rows do not
    influence each other. `objective` and `observer` are those of `lbfgs.minimise`.
    """
    x = start.detach().clone()
    rows = torch.arange(len(x), device=x.device)
    first, second = torch.zeros_like(x), torch.zeros_like(x)
    best, best_loss = x.clone(), x.new_full((len(x),), torch.inf)
    observer(0, x)
    for k in range(1, iterations + 1):
        loss, gradient = objective(x, rows)
        better = loss < best_loss
        best[better], best_loss[better] = x[better], loss[better]
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient.square()
        scale = (second / (1 - 0.999**k)).sqrt().clamp_min(torch.finfo(x.dtype).tiny)
        decay = (1 + math.cos(math.pi * k / iterations)) / 2
        x = x - rate * decay * (first / (1 - 0.9**k)) / scale
        observer(k, x)
    return best
