"""Metrics agree with their closed forms and with what makes them comparable."""

import math

import pytest
import torch

from sottovoce.errors import AttackError
from sottovoce.privacy.readers import metrics


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(4, 1, 1, 28, 28, generator=torch.Generator().manual_seed(0)).double()


def test_a_constant_offset_has_known_errors(images):
    shifted = images + 0.1
    expected = torch.full((4,), 784 * 0.01, dtype=torch.float64)
    torch.testing.assert_close(metrics.summed_squared_error(shifted, images), expected)
    torch.testing.assert_close(metrics.mse(shifted, images), expected / 784)
    torch.testing.assert_close(metrics.psnr(shifted, images), torch.full_like(expected, 20.0))


def test_equal_images_are_perfect(images):
    assert (metrics.psnr(images, images) == math.inf).all()
    torch.testing.assert_close(metrics.ssim(images, images), torch.ones(4, dtype=torch.float64))


def test_ssim_is_symmetric_bounded_and_falls_with_noise(images):
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(1)).double()
    values = [metrics.ssim(images + level * noise, images) for level in (0.01, 0.1, 0.5)]
    assert (values[0] > values[1]).all()
    assert (values[1] > values[2]).all()
    assert (values[2].abs() < 1).all()
    other = images + 0.1 * noise
    torch.testing.assert_close(metrics.ssim(other, images), metrics.ssim(images, other))


def test_ssim_of_constant_images_is_their_luminance_term():
    a, b = (torch.full((1, 1, 16, 16), v, dtype=torch.float64) for v in (0.2, 0.6))
    expected = (2 * 0.2 * 0.6 + 1e-4) / (0.2**2 + 0.6**2 + 1e-4)
    assert metrics.ssim(a, b).item() == pytest.approx(expected, rel=1e-9)


def test_ssim_of_a_negative_is_negative(images):
    assert (metrics.ssim(1 - images, images) < 0).all()


def test_ssim_refuses_images_smaller_than_its_window():
    with pytest.raises(AttackError, match="at least 11 pixels"):
        metrics.ssim(torch.zeros(1, 8, 8), torch.zeros(1, 8, 8))


def test_a_shuffled_batch_is_put_back_in_order():
    truth = torch.rand(3, 5, 1, 6, 6, generator=torch.Generator().manual_seed(2))
    shuffle = torch.stack([torch.randperm(5) for _ in range(3)])
    images = truth[torch.arange(3)[:, None], shuffle]
    order = metrics.match_batch(images, truth)
    torch.testing.assert_close(images[torch.arange(3)[:, None], order], truth)


def test_labels_are_compared_as_a_multiset():
    guess, truth = torch.tensor([[1, 2], [1, 1], [3, 4]]), torch.tensor([[2, 1], [1, 2], [3, 4]])
    assert metrics.label_correct(guess, truth).tolist() == [True, False, True]
    assert metrics.label_correct(torch.tensor([7, 8]), torch.tensor([7, 9])).tolist() == [
        True,
        False,
    ]


def test_gradient_errors_under_scaling():
    truth = torch.randn(3, 50, generator=torch.Generator().manual_seed(3)).double()
    ones = torch.ones(3, dtype=torch.float64)
    torch.testing.assert_close(metrics.gradient_cosine(-0.3 * truth, truth), -ones)
    torch.testing.assert_close(metrics.gradient_relative_error(-0.3 * truth, truth), 1.3 * ones)
    free = metrics.gradient_relative_error(-0.3 * truth, truth, scale_free=True)
    assert (free < 1e-12).all()


def test_a_zero_estimate_explains_nothing():
    truth, zero = torch.ones(1, 4), torch.zeros(1, 4)
    assert metrics.gradient_cosine(zero, truth).item() == 0
    assert metrics.gradient_relative_error(zero, truth, scale_free=True).item() == 1


def test_wilson_interval_of_eight_of_ten_is_the_published_one():
    rate = metrics.success_rate([0.5] * 8 + [60.0, math.nan], threshold=1.0)
    assert rate.recovered == 8
    assert (rate.low, rate.high) == pytest.approx((0.4902, 0.9433), abs=1e-4)


def test_wilson_interval_at_the_ends():
    none, every = (metrics.success_rate([e] * 16, threshold=1.0) for e in (5.0, 0.0))
    z2 = 1.959963984540054**2
    assert none.low == 0
    assert none.high == pytest.approx(z2 / (16 + z2))
    assert every.low == pytest.approx(16 / (16 + z2))
    assert every.high == 1


def test_no_targets_have_no_rate():
    with pytest.raises(AttackError, match="at least one target"):
        metrics.success_rate([], threshold=1.0)


def test_no_constant_beats_the_mean_image_on_the_images_it_was_computed_from(images):
    guess = metrics.blind_guess(images[:, 0], images)
    for level in (0.0, 0.5):
        flat = metrics.summed_squared_error(torch.full_like(images, level), images)
        assert guess.mean() < flat.mean()


def test_black_is_guessed_where_it_has_the_lower_median(images):
    guess = metrics.blind_guess(torch.ones_like(images[:, 0]), images)
    torch.testing.assert_close(guess, images.square().flatten(1).sum(1))


def test_shapes_must_agree():
    with pytest.raises(AttackError, match=r"\(2, 3\).*\(3, 2\)"):
        metrics.mse(torch.zeros(2, 3), torch.zeros(3, 2))
