"""Clipped sums without a gradient for each sample: those of a loop over samples, stack by stack."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sottovoce.mechanisms import Bound, Clip
from sottovoce.problems import Compute, ModuleProblem
from sottovoce.problems.data.models import paper_cnn, small_cnn, softmax_regression, tanh_cnn
from sottovoce.problems.gradients.apart import _ELEMENTWISE, treats_apart
from sottovoce.problems.gradients.clipped import ClippedGradients
from sottovoce.problems.gradients.convolution import FusedStack
from sottovoce.problems.gradients.layerwise import LayerwiseStack
from sottovoce.problems.gradients.layout import ParameterLayout
from sottovoce.randomness import private_streams

CPU = torch.device("cpu")
IMAGE = (2, 8, 12)
EXACT = {"rtol": 1e-9, "atol": 1e-12}


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Initial weights are torch's own."""
    torch.manual_seed(0)


class Last(nn.Module):
    """The last position of a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]


def strided() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0), bias=False),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(3, 4, 2, dilation=2),
        nn.Conv2d(4, 4, 2, padding="same", dilation=(2, 4)),
        nn.Conv2d(4, 4, 1, padding="valid"),
        nn.Flatten(),
        nn.Linear(4 * 8, 5),
    )


def same() -> nn.Sequential:
    """What the kernels of a fused stack take, too."""
    return nn.Sequential(
        nn.Conv2d(2, 16, 3, padding="same"),
        nn.Sigmoid(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 24, 7),
        nn.Tanh(),
        nn.Linear(7, 5),
    )


def one_activation() -> nn.Sequential:
    act = nn.Tanh()
    return nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1), act, nn.Conv2d(16, 16, 3, padding=1), act,
        nn.Flatten(), nn.Linear(16 * 96, 5), act, nn.Linear(5, 5),
    )  # fmt: skip


def nested() -> nn.Sequential:
    inner = nn.Sequential(nn.Linear(12, 6, bias=False), nn.Tanh())
    return nn.Sequential(nn.Flatten(1, 2), inner, nn.Linear(6, 3), nn.Flatten(), nn.Linear(48, 5))


STACKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "strided": (strided, IMAGE),
    "same": (same, IMAGE),
    "one activation": (one_activation, IMAGE),
    "sequences": (nested, IMAGE),
    "single layer": (lambda: nn.Linear(4, 5), (4,)),
    "small_cnn": (small_cnn, (1, 28, 28)),
    "tanh_cnn": (tanh_cnn, (1, 28, 28)),
}


def batch(
    model: nn.Module, shape: tuple[int, ...], replicas: int, samples: int = 6
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Vectors near the module's own, inputs of many sizes, targets, and which samples count."""
    generator = torch.Generator().manual_seed(3)

    def drawn(*size: int) -> Tensor:
        return torch.randn(size, dtype=torch.float64, generator=generator)

    vector = ParameterLayout(model).vector(model)
    vectors = vector.double() + 0.1 * drawn(replicas, len(vector))
    inputs = drawn(replicas, samples, *shape) * drawn(replicas, samples, *[1] * len(shape)).exp()
    targets = torch.randint(0, 5, (replicas, samples), generator=generator)
    present = torch.rand(replicas, samples, generator=generator) < 0.8
    return vectors, inputs, targets, present


def by_a_loop(
    model: nn.Module, given: tuple[Tensor, Tensor, Tensor, Tensor], bound: Bound | None
) -> tuple[Tensor, Tensor]:
    """The sums by torch's autograd, one sample at a time, and the norms of what counted."""
    vectors, inputs, targets, present = given
    sums, norms = torch.zeros_like(vectors), []
    for replica, sample in present.nonzero().tolist():
        nn.utils.vector_to_parameters(vectors[replica], model.parameters())
        output = model(inputs[replica, sample][None])
        loss = cross_entropy(output, targets[replica, sample][None])
        parts = torch.autograd.grad(loss, list(model.parameters()))
        gradient = torch.cat([part.flatten() for part in parts])
        norms.append(gradient.norm())
        factor = bound.factors(gradient.norm()) if bound else 1.0
        sums[replica] += factor * gradient
    return sums, torch.stack(norms)


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("name", STACKS)
def test_sums_are_those_of_a_loop_over_samples(name: str, replicas: int) -> None:
    make, shape = STACKS[name]
    model = make().double()
    given = batch(model, shape, replicas)
    _, norms = by_a_loop(model, given, None)
    bound = Clip(float(norms.median()))
    assert norms.min() < bound.norm < norms.max(), "some are clipped and some are not"
    stack = LayerwiseStack.of(model, cross_entropy)
    assert stack is not None
    for limit in (bound, None):
        expected, _ = by_a_loop(model, given, limit)
        out = torch.full_like(expected, torch.nan)
        stack.sums(*given, limit, out)
        assert torch.allclose(out, expected, **EXACT)


