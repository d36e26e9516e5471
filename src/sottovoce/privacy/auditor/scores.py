"""From gradient estimates to images, and how many of them were recovered."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from sottovoce.errors import AttackError
from sottovoce.privacy.attacks import Estimate
from sottovoce.privacy.readers import Inversion, Search, dlg, projection, sign_free
from sottovoce.privacy.readers.layers import infer_label, linear_layer
from sottovoce.privacy.readers.matching import Inputs
from sottovoce.privacy.readers.metrics import (
    gradient_cosine,
    gradient_relative_error,
    label_correct,
    match_batch,
    mse,
    psnr,
    ssim,
    success_rate,
)
from sottovoce.stepsizes import Stepsize

INVERSIONS = (
    "dlg",
    "projection",
    "smooth-projection",
    "magnitude",
    "likelihood",
    "linear-layer",
)
"""Every way from a gradient estimate to images."""

WIDE_SPREAD = 0.1
"""Relative spread of the stepsizes above which `projection` compresses and smooths."""


THRESHOLD = 5.0
"""Summed squared error below which an image counts as recovered; the paper takes 50 to be
unrecognisable, a blind guess of an MNIST digit costs about 45."""


@dataclass(frozen=True)
class Effort:
    """How hard an audit tries and what it calls success.

    search: of the inversions; methods: which of `INVERSIONS` to try, None being all that suit;
    threshold: the summed squared error below which an image counts as recovered; controls: whether
    to attack the exact gradient and noise as well; confined: whether `dlg` keeps to the pixel box
    and reads the label of a single image from the last layer (Zhao, Mopuri and Bilen 2020), which
    the original does not and which networks with max pooling ask for.
    """

    search: Search = field(default_factory=Search)
    methods: tuple[str, ...] | None = None
    threshold: float = THRESHOLD
    controls: bool = True
    confined: bool = False

    def __post_init__(self) -> None:
        if wrong := sorted(set(self.methods or ()).difference(INVERSIONS)):
            raise AttackError(
                f"the inversion {wrong[0]!r} is not known; accepted: {', '.join(INVERSIONS)}"
            )


@dataclass(frozen=True)
class Row:
    """One line of an audit: what one adversary got by one attack from one algorithm.

    errors: summed squared error a target (mean over its batch), None where the attack was refused
    or found nothing finite. cosine, relative_error: medians against the true gradient, the second
    after the best scaling where the attack leaves the scale open. Medians are over the attacked
    targets. refused: why no target, or only `attacked` of them, could be attacked.
    """

    algorithm: str
    stepsize: str
    adversary: str
    round: int
    attack: str
    inversion: str
    targets: int
    refused: str = ""
    attacked: int = 0
    scale_known: bool = False
    cosine: float | None = None
    relative_error: float | None = None
    state_error: float | None = None
    errors: tuple[float | None, ...] = ()
    median_error: float | None = None
    mse: float | None = None
    psnr: float | None = None
    ssim: float | None = None
    labels_correct: int | None = None
    diverged: int = 0
    recovered: int = 0
    low: float = 0.0
    high: float = 1.0
    threshold: float = 0.0
    trace: tuple[tuple[float, float, float], ...] = ()
    """Lower quartile, median and upper quartile of the errors at the iterations of the search."""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> "Row":
        lists = {"errors": tuple(found["errors"]), "trace": tuple(map(tuple, found["trace"]))}
        return cls(**{**found, **lists})

    @property
    def verdict(self) -> str:
        """What happened, in words."""
        if not self.attacked:
            return f"refused: {self.refused}"
        missed = self.targets - self.attacked
        beyond = f", {missed} beyond its reach" if missed else ""
        return (
            f"recovered {self.recovered} of {self.targets} images{beyond} (error below "
            f"{self.threshold:g}; 95 % interval {self.low:.0%} to {self.high:.0%})"
        )


@dataclass(frozen=True, eq=False)
class Answer:
    """The truth about some targets: images, labels, gradients and states, one row a target."""

    images: Tensor
    labels: Tensor
    gradient: Tensor
    state: Tensor


def inversions(
    model: nn.Module, inputs: Inputs, estimate: Estimate, noisy: bool = False
) -> list[str]:
    """What suits an estimate: `dlg` needs its scale, `linear-layer` a dense first layer.

    Without signs only `magnitude` and `likelihood` do. noisy: whether there is noise on the
    estimate that does not scale with it, against which `smooth-projection` sets a prior.
    """
    if not estimate.signs_known:
        return ["magnitude", "likelihood"]
    weighted = [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]
    dense = bool(weighted) and isinstance(weighted[0], nn.Linear) and inputs.batch_size == 1
    return [
        *(["dlg"] if estimate.scale_known else []),
        "projection",
        *(["smooth-projection"] if noisy else []),
        *(["linear-layer"] if dense else []),
    ]


def invert(
    method: str,
    model: nn.Module,
    estimate: Estimate,
    inputs: Inputs,
    search: Search,
    spread: float,
    confined: bool = False,
) -> Inversion:
    """Turn estimates of (targets, d) into images; `spread` is std/mean of the private stepsizes."""
    parameters = next(model.parameters())
    state, gradient = estimate.state.to(parameters), estimate.gradient.to(parameters)
    # Lengths far from 1 would meet the smallest numbers of float32 in the search.
    if not estimate.scale_known:
        gradient = gradient / gradient.norm(dim=1, keepdim=True).clamp_min(1e-30)
    if method == "dlg":
        single = confined and inputs.batch_size == 1
        labels = infer_label(model, gradient).labels if single else None
        return dlg(model, state, gradient, inputs, labels=labels, confined=confined, search=search)
    if method == "projection":
        wide = spread > WIDE_SPREAD
        return projection(
            model,
            state,
            gradient,
            inputs,
            power=0.25 if wide else 1.0,
            total_variation=0.01 if wide else 0.0,
            search=search,
        )
    if method == "smooth-projection":
        # Noise may hide the label: the search tries the likeliest ones, a restart each.
        single = inputs.batch_size == 1
        ranked = infer_label(model, gradient).ranked[:, : search.restarts] if single else None
        return projection(
            model,
            state,
            gradient,
            inputs,
            labels=None if ranked is None else ranked[:, :, None],
            total_variation=0.1,
            search=search,
        )
    if method in ("magnitude", "likelihood"):
        likely = method == "likelihood"
        return sign_free(model, state, gradient, inputs, likelihood=likely, search=search)
    if method == "linear-layer":
        images = linear_layer(model, gradient, inputs)[:, None]
        nothing = torch.zeros(len(images), device=images.device)
        labels = infer_label(model, gradient).labels[:, None]
        return Inversion(images, labels, nothing, nothing, nothing > 0, nothing.long())
    raise AttackError(f"the inversion {method!r} is not known; accepted: {', '.join(INVERSIONS)}")


def relative_spread(stepsize: Stepsize, round: int, agent: int = 0) -> float:
    """std/mean of the private stepsizes of a round: public."""
    return stepsize.std(round, agent) / stepsize.mean(round, agent)


def score(
    row: Row,
    attacked: list[int],
    estimate: Estimate,
    answer: Answer,
    model: nn.Module,
    inputs: Inputs,
    effort: Effort,
    spread: float,
    keep: Callable[[Tensor], None] | None = None,
) -> Row:
    """Invert an estimate of (attacked, d), and measure the images against the answer.

    attacked: which of the row's targets the estimate and the answer are about.
    """
    began = time.perf_counter()
    found = invert(row.inversion, model, estimate, inputs, effort.search, spread, effort.confined)
    images = found.images.cpu().to(answer.images)
    everyone = torch.arange(len(images))[:, None]
    finite = images.flatten(1).isfinite().all(1)
    order = match_batch(images.nan_to_num(0, 0, 0), answer.images)
    images = images[everyone, order]
    if keep:
        keep(images)
    errors = _errors(images, answer.images)
    rate = success_rate(
        torch.cat([errors, errors.new_full((row.targets - len(errors),), torch.nan)]),
        threshold=effort.threshold,
    )
    trace = () if found.trace is None else _quartiles(found.trace, answer.images)
    by_target: list[float | None] = [None] * row.targets
    for place, error in zip(attacked, errors.tolist(), strict=True):
        by_target[place] = error if math.isfinite(error) else None
    labels = _labels(model, estimate, found, inputs)
    state = gradient_relative_error(estimate.state, answer.state.double())
    relative = gradient_relative_error(
        estimate.gradient, answer.gradient.double(), scale_free=not estimate.scale_known
    )
    images, truth = images.nan_to_num(0, 0, 0), answer.images
    return replace(
        row,
        attacked=len(attacked),
        scale_known=estimate.scale_known,
        cosine=_median(gradient_cosine(estimate.gradient, answer.gradient.double()).abs()),
        relative_error=_median(relative),
        state_error=_median(state),
        errors=tuple(by_target),
        median_error=_median(errors),
        mse=_median(mse(images, truth)),
        psnr=_median(psnr(images, truth)),
        ssim=_median(ssim(images, truth)) if _is_pictorial(inputs) else None,
        labels_correct=int(label_correct(labels.cpu(), answer.labels).sum()),
        diverged=int((found.diverged.cpu() | ~finite).sum()),
        recovered=rate.successes,
        low=rate.low,
        high=rate.high,
        threshold=effort.threshold,
        trace=trace,
        seconds=round(time.perf_counter() - began, 2),
    )


def _labels(model: nn.Module, estimate: Estimate, found: Inversion, inputs: Inputs) -> Tensor:
    """Labels read from the last layer where that is possible, else those of the inversion."""
    if inputs.batch_size > 1 or found.labels.shape[1] > 1:
        return found.labels
    try:
        return infer_label(model, estimate.gradient, signs=estimate.signs_known).labels[:, None]
    except AttackError:
        return found.labels


def _errors(images: Tensor, truth: Tensor) -> Tensor:
    """Summed squared error of an image, mean over the batch: (targets,)."""
    return (images - truth).square().flatten(2).sum(2).mean(1).double()


def _quartiles(trace: Tensor, truth: Tensor) -> tuple[tuple[float, float, float], ...]:
    steps = []
    for images in trace.cpu().to(truth):
        images = images.nan_to_num(0, 0, 0)
        order = match_batch(images, truth)
        errors = _errors(images[torch.arange(len(images))[:, None], order], truth)
        low, middle, high = torch.quantile(errors, errors.new_tensor([0.25, 0.5, 0.75])).tolist()
        steps.append((low, middle, high))
    return tuple(steps)


def _median(values: Tensor) -> float | None:
    """The median, an infinite value being the worst; None where nothing is finite."""
    middle = float(values.double().nan_to_num(torch.inf).quantile(0.5))
    return middle if math.isfinite(middle) else None


def _is_pictorial(inputs: Inputs) -> bool:
    return len(inputs.shape) >= 2 and min(inputs.shape[-2:]) >= 11
