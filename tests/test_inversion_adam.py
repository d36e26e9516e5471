"""Adam on independent rows: past jumps, and never worse than where it began."""

import torch
from torch import Tensor

from sottovoce.privacy.readers.adam import descend


def staircase(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """|x|² plus upward teeth of height 0.05 that trap any search that insists on decrease."""
    return x.square().sum(1) + 0.05 * (10 * x).floor().remainder(2).sum(1), 2 * x


def test_jumps_do_not_stop_the_descent():
    start = torch.tensor([[3.0, -2.0], [0.7, 5.0]], dtype=torch.float64)
    found = descend(staircase, start, iterations=400)
    assert (found.abs() < 0.1).all()


def test_the_best_point_is_kept_and_not_the_last():
    start = torch.full((1, 3), 1e-6, dtype=torch.float64)
    found = descend(lambda x, rows: (x.square().sum(1), 2 * x), start, iterations=5, rate=1.0)
    assert (found.square().sum(1) <= start.square().sum(1)).all()


def test_a_row_that_is_not_a_number_leaves_the_others_alone():
    start = torch.tensor([[torch.nan, 0.0], [1.0, -1.0]], dtype=torch.float64)
    together = descend(staircase, start, iterations=50)
    alone = descend(staircase, start[1:], iterations=50)
    assert torch.equal(together[1], alone[0])


def test_the_observer_sees_the_start_and_every_step():
    seen: list[int] = []
    descend(staircase, torch.ones(1, 2), iterations=4, observer=lambda k, x: seen.append(k))
    assert seen == [0, 1, 2, 3, 4]
