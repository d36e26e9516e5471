"""Each row reaches its own minimum, whatever the other rows do."""

import pytest
import torch
from torch import Tensor

from sottovoce.privacy.readers.lbfgs import minimise


def differentiated(function):
    def objective(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        loss = function(x, rows)
        return loss.detach(), torch.autograd.grad(loss.sum(), x)[0]

    return objective


def quadratics(problems: int, dimension: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(problems, dimension, dimension, generator=generator, dtype=torch.float64)
    eye = torch.eye(dimension, dtype=torch.float64)
    return root @ root.mT + 0.1 * eye, root[:, 0]


def rosenbrock(x: Tensor, rows: Tensor) -> Tensor:
    return (100 * (x[:, 1:] - x[:, :-1] ** 2) ** 2 + (1 - x[:, :-1]) ** 2).sum(1)


def test_quadratics_of_different_curvature_reach_the_solution_of_their_linear_system():
    matrices, vectors = quadratics(5, 12)
    matrices = matrices * (10.0 ** torch.arange(-2, 3).double())[:, None, None]
    found = minimise(
        differentiated(
            lambda x, rows: (
                0.5 * torch.einsum("pi,pij,pj->p", x, matrices[rows], x)
                - (vectors[rows] * x).sum(1)
            )
        ),
        torch.zeros(5, 12, dtype=torch.float64),
        iterations=300,
        gradient_tolerance=1e-6,
    )
    assert found.converged.all()
    expected = torch.linalg.solve(matrices, vectors)
    assert ((found.x - expected).norm(dim=1) < 1e-5 * expected.norm(dim=1)).all()


def test_rosenbrock_reaches_one_from_the_classical_starting_point():
    start = torch.tensor([[-1.2, 1.0], [0.0, 0.0], [2.0, -1.0]], dtype=torch.float64)
    found = minimise(differentiated(rosenbrock), start, iterations=200, gradient_tolerance=1e-10)
    torch.testing.assert_close(found.x, torch.ones_like(start), rtol=1e-8, atol=1e-8)
    assert (found.iterations < 60).all()


def test_a_row_takes_the_same_path_alone_and_among_others():
    start = torch.randn(4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    together = minimise(differentiated(rosenbrock), start, iterations=25)
    for row in range(4):
        alone = minimise(differentiated(rosenbrock), start[row : row + 1], iterations=25)
        torch.testing.assert_close(together.x[row], alone.x[0], rtol=1e-9, atol=1e-9)


def test_a_row_that_is_not_a_number_stops_at_once_and_the_others_go_on():
    start = torch.tensor([[float("nan"), 1.0], [0.0, 0.0]], dtype=torch.float64)
    found = minimise(differentiated(rosenbrock), start, iterations=100, gradient_tolerance=1e-9)
    assert found.loss[0].isnan()
    assert found.iterations[0] == 0
    torch.testing.assert_close(found.x[1], torch.ones(2, dtype=torch.float64))


def test_stopped_rows_are_not_evaluated_again():
    sizes = []

    def objective(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        sizes.append(len(rows))
        scale = 10.0 ** (2 * rows.double())[:, None] * torch.tensor([1.0, 3.0, 30.0])
        return 0.5 * (scale * x * x).sum(1), scale * x

    start = torch.tensor([[0.0] * 3, [1.0, 2.0, 3.0]], dtype=torch.float64)
    minimise(objective, start, iterations=50, gradient_tolerance=1e-8)
    assert sizes[0] == 2
    assert set(sizes[1:]) == {1}


def test_the_loss_never_rises_and_the_observer_sees_every_iterate():
    seen: dict[int, Tensor] = {}
    start = torch.tensor([[-1.2, 1.0, 0.5]], dtype=torch.float64)
    found = minimise(
        differentiated(rosenbrock),
        start,
        iterations=15,
        observer=lambda iteration, x: seen.update({iteration: x.clone()}),
    )
    assert list(seen) == list(range(16))
    losses = torch.stack([rosenbrock(x, torch.tensor([0]))[0] for x in seen.values()])
    assert (losses.diff() <= 0).all()
    assert losses[-1] == found.loss[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_function_unbounded_below_ends_at_the_iteration_limit_without_an_error(dtype):
    found = minimise(
        differentiated(lambda x, rows: -x.square().sum(1)),
        torch.ones(1, 2, dtype=dtype),
        iterations=3,
    )
    assert not found.converged.any()
    assert found.loss[0] < -1e3
