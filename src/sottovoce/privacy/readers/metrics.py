"""How close a reconstruction is: errors, similarity, label and gradient agreement, success rates.

Images are (targets, ...) in pixel space; everything after the first axis belongs to one target, and
`ssim` reads the last two axes as height and width.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import norm
from torch import Tensor

from sottovoce.errors import AttackError


def _same_shape(images: Tensor, truth: Tensor) -> None:
    if images.shape != truth.shape:
        raise AttackError(
            f"images have shape {tuple(images.shape)} and the truth {tuple(truth.shape)}; "
            "both must be (targets, ...) of the same shape"
        )


def summed_squared_error(images: Tensor, truth: Tensor) -> Tensor:
    """Return Σ (image - truth)² for each target: the paper's "DLG error", (targets,)."""
    _same_shape(images, truth)
    return (images - truth).flatten(1).square().sum(1)


def mse(images: Tensor, truth: Tensor) -> Tensor:
    """Return the mean squared error over all pixels of each target, (targets,)."""
    _same_shape(images, truth)
    return (images - truth).flatten(1).square().mean(1)


def psnr(images: Tensor, truth: Tensor, *, peak: float = 1.0) -> Tensor:
    """Return the peak signal-to-noise ratio 10 log10(peak² / MSE) in dB, (targets,); ∞ if equal."""
    return 10 * torch.log10(peak**2 / mse(images, truth))


def ssim(images: Tensor, truth: Tensor, *, peak: float = 1.0, window: int = 11) -> Tensor:
    """Return the mean structural similarity of each target, (targets,), 1 for equal images.

    Wang, Bovik, Sheikh and Simoncelli (2004): Gaussian window of `window` pixels with σ = 1.5,
    K = (0.01, 0.03), averaged over every place where the whole window fits.
    """
    _same_shape(images, truth)
    if images.dim() < 3 or min(images.shape[-2:]) < window:
        raise AttackError(
            f"ssim needs (targets, ..., height, width) with sides of at least {window} pixels, "
            f"got {tuple(images.shape)}; pass a smaller odd window"
        )
    offsets = torch.arange(window, dtype=images.dtype, device=images.device) - (window - 1) / 2
    weights = torch.exp(-(offsets**2) / (2 * 1.5**2))
    weights = weights / weights.sum()

    def blur(planes: Tensor) -> Tensor:
        columns = torch.nn.functional.conv2d(planes, weights.view(1, 1, window, 1))
        return torch.nn.functional.conv2d(columns, weights.view(1, 1, 1, window))

    a = images.reshape(-1, 1, *images.shape[-2:])
    b = truth.reshape(-1, 1, *truth.shape[-2:])
    mean_a, mean_b = blur(a), blur(b)
    variance_a, variance_b = blur(a * a) - mean_a**2, blur(b * b) - mean_b**2
    covariance = blur(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    luminance = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    structure = (2 * covariance + c2) / (variance_a + variance_b + c2)
    return (luminance * structure).reshape(len(images), -1).mean(1)


def match_batch(images: Tensor, truth: Tensor) -> Tensor:
    """Return, for each target, the order of `images` closest to `truth`, (targets, batch).

    A gradient does not know the order of its batch. images, truth: (targets, batch, ...); use it as
    `images[torch.arange(targets)[:, None], order]`.
    """
    _same_shape(images, truth)
    distances = torch.cdist(truth.flatten(2), images.flatten(2)).square().cpu().numpy()
    order = [torch.as_tensor(linear_sum_assignment(distance)[1]) for distance in distances]
    return torch.stack(order).to(images.device)


def label_correct(labels: Tensor, truth: Tensor) -> Tensor:
    """Say for each target whether its multiset of labels is right, (targets,); order is ignored."""
    _same_shape(labels, truth)
    guess, right = (t.reshape(len(t), -1).sort(1).values for t in (labels, truth))
    return (guess == right).all(1)


def gradient_cosine(estimate: Tensor, truth: Tensor) -> Tensor:
    """Return <estimate, truth> / (|estimate| |truth|) for each target, (targets,); 0 for a zero."""
    _same_shape(estimate, truth)
    a, b = (torch.nn.functional.normalize(t.flatten(1), dim=1) for t in (estimate, truth))
    return (a * b).sum(1)


def gradient_relative_error(estimate: Tensor, truth: Tensor, *, scale_free: bool = False) -> Tensor:
    """Return |estimate - truth| / |truth| for each target, (targets,).

    With `scale_free` the estimate is first multiplied by the best scalar: the measure for an attack
    that recovers the gradient up to an unknown factor of unknown sign.
    """
    _same_shape(estimate, truth)
    a, b = estimate.flatten(1), truth.flatten(1)
    if scale_free:
        factor = (a * b).sum(1, keepdim=True) / a.square().sum(1, keepdim=True)
        a = torch.where(factor.isfinite(), factor, 0.0) * a
    error: Tensor = torch.linalg.vector_norm(a - b, dim=1) / torch.linalg.vector_norm(b, dim=1)
    return error


class SuccessRate(NamedTuple):
    """How many targets an attack recovered, and the 95 % interval of the rate (Wilson 1927)."""

    recovered: int
    low: float
    high: float


def success_rate(errors: Tensor | Sequence[float], *, threshold: float) -> SuccessRate:
    """Count the targets whose error lies below `threshold`; NaN counts as a failure.

    Wilson's score interval, z the normal quantile of 0.975:
    (p + z²/2n ± z √(p(1 - p)/n + z²/4n²)) / (1 + z²/n).
    """
    values = torch.as_tensor(errors, dtype=torch.float64).flatten()
    if not len(values):
        raise AttackError("a success rate needs at least one target, got none")
    count, recovered = len(values), int((values < threshold).sum())
    p, z = recovered / count, float(norm.ppf((1 + 0.95) / 2))
    half = z * math.sqrt(p * (1 - p) / count + z**2 / (4 * count**2))
    low = (p + z**2 / (2 * count) - half) / (1 + z**2 / count)
    high = (p + z**2 / (2 * count) + half) / (1 + z**2 / count)
    return SuccessRate(recovered, max(0.0, low), min(1.0, high))


def blind_guess(training_images: Tensor, truth: Tensor) -> Tensor:
    """Return the summed squared errors, (targets,), of a guess that saw no message at all.

    It is the training set's mean image, or black where that has the lower median error. The mean
    image minimises the expected error among all constant guesses, so an attack that does not beat
    it has learned nothing. training_images: (count, *shape); truth: (targets, *shape) or
    (targets, batch, *shape), pixels in [0, 1].
    """
    mean = training_images.to(truth).mean(0)
    if truth.shape[truth.dim() - mean.dim() :] != mean.shape:
        raise AttackError(
            f"training images have shape {tuple(mean.shape)} and do not fit targets of shape "
            f"{tuple(truth.shape)}"
        )
    guesses = mean.expand_as(truth), torch.zeros_like(truth)
    errors = [summed_squared_error(guess, truth) for guess in guesses]
    return min(errors, key=lambda each: float(each.median()))
