"""How well scores tell members from others, with intervals that honour runs, and what ε permits."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from scipy.stats import norm
from scipy.stats import t as student
from torch import Tensor

from sottovoce.errors import AttackError

FALSE_POSITIVES = 0.01
"""The false-positive rate at which true positives are reported."""
_RESAMPLED = 400


@dataclass(frozen=True)
class Membership:
    """How often an attack tells records that were used from records that were not.

    auc: the probability that a member has the higher score, 0.5 being chance; tpr: true positives
    where 1 % of the others are called members, 0.01 being chance. Intervals are at 95 %, over runs:
    scores of one run share its weights. targets: scored pairs of run and record.
    """

    attack: str
    auc: float
    auc_low: float
    auc_high: float
    tpr: float
    tpr_low: float
    tpr_high: float
    targets: int
    members: int
    runs: int

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        found["interval"] = [found.pop("auc_low"), found.pop("auc_high")]
        found["tpr_interval"] = [found.pop("tpr_low"), found.pop("tpr_high")]
        found["tpr_at_fpr"] = FALSE_POSITIVES
        return found


def told_apart(
    attack: str, scores: Tensor, member: Tensor, seed: int = 0, tried: int = 1, folds: int = 1
) -> Membership:
    """Rates of scores (runs, records), higher for members; member: (runs, records) bool.

    Runs are drawn anew with replacement for the intervals (a clustered bootstrap). Scores that are
    not finite count as the lowest. tried: of how many attacks the best is chosen; the intervals
    hold for all of them together (Bonferroni). folds: in how many parts runs are attacked, each by
    what was learnt from the others. What two halves learn from one another agrees or errs together,
    so that both give nearly one number: intervals are sqrt(folds) times as wide, with Student's t
    for runs / folds of them.
    """
    if scores.shape != member.shape or scores.dim() != 2:
        raise AttackError(
            f"scores {tuple(scores.shape)} and members {tuple(member.shape)} must be (runs, "
            "records) both"
        )
    inside, total = int(member.sum()), member.numel()
    if not 0 < inside < total:
        raise AttackError(f"{inside} of {total} scores are members'; both kinds are needed")
    runs = len(scores)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(runs, (_RESAMPLED, runs), generator=generator)
    weights = torch.zeros(_RESAMPLED + 1, runs, dtype=torch.float64)
    weights.scatter_add_(1, drawn, torch.ones(1, dtype=torch.float64).expand_as(drawn))
    weights = torch.cat([weights[:-1], torch.ones(1, runs, dtype=torch.float64)])
    auc, tpr = _weighted_rates(scores.double().nan_to_num(-torch.inf), member, weights)
    ends = [_interval(values[:-1], float(values[-1]), runs, tried, folds) for values in (auc, tpr)]
    return Membership(
        attack, float(auc[-1]), *ends[0], float(tpr[-1]), *ends[1], total, inside, runs
    )


def _weighted_rates(scores: Tensor, member: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """AUC and TPR for every row of weights of the runs: (rows,) each; ties count one half."""
    levels, place = scores.flatten().unique(return_inverse=True)
    run = torch.arange(len(scores)).repeat_interleave(scores.shape[1])
    auc, tpr = [], []
    for row in weights:
        each = row[run]
        counts = torch.zeros(2, len(levels), dtype=torch.float64)
        counts[1].index_add_(0, place, torch.where(member.flatten(), each, 0.0))
        counts[0].index_add_(0, place, torch.where(member.flatten(), 0.0, each))
        others, members = counts
        below = others.cumsum(0) - others / 2
        if not float(others.sum()) or not float(members.sum()):
            continue
        auc.append(float((members * below).sum() / (members.sum() * others.sum())))
        above = others.flip(0).cumsum(0) / others.sum()
        called = int((above <= FALSE_POSITIVES).sum())
        tpr.append(float(members.flip(0)[:called].sum() / members.sum()))
    return torch.tensor(auc, dtype=torch.float64), torch.tensor(tpr, dtype=torch.float64)


def _interval(
    resampled: Tensor, value: float, runs: int, tried: int, folds: int
) -> tuple[float, float]:
    """Percentiles; where every resample agrees, what this number of runs says of a sure event."""
    tail = 0.025 / tried
    low, high = resampled.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    if high - low < 1e-12 and value in (0.0, 1.0):
        sure = tail ** (folds / runs)
        return (min(low, sure), 1.0) if value else (0.0, max(high, 1 - sure))
    if folds > 1:
        wider = math.sqrt(folds) * float(student.isf(tail, runs / folds - 1) / norm.isf(tail))
        low, high = (value + wider * (end - value) for end in (low, high))
    return max(0.0, min(low, value)), min(1.0, max(high, value))


def permitted_tpr(epsilon: float, delta: float, fpr: float = FALSE_POSITIVES) -> float:
    """The most true positives that (ε, δ) permits at a false-positive rate.

    TPR <= e^ε FPR + δ and 1 - FPR <= e^ε (1 - TPR) + δ (Kairouz, Oh and Viswanath 2015).
    """
    return float(_permitted(epsilon, delta, torch.tensor(fpr, dtype=torch.float64)))


def permitted_auc(profile: Sequence[tuple[float, float]]) -> float:
    """The largest AUC that guarantees (ε, δ), all holding at once, permit."""
    rates = torch.linspace(0, 1, 20_001, dtype=torch.float64)
    best = torch.ones_like(rates)
    for epsilon, delta in profile:
        best = torch.minimum(best, _permitted(epsilon, delta, rates))
    return float(torch.trapezoid(best, rates))


def _permitted(epsilon: float, delta: float, rates: Tensor) -> Tensor:
    direct = math.exp(min(epsilon, 700.0)) * rates + delta
    other = 1 - math.exp(-epsilon) * (1 - delta - rates)
    return torch.minimum(direct, other).clamp(0.0, 1.0)