@pytest.mark.parametrize("make", [same, one_activation])
@pytest.mark.parametrize("activations", [None, torch.bfloat16])
def test_a_fused_stack_gives_the_same_sums(
    make: Callable[[], nn.Module], activations: torch.dtype | None
) -> None:
    """Through the kernels' definition in torch; the kernels themselves are held to that."""
    model = make().double()
    given = batch(model, IMAGE, 3)
    _, norms = by_a_loop(model, given, None)
    bound = Clip(float(norms.median()))
    stack = FusedStack.of(model, cross_entropy, IMAGE, activations)
    assert stack is not None
    for limit in (bound, None):
        expected, _ = by_a_loop(model, given, limit)
        out = torch.full_like(expected, torch.nan)
        stack.sums(*given, limit, out)
        if activations is None:
            assert torch.allclose(out, expected, **EXACT)
        else:
            assert (out - expected).norm() < 0.06 * expected.norm()


def test_the_papers_cnn_gives_the_same_sums_both_ways() -> None:
    model = paper_cnn().double()
    given = batch(model, (1, 28, 28), 2, 2)
    fused = FusedStack.of(model, cross_entropy, (1, 28, 28))
    layerwise = LayerwiseStack.of(model, cross_entropy)
    assert fused is not None
    assert layerwise is not None
    found = []
    for stack in (fused, layerwise):
        out = torch.empty_like(given[0])
        stack.sums(*given, Clip(1.0), out)
        found.append(out)
    assert torch.allclose(*found, **EXACT)


def test_reduced_precision_does_not_pass_the_bound() -> None:
    """In bfloat16 the products of dense layers round; each sample alone stays below its bound."""
    model = same()
    vectors, inputs, targets, _ = batch(model, IMAGE, 12, 1)
    given = vectors.float(), inputs.float(), targets, torch.ones(12, 1, dtype=torch.bool)
    stack = FusedStack.of(model, cross_entropy, IMAGE, torch.bfloat16)
    assert stack is not None
    out = torch.empty_like(given[0])
    stack.sums(*given, Clip(1e-3), out)
    lengths = out.norm(dim=-1)
    assert lengths.max() <= 1e-3
    assert lengths.min() > 0.98e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parameters_of_fewer_bits_give_nearly_the_same(dtype: torch.dtype) -> None:
    model = same().double()
    given = batch(model, IMAGE, 2)
    vectors, inputs, targets, present = given
    _, norms = by_a_loop(model, given, None)
    expected, _ = by_a_loop(model, given, bound := Clip(float(norms.median())))
    stack = LayerwiseStack.of(model, cross_entropy)
    assert stack is not None
    out = torch.empty_like(expected, dtype=dtype)
    stack.sums(vectors.to(dtype), inputs.to(dtype), targets, present, bound, out)
    near = 1e-5 if dtype == torch.float32 else 0.05
    assert (out - expected).norm() < near * expected.norm()


def test_a_record_made_for_rounding_does_not_pass_the_bound() -> None:
    """Positions whose gradients almost cancel: the norm from Gram matrices would be rounding."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 2, bias=False), nn.Flatten(), nn.Linear(4 * 36, 2))
    stack = LayerwiseStack.of(model, cross_entropy)
    assert stack is not None
    record = 1e4 + torch.rand(1, 1, 1, 7, 7)
    # Scores that sum every channel's outputs with signs in turn: large inputs cancel in dW.
    with torch.no_grad():
        signs = torch.ones(36)
        signs[1::2] = -1
        model[2].weight.copy_(torch.stack([signs.repeat(4), -signs.repeat(4)]))
    vectors = ParameterLayout(model).vector(model)[None]
    present = torch.ones(1, 1, dtype=torch.bool)
    out = torch.empty_like(vectors)
    stack.sums(vectors, record, torch.ones(1, 1, dtype=torch.long), present, Clip(0.5), out)
    assert float(out.norm()) <= 0.5 * (1 + 1e-5)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def hooked() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 5))
    model[0].register_forward_hook(lambda *_: None)
    return model


def tied() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    return model


def frozen() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 5))
    model[0].weight.requires_grad_(False)
    return model


def twice() -> nn.Sequential:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer)


class Restless(nn.Tanh):
    """Could do anything; what it inherits says nothing of that."""


def replaced() -> nn.Sequential:
    """Torch's own module by its type, with a `forward` of its own."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
    model[1].forward = lambda x: x - x.mean(0)
    return model


