"""The fused kernels and their torch versions: known answers, and the same numbers both ways.

Without a GPU the torch versions are tested; the kernels' own tests need Triton, and CUDA or its
interpreter.
"""

import math
from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kernels import CPU, CUDA, DEVICE, in_plain_torch, needs_triton, on_gpu, whole_numbers
from sottovoce import DSGD, PDSGD, ModuleProblem, Power, Stepsize, complete, ring, simulate
from sottovoce.errors import ProblemError
from sottovoce.kernels import convolution, interpreted, philox, usable
from sottovoce.kernels.layers import After, Gradient
from sottovoce.kernels.mixing import Factors, mix_
from sottovoce.mechanisms import Clip, Clock, Flow, Mechanism, NoisyDSGD
from sottovoce.problems import Compute
from sottovoce.problems.data.models import paper_cnn
from sottovoce.problems.gradients.convolution import FusedStack
from sottovoce.problems.gradients.layerwise import LayerwiseStack
from sottovoce.problems.gradients.layout import ParameterLayout
from sottovoce.randomness import DeviceStreams
from sottovoce.simulation.options import Options
from sottovoce.simulation.rounds import DenseMixer, Kernel
from sottovoce.stepsizes import Deterministic, Uniform


def stack() -> nn.Sequential:
    """Every kind of layer that the kernels know, on images of (2, 8, 12)."""
    return nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding="same"),
        nn.ReLU(),
        nn.Conv2d(32, 16, 3, padding=1),
        nn.Sigmoid(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(96, 20),
        nn.Sigmoid(),
        nn.Linear(20, 5),
    )


def autograd(model: nn.Module, vectors: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """Each replica's gradient by torch alone, in float64."""
    model = model.to(vectors.device, torch.float64)
    rows = []
    for vector, x, y in zip(vectors.double(), inputs.double(), targets, strict=True):
        nn.utils.vector_to_parameters(vector, model.parameters())
        parts = torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows)


def drawn(
    model: nn.Module, shape: tuple[int, ...], classes: int, batch: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Three replicas' parameters, inputs and targets."""
    generator = torch.Generator().manual_seed(5)
    own = ParameterLayout(model).vector(model).to(dtype)
    vectors = own + 0.05 * torch.randn(3, len(own), generator=generator, dtype=dtype)
    inputs = torch.randn(3, batch, *shape, generator=generator, dtype=dtype)
    return vectors, inputs, torch.randint(0, classes, (3, batch), generator=generator)


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (2**32 - 1, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ],
)
def test_the_generator_gives_its_authors_known_answers(counter, key, expected):
    part = torch.tensor([counter])
    assert tuple(int(word) for word in philox.words((part, part, part, part), key)) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_device_streams_are_addressed_and_uniform(dtype):
    streams = DeviceStreams(range(4), range(6), 3, CPU)
    numbers = streams.uniform("stepsize", 7, 1001, dtype)
    assert numbers.dtype == dtype
    assert 0 <= numbers.min() < 0.001 < 0.999 < numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 5 * math.sqrt(1 / 12 / numbers.numel())
    assert numbers.flatten().unique().numel() > 0.99 * numbers.numel()
    part = streams.part(slice(1, 3), slice(2, 5))
    assert torch.equal(part.uniform("stepsize", 7, 1001, dtype), numbers[1:3, 2:5])
    for other in (("stepsize", 8, 1001), ("mixing", 7, 1001)):
        assert not torch.equal(streams.uniform(*other, dtype), numbers)


def update_case(
    device: torch.device, d: int, drawn_interval: bool
) -> tuple[DeviceStreams, Stepsize, Tensor, Tensor]:
    streams = DeviceStreams(range(2, 5), range(5), 1, device)
    stepsize = Stepsize(Power(0.5), Uniform() if drawn_interval else Deterministic())
    generator = torch.Generator().manual_seed(d)
    state, gradient = (torch.randn(3, 5, d, generator=generator).to(device) for _ in range(2))
    return streams, stepsize, state, gradient


