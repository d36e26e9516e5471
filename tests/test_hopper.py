"""CUDA C++ kernels of convolutions, played on a CPU, beside plain torch."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from emulation import COMPILER, forget_kernels, play_on_cpu
from kernels import whole_numbers
from sottovoce.kernels import compiled, convolution, hopper
from sottovoce.kernels.layers import After, Gradient
from sottovoce.problems.data.models import paper_cnn
from sottovoce.problems.gradients.convolution import FusedStack
from test_kernels import autograd, drawn, relative

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs the compiler g++")

SIZES = [(32, 32), (32, 64), (64, 64)]
GEOMETRIES = [(6, 10), (14, 14)]
"""Tiles of rows of several images, and of whole images; images of 28 x 28 are the paper's CNN's."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where compiled kernels lie, once for all tests."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.thorough)])
def played(monkeypatch, folder, request):
    """The kernels that were played, by their names; the group that copies comes last, or first."""
    yield play_on_cpu(monkeypatch, folder, request.param)
    forget_kernels()


def same(found: Tensor | None, expected: Tensor | None) -> None:
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert torch.equal(found.to(expected.dtype), expected)


def behind_pool(replicas: int, H: int, W: int, channels: int) -> Gradient:
    values = whole_numbers(replicas, 3, H // 2, W // 2, channels, most=1)
    generator = torch.Generator().manual_seed(7)
    return Gradient(values, torch.randint(0, 4, values.shape, generator=generator).to(torch.uint8))


def in_bfloat16(dz: Gradient) -> Gradient:
    return Gradient(dz.values.bfloat16(), dz.largest)


def test_the_paper_cnns_gradient_is_near_float64(played):
    model = paper_cnn()
    vectors, inputs, targets = drawn(model, (1, 28, 28), 10, 3, torch.float32)
    fused = FusedStack.of(model, cross_entropy, (1, 28, 28), torch.bfloat16)
    assert fused is not None
    found = torch.full_like(vectors, torch.nan)
    fused.gradient(vectors, inputs, targets, found)
    assert played.count("convolve") == 6
    assert played.count("weight_gradient") == 3
    assert relative(found, autograd(model, vectors, inputs, targets)) < 6e-2


def test_others_than_their_channels_types_and_widths_are_not_served(played):
    x = torch.zeros(1, 1, 8, 8, 32, dtype=torch.bfloat16)
    assert hopper.serves(x, 64)
    for other in (x.float(), x[..., :16], torch.zeros(1, 1, 8, 50, 32, dtype=torch.bfloat16)):
        assert not hopper.serves(other, 32)
    assert not hopper.serves(x, 48)
    assert not hopper.serves(x.repeat_interleave(2, -1), 32)
    assert not compiled.available(torch.device("meta"))


@pytest.mark.thorough
@pytest.mark.parametrize(("H", "W"), GEOMETRIES)
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_forward_passes_of_whole_numbers_are_exact(played, inputs, outputs, H, W):
    x = whole_numbers(2, 3, H, W, inputs, most=1)
    weight = whole_numbers(2, outputs, inputs, 3, 3, seed=1, most=1)
    bias = whole_numbers(2, outputs, seed=2)
    for after in (After("relu"), After("relu", True), After("relu", True, True)):
        expected, places = convolution.convolve(x, weight, bias, after)
        found, index = convolution.convolve(x.bfloat16(), weight, bias, after)
        same(found, expected)
        if places is not None:
            # Places in windows where nothing is above zero carry no gradient.
            same(torch.where(found > 0, index, 0), torch.where(expected > 0, places, 0))
    assert played == ["convolve"] * 3


@pytest.mark.thorough
@pytest.mark.parametrize(("H", "W"), GEOMETRIES)
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_gradients_of_whole_numbers_are_exact(played, inputs, outputs, H, W):
    weight = whole_numbers(2, outputs, inputs, 3, 3, seed=1, most=1)
    x = whole_numbers(2, 3, H, W, inputs, seed=2, most=1)
    index = torch.randint(0, 4, x.shape, generator=torch.Generator().manual_seed(3))
    index = index.to(torch.uint8)
    for dz in (
        Gradient(whole_numbers(2, 3, H, W, outputs, most=1)),
        behind_pool(2, H, W, outputs),
    ):
        rows = torch.full((2, 2, 9 * inputs * outputs + 3), torch.nan)
        plain, kernel = (row[:, 3:].view(2, outputs, inputs, 3, 3) for row in rows)
        convolution.weight_gradient(x, dz, plain)
        convolution.weight_gradient(x.bfloat16(), in_bfloat16(dz), kernel)
        same(kernel, plain)
        for spread in (None, index):
            after = After("relu", spread is not None)
            expected = convolution.input_gradient(dz, weight, x, spread, after, True)
            found = convolution.input_gradient(
                in_bfloat16(dz), weight, x.bfloat16(), spread, after, True
            )
            same(found[0], expected[0])
            same(found[1], expected[1])
    assert played.count("convolve") == 4
    assert played.count("weight_gradient") == 2


@pytest.mark.thorough
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("outputs", [32, 64])
def test_a_first_layers_gradients_of_whole_numbers_are_exact(played, outputs, channels):
    weight = whole_numbers(2, outputs, 32, 3, 3, seed=1, most=1)
    lower, x = (whole_numbers(2, 3, 14, 14, 32, seed=2), whole_numbers(2, 3, channels, 14, 14))
    for dz in (Gradient(whole_numbers(2, 3, 14, 14, outputs)), behind_pool(2, 14, 14, outputs)):
        rows = torch.full((2, 2, 9 * channels * 32 + 32), torch.nan)
        plain, kernel = ((row[:, :-32].view(2, 32, channels, 3, 3), row[:, -32:]) for row in rows)
        after = After("relu")
        convolution.first_gradients(dz, weight, lower, after, x, plain)
        convolution.first_gradients(
            in_bfloat16(dz), weight, lower.bfloat16(), after, x.bfloat16(), kernel
        )
        same(rows[1], rows[0])
    assert played == ["convolve"] * 2
