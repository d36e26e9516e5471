"""Single samples' gradients of convolutions: the kernels are their torch version, and autograd's.

Without a GPU the kernels run through Triton's interpreter where TRITON_INTERPRET=1 asks for it.
"""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from kernels import DEVICE, needs_triton
from sottovoce.kernels import samples

SHAPES = [(4, 6, 16, 16), (4, 4, 16, 64), (2, 8, 32, 32), (6, 2, 64, 16)]
"""Height, width, inputs, outputs."""


def drawn(shape: tuple[int, ...], count: int = 6) -> tuple[Tensor, Tensor]:
    """Inputs and slopes, channels last; whole numbers, whose products and sums are exact."""
    H, W, inputs, outputs = shape
    generator = torch.Generator().manual_seed(H * W)
    return tuple(
        torch.randint(-3, 4, (count, H, W, channels), generator=generator).float()
        for channels in (inputs, outputs)
    )


@pytest.fixture
def on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "usable", lambda device: False)


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("shape", SHAPES)
def test_each_samples_gradient_is_autograds(shape):
    x, dz = drawn(shape)
    each, totals, squares = samples.weight_gradients(x, dz, torch.float64)
    weight = torch.zeros(shape[3], shape[2], 3, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(shape[3], dtype=torch.float64, requires_grad=True)
    for number in range(len(x)):
        image = x[number].double().permute(2, 0, 1)[None]
        z = conv2d(image, weight, bias, padding=1)
        slope = dz[number].double().permute(2, 0, 1)[None]
        of_weight, of_bias = torch.autograd.grad(z, (weight, bias), slope)
        assert torch.equal(each[number], of_weight.permute(2, 3, 0, 1))
        assert torch.equal(totals[number], of_bias)
        assert squares[number] == of_weight.square().sum() + of_bias.square().sum()


@pytest.mark.usefixtures("on_torch")
def test_a_sample_of_weight_zero_is_left_out_whatever_it_holds():
    each = torch.ones(6, 3, 3, 2, 4)
    each[4] = torch.inf
    weights = torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.0, 0.25]])
    out = torch.full((2, 2, 4, 3, 3), torch.nan)
    samples.weighted_sum(each, weights, out)
    assert (out[0] == 6).all()
    assert (out[1] == 0.75).all()


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernels_are_their_torch_version(shape, dtype, monkeypatch):
    if DEVICE.type == "cpu" and dtype == torch.bfloat16:
        pytest.skip("the interpreter multiplies no bfloat16")
    x, dz = (one.to(DEVICE, dtype) for one in drawn(shape))
    found = samples.weight_gradients(x, dz)
    weights = torch.tensor([[0.5, 0.0, 2.0], [1.0, 1.5, 0.25]], device=DEVICE)
    rows = torch.full((2, 9 * shape[2] * shape[3] + 5), torch.nan, device=DEVICE)
    out = rows[:, :-5].view(2, shape[3], shape[2], 3, 3)
    altered = found[0].clone()
    altered[1] = torch.inf
    samples.weighted_sum(altered, weights, out)
    assert rows[:, -5:].isnan().all()
    monkeypatch.setattr(samples, "usable", lambda device: False)
    expected = samples.weight_gradients(x, dz)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    total = torch.empty_like(out)
    samples.weighted_sum(expected[0], weights, total)
    assert torch.equal(out, total)