def flow_of(
    streams: DeviceStreams, stepsize: Stepsize, state: Tensor, gradient: Tensor, round: int
) -> Flow:
    routes = ring(5).routes().to(state.device)
    return Flow(state, gradient.clone(), routes, streams, stepsize, Clock(round))


def check_update(device: torch.device, d: int, algorithm: Mechanism, random: bool) -> None:
    """One kernel for all against steps, then a product with W and one with B in float64."""
    streams, stepsize, state, gradient = update_case(device, d, random)
    graph = ring(5)
    flow = flow_of(streams, stepsize, state, gradient, 3)
    for part in algorithm.at("gradient"):
        part(flow)
    flow.s, step = gradient, flow.s.clone()
    shares = algorithm.split.coefficients(flow)[..., 0]
    stepsize.scale_(step, streams, 3)
    expected = torch.empty_like(state, dtype=torch.float64)
    mixer = DenseMixer(graph, 3, torch.float64, device)
    mixer.combine(state.double(), step.double(), expected, shares)
    bad = torch.zeros(3, 5, dtype=torch.int32, device=device)
    Kernel(algorithm, graph, flow).advance_(flow, bad)
    assert (state - expected).abs().max() < 4e-6
    assert not bad.any()


@pytest.mark.parametrize("random", [True, False])
@pytest.mark.parametrize("algorithm", [DSGD(), PDSGD(), NoisyDSGD(0.1)], ids=str)
def test_the_update_in_place_is_the_update_with_the_same_stepsizes(algorithm, random):
    check_update(CPU, 1030, algorithm, random)


@in_plain_torch
def test_the_update_in_place_notes_who_became_non_finite_and_when():
    check_non_finite(CPU)


def check_non_finite(device: torch.device) -> None:
    streams, stepsize, state, gradient = update_case(device, 50, True)
    flow = flow_of(streams, stepsize, state, gradient, 4)
    update = Kernel(DSGD(), ring(5), flow)
    bad = torch.zeros(3, 5, dtype=torch.int32, device=device)
    gradient[1, 2, 17] = torch.inf
    flow.s = gradient.clone()
    update.advance_(flow, bad)
    assert bad.nonzero().tolist() == [[1, 2]]
    assert bad[1, 2] == 4
    flow.at, flow.s = Clock(5), gradient.clone()
    update.advance_(flow, bad)
    assert bad[1, 1:4].tolist() == [5, 4, 5]
    assert not bad[::2].any()


def test_agents_with_stepsizes_of_their_own_are_scaled_before_the_update():
    streams, _, state, gradient = update_case(CPU, 40, True)
    scales = (0.5, 1.0, 0.25, 0.125, 2.0)
    expected = torch.from_numpy(ring(5).mixing.toarray()).float() @ state
    expected -= torch.tensor(scales)[:, None] * gradient
    stepsize = Stepsize(Power(scales), Deterministic())
    bad = torch.zeros(3, 5, dtype=torch.int32)
    flow = flow_of(streams, stepsize, state, gradient, 1)
    Kernel(DSGD(), ring(5), flow).advance_(flow, bad)
    torch.testing.assert_close(state, expected)


@in_plain_torch
def test_gradients_written_out_are_autograds():
    model = stack().double()
    vectors, inputs, targets = drawn(model, (2, 8, 12), 5, 4, torch.float64)
    expected = autograd(model, vectors, inputs, targets)
    fused = FusedStack.of(model, cross_entropy, (2, 8, 12))
    assert fused is not None
    found = torch.full_like(vectors, torch.nan)
    fused.gradient(vectors, inputs, targets, found)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@in_plain_torch
