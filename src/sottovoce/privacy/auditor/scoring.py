"""From what an adversary sees to a row: estimate gradients, read them, compare with the truth."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from sottovoce.errors import AttackError
from sottovoce.privacy.adversaries import View
from sottovoce.privacy.attacks import Attack, Estimate
from sottovoce.privacy.auditor import intervals
from sottovoce.privacy.auditor.guesses import Guesses, classes_of, record_errors
from sottovoce.privacy.auditor.pool import Lineup
from sottovoce.privacy.auditor.recording import Pairs
from sottovoce.privacy.auditor.rows import Lined, Row
from sottovoce.privacy.knowledge import Inputs, Knowledge
from sottovoce.privacy.readers import Answer, Inversion, Reader
from sottovoce.privacy.readers.identification import identify
from sottovoce.privacy.readers.layers import infer_label
from sottovoce.privacy.readers.metrics import (
    gradient_cosine,
    gradient_relative_error,
    label_correct,
    match_batch,
    mse,
    psnr,
    ssim,
)

T = TypeVar("T")
_WINDOW = 11
"""Of SSIM, in pixels; smaller images have a smaller odd one."""


@dataclass(frozen=True, eq=False)
class Attempt:
    """An estimate of some targets' gradients, and the truth to score it with.

    attacked: which of the row's targets the estimate and the answer are about. spread: std/mean of
    the private factors on its coordinates (`auditor.public`).
    """

    row: Row
    estimate: Estimate
    answer: Answer
    attacked: list[int]
    spread: float


def estimates(
    attack: Attack, view: View, pairs: Pairs, round: int
) -> tuple[Estimate | None, list[int], str]:
    """Estimates of all targets that can be attacked, which these are, and why others cannot."""
    found: dict[int, Estimate] = {}
    refused = ""
    for agent in dict.fromkeys(agent for _, agent in pairs):
        try:
            found[agent] = attack.estimate(view, agent, round)
        except AttackError as error:
            refused = refused or str(error)
    known = _known_states(view, round)
    attacked = [place for place, (_, agent) in enumerate(pairs) if agent in found]
    each = [(run, agent, found[agent]) for run, agent in pairs if agent in found]
    if not each:
        return None, [], refused
    rounding = [one.rounding[run] for run, _, one in each if one.rounding is not None]
    estimate = Estimate(
        torch.stack([one.gradient[run] for run, _, one in each]),
        all(one.scale_known for _, _, one in each),
        torch.stack([(one.state if known is None else known[:, a])[run] for run, a, one in each]),
        signs_known=all(one.signs_known for _, _, one in each),
        rounding=torch.stack(rounding) if len(rounding) == len(each) else None,
        others=max(one.others for _, _, one in each),
    )
    return estimate, attacked, refused


def _known_states(view: View, round: int) -> Tensor | None:
    """States told as side information, or in round 1 the public start: (runs, agents, d)."""
    if view.states is not None:
        return view.states[view.rounds.index(round)].double()
    if round == 1 and view.start is not None:
        return view.start.double()[:, None].expand(-1, view.graph.agents, -1)
    return None


def line_up(attempt: Attempt, knowledge: Knowledge, lineup: Lineup) -> Lined:
    """Score every candidate by the estimate, and rank the true records among them."""
    began, row = time.perf_counter(), attempt.row
    name = "matched filter" if attempt.estimate.signs_known else "magnitude filter"
    scores = identify(knowledge, attempt.estimate, lineup.candidates, attempt.spread)
    ranks = lineup.ranks(scores.cpu(), attempt.attacked).tolist()
    placed = dict(zip(attempt.attacked, map(tuple, ranks), strict=True))
    about = (row.algorithm, row.stepsize, row.adversary, row.round, row.attack, name)
    return Lined(
        *about,
        row.targets,
        len(lineup),
        lineup.chance_given_label,
        tuple(placed.get(at) for at in range(row.targets)),
        row.runs,
        round(time.perf_counter() - began, 2),
    )


def score(
    attempt: Attempt, reader: Reader, model: nn.Module, inputs: Inputs, guesses: Guesses
) -> tuple[Row, Tensor]:
    """Read an estimate, and measure the records against the answer: a row and its records."""
    began = time.perf_counter()
    row = replace(attempt.row, inversion=reader.name)
    estimate, answer = attempt.estimate, attempt.answer
    shown = answer.images.new_zeros(row.targets, *answer.images.shape[1:])
    try:
        found = reader.read(model, estimate, inputs, attempt.spread)
    except AttackError as error:
        return replace(row, refused=str(error)), shown
    images = found.images.cpu().to(answer.images)
    finite = images.flatten(1).isfinite().all(1)
    images = _in_order(images, answer.images)
    shown[attempt.attacked] = images
    errors = record_errors(images, answer.images)
    hits = (errors < row.threshold * guesses.errors(answer)[1]).tolist()
    if inputs.vocabulary:
        # Numbers of tokens are right or wrong, and not near or far.
        hits = (errors == 0).tolist()
        errors = torch.full_like(errors, torch.nan)
    labels = _labels(model, estimate, found, inputs).cpu()
    rights = _rights(labels, answer.labels)
    truth = answer.gradient.double()
    cosines = gradient_cosine(estimate.gradient, truth).abs()
    images = images.nan_to_num(0, 0, 0)

    def each(values: Sequence[T]) -> tuple[T | None, ...]:
        placed = dict(zip(attempt.attacked, values, strict=True))
        return tuple(placed.get(place) for place in range(row.targets))

    share = [float(one or False) for one in each(hits)]
    low, high = intervals.rate(share, row.runs)
    done = replace(
        row,
        attacked=len(attempt.attacked),
        scale_known=estimate.scale_known,
        cosine=_median(cosines),
        relative_error=_median(
            gradient_relative_error(estimate.gradient, truth, scale_free=not estimate.scale_known)
        ),
        state_error=_median(gradient_relative_error(estimate.state, answer.state.double())),
        errors=each([one if math.isfinite(one) else None for one in errors.tolist()]),
        median_error=_median(errors),
        labels_correct=None if rights is None else sum(rights),
        diverged=int((found.diverged.cpu() | ~finite).sum()),
        recovered=sum(hits),
        luck=0.0 if inputs.vocabulary else guesses.luck(answer, row.threshold),
        low=low,
        high=high,
        trace=() if found.trace is None else _quartiles(found.trace, answer.images),
        seconds=round(time.perf_counter() - began, 2),
        cosines=each(cosines.nan_to_num(0).tolist()),
        labels=() if rights is None else each([tuple(one) for one in labels.flatten(1).tolist()]),
        rights=() if rights is None else each(rights),
        hits=each(hits),
        exact=_exact(images, answer.images),
    )
    return done if inputs.vocabulary else _near(done, images, answer.images, inputs), shown


def _labels(model: nn.Module, estimate: Estimate, found: Inversion, inputs: Inputs) -> Tensor:
    """Labels read from the last layer where that is possible, else those of the inversion."""
    if inputs.batch_size > 1 or found.labels.shape[1] > 1:
        return found.labels
    try:
        return infer_label(model, estimate.gradient, signs=estimate.signs_known).labels[:, None]
    except AttackError:
        return found.labels


def _rights(labels: Tensor, truth: Tensor) -> list[bool] | None:
    """Whether each target's labels are right; None where labels name no classes."""
    if classes_of(truth.flatten(0, 1)) is None or labels.numel() != truth.numel():
        return None
    found: list[bool] = label_correct(labels.flatten(1), truth.flatten(1)).tolist()
    return found