def slope_hooked() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
    model[1].register_full_backward_hook(lambda *_: None)
    return model


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "own module": lambda: nn.Sequential(nn.Linear(4, 5), Last(), nn.Linear(5, 5)),
    "subclass": lambda: nn.Sequential(nn.Linear(4, 5), Restless()),
    "own forward": replaced,
    "hooked slopes": slope_hooked,
    "all flattened": lambda: nn.Sequential(nn.Linear(4, 5), nn.Flatten(0)),
    "samples split": lambda: nn.Sequential(nn.Linear(4, 5), nn.Unflatten(0, (1, -1))),
    "over samples": lambda: nn.Sequential(nn.Linear(4, 5), nn.Softmax(0)),
    "unnamed dimension": lambda: nn.Sequential(nn.Linear(4, 5), nn.Softmax()),
    "from the end": lambda: nn.Sequential(nn.Linear(4, 5), nn.LogSoftmax(-2)),
    "without statistics": lambda: nn.Sequential(
        nn.Linear(4, 5), nn.BatchNorm1d(5, affine=False, track_running_stats=False)
    ),
    "own parameters": lambda: nn.Sequential(nn.Linear(4, 4), Shared()),
    "norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
    "groups": lambda: nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten()),
    "reflected": lambda: nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")),
    "hooked": hooked,
    "tied": tied,
    "frozen": frozen,
    "twice": twice,
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_the_formulas_do_not_cover_is_not_taken_for_a_stack(name: str) -> None:
    assert LayerwiseStack.of(OTHERS[name](), cross_entropy) is None


APART: list[nn.Module] = [
    *(kind() for kind in sorted(_ELEMENTWISE - {nn.Threshold, nn.Dropout}, key=repr)),
    nn.Threshold(0.1, 0.2), nn.Dropout().eval(), nn.MaxPool2d(2), nn.AvgPool2d(2),
    nn.MaxPool1d(2), nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(2), nn.AdaptiveMaxPool1d(2),
    nn.AdaptiveAvgPool2d(2), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Flatten(1, 2),
    nn.Unflatten(1, (2, 2)), nn.Softmax(1), nn.LogSoftmax(2), nn.GLU(2),
]  # fmt: skip


@pytest.mark.parametrize("module", APART, ids=repr)
def test_what_may_stand_between_layers_treats_samples_apart(module: nn.Module) -> None:
    """Values of many sizes, ties and numbers that are not finite among them."""
    assert treats_apart(module)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(5, 4, 6, generator=generator) * 10 ** torch.arange(-2.0, 3)[:, None, None]
    x[1], x[3, 0, 0], x[4, 1, 1] = 0.0, torch.inf, torch.nan
    alone = torch.cat([module(one[None]) for one in x])
    assert torch.allclose(module(x), alone, rtol=1e-6, equal_nan=True)


def test_images_without_channels_are_taken_one_by_one() -> None:
    """A convolution would take two such images for two channels of one."""
    stack = LayerwiseStack.of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), cross_entropy)
    assert stack is not None
    assert stack.numbers_each(torch.randn(1, 1, 8, 8)) is not None
    assert stack.numbers_each(torch.randn(1, 8, 8)) is None


@pytest.mark.parametrize("make", [small_cnn, paper_cnn, tanh_cnn, softmax_regression])
def test_the_models_of_the_experiments_keep_the_quick_way(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make().double()
    given = batch(model, (1, 28, 28), 1, 2)
    clipped = ClippedGradients(model, cross_entropy, CPU)
    monkeypatch.setattr(clipped, "_apart", None)
    clipped(*given, Clip(0.7), torch.empty_like(given[0]))
    assert isinstance(clipped._stack, LayerwiseStack)


@pytest.mark.parametrize("inplace", [True, False])
def test_modules_that_alter_their_inputs_go_the_general_way(inplace: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace), nn.Linear(6, 5)).double()
    given = batch(model, (4,), 2)
    clipped = ClippedGradients(model, cross_entropy, CPU)
    out = torch.empty_like(given[0])
    clipped(*given, Clip(0.7), out)
    assert (clipped._stack is None) == inplace
    expected, _ = by_a_loop(model, given, Clip(0.7))
    assert torch.allclose(out, expected, **EXACT)


def test_looking_at_a_stack_leaves_torchs_generator_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(), nn.Linear(6, 5)).double()
    clipped = ClippedGradients(model, cross_entropy, CPU)
    torch.manual_seed(8)
    first = torch.rand(3)
    torch.manual_seed(8)
    list(clipped.replicas_at_once(torch.Size((2, 6)), torch.zeros(1, 4).double()))
    assert torch.equal(torch.rand(3), first)


def test_a_problem_in_bfloat16_clips_with_the_fused_stack() -> None:
    generator = torch.Generator().manual_seed(1)
    data = [
        (torch.randn(30, *IMAGE, generator=generator), torch.randint(5, (30,), generator=generator))
        for _ in range(2)
    ]
    streams = private_streams(1, 2, insecure_seed=3)
    found = []
    for precision in ("float32", "bfloat16"):
        torch.manual_seed(0)
        compute = Compute(precision=precision)
        problem = ModuleProblem(same(), cross_entropy, data, batch=8, poisson=True, compute=compute)
        state = problem.start(range(1), streams)
        found.append(
            problem.clipped_gradient(state, streams, 1, torch.empty_like(state), Clip(0.3))
        )
        assert isinstance(problem._clipped._stack, FusedStack) == (precision == "bfloat16")
    assert 0 < (found[0] - found[1]).norm() < 0.05 * found[0].norm()
