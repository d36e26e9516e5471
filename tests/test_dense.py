"""Gradients of dense stacks, written out, against autograd of one replica at a time."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from sottovoce.problems.gradients import methods
from sottovoce.problems.gradients.dense import DenseStack
from sottovoce.problems.gradients.layout import Loss
from sottovoce.problems.gradients.methods import Compute, ReplicaGradients

CPU = torch.device("cpu")
CLASSES = 4


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return mse_loss(outputs[:, 0], targets.to(outputs.dtype))


STACKS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "one layer": (nn.Linear(6, CLASSES), (6,)),
    "images": (nn.Sequential(nn.Flatten(), nn.Linear(12, CLASSES)), (3, 2, 2)),
    "deep": (
        nn.Sequential(
            *(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 7, bias=False), nn.ReLU()),
            *(nn.Linear(7, 3), nn.Sigmoid(), nn.Linear(3, CLASSES), nn.Sigmoid()),
        ),
        (6,),
    ),
    "one module twice": (
        nn.Sequential(nn.Linear(6, 5), _TANH := nn.Tanh(), nn.Linear(5, CLASSES), _TANH),
        (6,),
    ),
}


def targets_for(kind: str, generator: torch.Generator) -> Tensor:
    if kind == "probabilities":
        return torch.rand(5, 8, CLASSES, dtype=torch.float64, generator=generator).softmax(-1)
    targets = torch.randint(CLASSES, (5, 8), generator=generator)
    if kind == "some left out":
        targets[:, ::3] = -100
    return targets


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (cross_entropy, "classes"),
        (cross_entropy, "some left out"),
        (cross_entropy, "probabilities"),
        (squares, "classes"),
    ],
)
def test_gradients_and_outputs_are_those_of_autograd(name: str, loss: Loss, kind: str) -> None:
    model, shape = STACKS[name]
    generator = torch.Generator().manual_seed(0)
    expected = ReplicaGradients(model, loss, Compute("loop"), device=CPU)
    found = DenseStack.of(model, loss, shape)
    assert found is not None
    vectors = torch.randn(5, expected.layout.dimension, dtype=torch.float64, generator=generator)
    inputs = torch.randn(5, 8, *shape, dtype=torch.float64, generator=generator)
    targets = targets_for(kind, generator)
    ours, theirs = torch.empty_like(vectors), torch.empty_like(vectors)
    found.gradient(vectors, inputs, targets, ours)
    expected(vectors, inputs, targets, theirs)
    assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-14)
    outputs = found.outputs(vectors, inputs)
    assert torch.allclose(outputs, expected.outputs(vectors, inputs), rtol=1e-12)


def test_pieces_decide_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    model, shape = STACKS["deep"]
    generator = torch.Generator().manual_seed(0)
    ours = ReplicaGradients(model, cross_entropy, device=CPU, shape=shape)
    vectors = torch.randn(7, ours.layout.dimension, dtype=torch.float64, generator=generator)
    inputs = torch.randn(7, 8, *shape, dtype=torch.float64, generator=generator)
    targets = torch.randint(CLASSES, (7, 8), generator=generator)
    assert ours.method == "fused"
    assert len(list(ours.parts(7, 8))) == 1
    whole, pieces = torch.empty_like(vectors), torch.empty_like(vectors)
    ours(vectors, inputs, targets, whole)
    monkeypatch.setattr(methods, "_GATHERED_BYTES", 3 * 8 * 6 * 4)
    assert [part.stop - part.start for part in ours.parts(7, 8)] == [3, 3, 3]
    ours(vectors, inputs, targets, pieces)
    assert torch.allclose(pieces, whole, rtol=1e-14, atol=0)


def test_what_is_no_dense_stack_is_left_to_others() -> None:
    frozen = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2))
    frozen[0].weight.requires_grad_(False)
    twice = nn.Sequential(nn.Linear(6, 2), nn.ReLU(), nn.Tanh())
    for model, shape in (
        (nn.Linear(6, 2), (3, 6)),
        (nn.Linear(6, 2), None),
        (nn.Conv2d(1, 2, 3), (1, 4, 4)),
        (nn.Sequential(nn.Linear(6, 2), nn.Softmax(-1)), (6,)),
        (twice, (6,)),
        (frozen, (6,)),
    ):
        assert DenseStack.of(model, cross_entropy, shape) is None