def test_bfloat16_is_near_float32_and_not_equal():
    model = stack()
    vectors, inputs, _ = drawn(model, (2, 8, 12), 5, 4, torch.float32)
    outputs = []
    for dtype in (None, torch.bfloat16):
        fused = FusedStack.of(model, cross_entropy, (2, 8, 12), dtype)
        assert fused is not None
        outputs.append(fused.outputs(vectors, inputs))
    assert outputs[1].dtype == torch.float32
    assert 1e-5 < relative(outputs[1], outputs[0]) < 2e-2


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (stack(), (2, 7, 12)),
        (stack(), (3, 8, 12)),
        (nn.Sequential(nn.Flatten(), nn.Linear(9, 3)), (1, 3, 3)),
        (nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.Flatten(), nn.Linear(48, 3)), (1, 2, 2)),
        (nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.Flatten(), nn.Linear(64, 3)), (1, 2, 2)),
        (nn.Linear(9, 3), (9,)),
    ],
)
def test_stacks_that_the_kernels_do_not_know_are_left_to_others(model, shape):
    assert FusedStack.of(model, cross_entropy, shape) is None


def test_a_frozen_layer_is_left_to_others():
    model = stack()
    model[0].requires_grad_(False)
    assert FusedStack.of(model, cross_entropy, (2, 8, 12)) is None


def test_more_numbers_than_the_kernels_count_are_refused():
    fused = FusedStack.of(stack(), cross_entropy, (2, 8, 12))
    assert fused is not None
    inputs = torch.zeros(1).expand(1, 2**20, 2, 8, 12)
    with pytest.raises(ProblemError, match="1048576 samples"):
        fused.outputs(torch.zeros(1, ParameterLayout(stack()).dimension), inputs)


def test_kernels_are_for_cuda_alone_unless_they_are_interpreted():
    assert usable(CPU) == (interpreted() and find_spec("triton") is not None)


def gpu_and_cpu(
    work: Callable[..., Tensor | tuple[Tensor | None, ...]],
    *tensors: Tensor,
) -> None:
    """Let `work` compute by 16-bit kernels and by float32 torch: whole numbers come out equal."""
    # The interpreter multiplies bfloat16 as whole numbers of 16 bits.
    dtype = torch.bfloat16 if DEVICE == CUDA else torch.float16
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "usable", lambda device: False)
        expected = work(*tensors)
    given = [t.to(DEVICE, dtype) if t.is_floating_point() else t.to(DEVICE) for t in tensors]
    found = work(*given)
    pairs = [(found, expected)] if isinstance(found, Tensor) else zip(found, expected, strict=True)
    for ours, theirs in pairs:
        if theirs is not None:
            assert torch.equal(ours.cpu().to(theirs.dtype), theirs)


SIZES = [(16, 16), (32, 32), (32, 64), (64, 32), (64, 64)]


@needs_triton
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_convolutions_of_whole_numbers_are_exact(inputs, outputs, pool):
    x = whole_numbers(2, 3, 6, 10, inputs, most=1)
    weight = whole_numbers(2, outputs, inputs, 3, 3, seed=1, most=1)
    for flat in (False, True):
        after = After("relu", pool, flat)

        def forward(x, weight, bias, after=after):
            out, index = convolution.convolve(x, weight, bias.float(), after)
            # Places in windows where nothing is above zero carry no gradient.
            return out, None if index is None else torch.where(out > 0, index, 0)

        gpu_and_cpu(forward, x, weight, whole_numbers(2, outputs, seed=2))


@needs_triton
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_input_gradients_of_whole_numbers_are_exact(inputs, outputs, pool):
    dz = whole_numbers(2, 3, 6, 10, outputs, most=1)
    weight = whole_numbers(2, outputs, inputs, 3, 3, seed=1, most=1)
    lower = whole_numbers(2, 3, 6, 10, inputs, seed=2)
    index = torch.randint(0, 4, lower.shape, dtype=torch.uint8)

    def backward(dz, weight, lower, index):
        places = index if pool else None
        after = After("relu", pool)
        return convolution.input_gradient(Gradient(dz), weight, lower, places, after, True)

    gpu_and_cpu(backward, dz, weight, lower, index)