def _in_order(images: Tensor, truth: Tensor) -> Tensor:
    """Each target's images in the order of its batch: (targets, batch, *shape)."""
    order = match_batch(images.nan_to_num(0, 0, 0).double(), truth.double())
    return images[torch.arange(len(images))[:, None], order]


def _exact(images: Tensor, truth: Tensor) -> int | None:
    """How many targets are right in every number; None unless all numbers are whole ones."""
    if not bool((truth.double() == truth.double().round()).all()):
        return None
    return int((images.double().round() == truth.double()).flatten(1).all(1).sum())


def _quartiles(trace: Tensor, truth: Tensor) -> tuple[tuple[float, ...], ...]:
    shown = trace.cpu().to(truth).nan_to_num(0, 0, 0)
    errors = [record_errors(_in_order(images, truth), truth) for images in shown]
    return tuple(tuple(one.quantile(one.new_tensor([0.25, 0.5, 0.75])).tolist()) for one in errors)


def _median(values: Tensor) -> float | None:
    """The median, an infinite value being the worst; None where nothing is finite."""
    middle = float(values.double().nan_to_num(torch.inf).quantile(0.5))
    return middle if math.isfinite(middle) else None


def _near(row: Row, images: Tensor, truth: Tensor, inputs: Inputs) -> Row:
    """The row with medians of scores of numbers that may be near the truth."""
    return replace(
        row,
        mse=_median(mse(images.double(), truth.double())),
        psnr=_median(psnr(images.double(), truth.double())),
        ssim=_similarity(images, truth, inputs),
    )


def _similarity(images: Tensor, truth: Tensor, inputs: Inputs) -> float | None:
    """The median SSIM of images of any size, with a window that fits; None for other records."""
    if len(inputs.shape) < 2 or not images.is_floating_point():
        return None
    side = min(inputs.shape[-2:])
    window = min(_WINDOW, side - (side % 2 == 0))
    return _median(ssim(images, truth, window=window)) if window >= 3 else None