@needs_triton
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_weight_gradients_of_whole_numbers_are_exact(inputs, outputs):
    def gradient(x, dz):
        rows = torch.full((2, 9 * inputs * outputs + 3), torch.nan, device=x.device)
        convolution.weight_gradient(x, Gradient(dz), rows[:, 3:].view(2, outputs, inputs, 3, 3))
        return rows[:, 3:]

    gpu_and_cpu(gradient, whole_numbers(2, 3, 6, 10, inputs), whole_numbers(2, 3, 6, 10, outputs))


@needs_triton
def test_first_layers_and_dense_gradients_of_whole_numbers_are_exact():
    weight, bias = whole_numbers(2, 32, 2, 3, 3, seed=1), whole_numbers(2, 32, seed=2)
    x, dz = whole_numbers(2, 3, 2, 6, 10), whole_numbers(2, 3, 6, 10, 32, seed=3)

    def forward(x, weight, bias):
        out, _ = convolution.convolve_first(
            x,
            weight.float(),
            bias.float(),
            After("relu"),
        )
        return out

    def backward(x, dz):
        out = torch.full((2, 32, 2, 3, 3), torch.nan, device=x.device)
        added = torch.full((2, 32), torch.nan, device=x.device)
        convolution.first_weight_gradient(x, dz, out, added)
        return out, added

    def outer(left, right):
        out = torch.full((2, 70, 50), torch.nan, device=left.device)
        convolution.outer(left, right, out)
        return out

    def unflatten(gradient, outputs, index):
        after = After("relu", True, True)
        spread, total = convolution.unflatten(gradient, outputs, index, after)
        pooled, _ = convolution.unflatten(gradient, outputs, index, after, pooled=True)
        return spread.values, total, *pooled

    gpu_and_cpu(forward, x, weight, bias)
    gpu_and_cpu(backward, x, dz)
    gpu_and_cpu(outer, whole_numbers(2, 66, 70), whole_numbers(2, 66, 50, seed=1))
    outputs = whole_numbers(2, 3, 16, 4, 6, seed=4)
    index = torch.randint(0, 4, outputs.shape, dtype=torch.uint8)
    gpu_and_cpu(unflatten, whole_numbers(2, 3, 16, 4, 6, seed=5), outputs, index)


@on_gpu
@pytest.mark.parametrize(("dtype", "near"), [(None, 5e-3), (torch.bfloat16, 6e-2)])
@pytest.mark.parametrize(
    ("make", "shape", "classes"), [(stack, (2, 8, 12), 5), (paper_cnn, (1, 28, 28), 10)]
)
def test_fused_gradients_on_a_gpu_are_near_float64(make, shape, classes, dtype, near):
    model = make()
    vectors, inputs, targets = (t.cuda() for t in drawn(model, shape, classes, 9, torch.float32))
    fused = FusedStack.of(model, cross_entropy, shape, dtype)
    assert fused is not None
    found = torch.full_like(vectors, torch.nan)
    fused.gradient(vectors, inputs, targets, found)
    assert relative(found, autograd(model, vectors, inputs, targets)) < near


@on_gpu
@pytest.mark.parametrize("most", [65_535, 10])
@pytest.mark.parametrize(("dtype", "near"), [(None, 5e-3), (torch.bfloat16, 6e-2)])
@pytest.mark.parametrize(
    ("make", "shape", "classes"), [(stack, (2, 8, 12), 5), (paper_cnn, (1, 28, 28), 10)]
)
def test_clipped_sums_on_a_gpu_are_near_float64(
    make, shape, classes, dtype, near, most, monkeypatch
):
    monkeypatch.setattr("sottovoce.problems.gradients.sinks._MOST_BLOCKS", most)
    model = make()
    vectors, inputs, targets = drawn(model, shape, classes, 9, torch.float32)
    present = torch.rand(3, 9, generator=torch.Generator().manual_seed(1)) < 0.8
    fused = FusedStack.of(model, cross_entropy, shape, dtype)
    exact = LayerwiseStack.of(model, cross_entropy)
    assert fused is not None
    assert exact is not None
    for bound in (Clip(1.0), None):
        expected = torch.empty_like(vectors, dtype=torch.float64)
        exact.sums(vectors.double(), inputs.double(), targets, present, bound, expected)
        found = torch.full_like(vectors, torch.nan, device="cuda")
        given = (one.cuda() for one in (vectors, inputs, targets, present))
        fused.sums(*given, bound, found)
        assert relative(found.cpu(), expected) < near


@on_gpu
def test_layerwise_sums_on_a_gpu_are_those_of_a_cpu():
    model = stack()
    vectors, inputs, targets = drawn(model, (2, 8, 12), 5, 9, torch.float64)
    layers = LayerwiseStack.of(model, cross_entropy)
    assert layers is not None
    given = (vectors, inputs, targets, torch.ones(3, 9, dtype=torch.bool))
    for bound in (Clip(1.0), None):
        expected = torch.empty_like(vectors)
        layers.sums(*given, bound, expected)
        found = torch.full_like(vectors, torch.nan, device="cuda")
        layers.sums(*(one.cuda() for one in given), bound, found)
        assert relative(found.cpu(), expected) < 1e-12


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("agents", [range(1, 4), (7, 2, 40)], ids=str)
@pytest.mark.parametrize("count", [1, 7, 64, 5001])
def test_the_kernel_draws_the_generators_bits(dtype, count, agents):
    key, runs = 0x0123456789ABCDEF, range(3, 6)
    plain = philox.uniform(runs, agents, count, dtype, key, 9, CPU)
    assert torch.equal(philox.uniform(runs, agents, count, dtype, key, 9, CUDA).cpu(), plain)


@on_gpu
@pytest.mark.parametrize("random", [True, False])
@pytest.mark.parametrize("algorithm", [DSGD(), PDSGD(), NoisyDSGD(0.1)], ids=str)
@pytest.mark.parametrize("d", [1, 1030, 100_001])
def test_the_kernels_update_is_the_update_with_the_same_stepsizes(d, algorithm, random):
    check_update(CUDA, d, algorithm, random)


@on_gpu
def test_the_kernel_notes_who_became_non_finite_and_when():
    check_non_finite(CUDA)


@on_gpu
def test_the_kernels_update_equals_its_torch_version():
    generator = torch.Generator().manual_seed(1)
    state, gradient = (torch.randn(3, 7, 999, generator=generator) for _ in range(2))
    mixing = torch.from_numpy(complete(7).mixing.toarray()).float()
    splitting = torch.rand(3, 7, 7, generator=generator)
    found = []
    for device in (CPU, CUDA):
        new = state.to(device, copy=True)
        bad = torch.zeros(3, 7, dtype=torch.int32, device=device)
        tensors = [t.to(device, copy=True) for t in (gradient, mixing, splitting)]
        mix_(new, *tensors, bad, Factors((0.2, 0.7), 12345678901, 3, range(5, 8)))
        found.append(new.cpu())
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


@on_gpu
@pytest.mark.parametrize("algorithm", [DSGD(), PDSGD()], ids=str)
def test_a_simulation_on_a_gpu_is_that_of_its_messages(algorithm):
    generator = torch.Generator().manual_seed(2)
    data = [
        (torch.randn(40, 2, 8, 12, generator=generator), torch.randint(0, 5, (40,)))
        for _ in range(5)
    ]
    torch.manual_seed(0)
    problem = ModuleProblem(stack().cuda(), cross_entropy, data, data, batch=4)
    assert problem.describe()["gradients"] == "fused"
    results = [
        simulate(
            problem,
            algorithm,
            ring(5),
            steps=5,
            runs=3,
            insecure_seed=1,
            options=Options(exact=exact),
        )
        for exact in (False, True)
    ]
    torch.testing.assert_close(results[0].final, results[1].final, rtol=1e-4, atol=1e-4)
    plain = ModuleProblem(
        stack().cuda(), cross_entropy, data, data, batch=4, compute=Compute("loop")
    )
    state = results[0].final.cuda()
    for name, values in plain.measure(state).items():
        torch.testing.assert_close(problem.measure(state)[name], values, rtol=1e-3, atol=0.03)
