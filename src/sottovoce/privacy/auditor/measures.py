"""What an adversary got, in measures that mean the same for every model and every kind of data.

Each measure stands beside what nothing at all would have given: chance, a blind guess, or the best
guess of somebody who knows the label. Where a guarantee is proved, it also stands beside what the
proof permits, which is more than chance.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sottovoce.privacy.auditor import intervals
from sottovoce.privacy.membership.rates import FALSE_POSITIVES, permitted_auc, permitted_tpr


@dataclass(frozen=True)
class Permitted:
    """What a proved (ε, δ) lets an adversary reach; ε None where nothing is proved.

    epsilon: for whether a record is in the data of a training. in_batch: for whether it was in the
    batch of one round, which sampling does not hide; None where that is the same.
    """

    epsilon: float | None = None
    delta: float = 0.0
    in_batch: float | None = None

    def rate(self, chance: float) -> float | None:
        """The most true positives in a batch where `chance` of the others pass the same test."""
        found = self.of_batch
        return None if found is None else permitted_tpr(found, self.delta, chance)

    @property
    def auc(self) -> float | None:
        found = self.of_batch
        return None if found is None else permitted_auc([(found, self.delta)])

    @property
    def of_batch(self) -> float | None:
        """ε against somebody who looks for the records of one batch."""
        return self.epsilon if self.in_batch is None else self.in_batch


NOTHING_PROVED = Permitted()
_RATES = 2
"""Of membership; it is above chance where one of them is."""


@dataclass(frozen=True)
class Identification:
    """Where the true record stands among other records of the same kind, by its score.

    top1: the share of targets whose record comes first; targets: how many records of attacked
    batches were looked for; candidates: how many records were compared, the true one included,
    identical ones counted once and the rest of its batch left out. chance: of being first by luck;
    chance_given_label: the same for somebody who knows the label. permitted: the most that the
    proved guarantee allows for telling a record from one other at a false-positive rate of
    `chance`, None where nothing is proved.
    """

    targets: int
    top1: float
    low: float
    high: float
    first: int
    candidates: int
    median_rank: float
    chance: float
    chance_given_label: float
    permitted: float | None = None

    @property
    def better(self) -> bool:
        """Whether it lies above chance, by its interval."""
        return self.low > self.chance

    @classmethod
    def of(
        cls,
        ranks: Sequence[float],
        runs: Sequence[int],
        candidates: int,
        given_label: float,
        permitted: Permitted = NOTHING_PROVED,
        tried: int = 1,
    ) -> "Identification":
        """From the rank of every record, 1 being the best; given_label: chance given the label."""
        hits = [float(rank == 1) for rank in ranks]
        ends = intervals.rate(hits, runs, tried)
        chance = 1 / candidates
        return cls(
            len(ranks),
            sum(hits) / len(hits),
            *ends,
            int(sum(hits)),
            candidates,
            _median(ranks),
            chance,
            given_label,
            permitted.rate(chance),
        )


@dataclass(frozen=True)
class Membership:
    """How well scores tell records of the attacked batch from records that are not in it.

    auc: the probability that a record of the batch has the higher score of the two; tpr: the share
    of them that scores above 99 % of the other records. fpr: how often a record that is not in the
    batch does, which is 1 % or a little more, and 1/candidates where these are fewer than 100.
    Chance is 0.5 and `fpr`. Both intervals hold together.
    """

    targets: int
    auc: float
    low: float
    high: float
    tpr: float
    tpr_low: float
    tpr_high: float
    fpr: float = FALSE_POSITIVES
    permitted_auc: float | None = None
    permitted_tpr: float | None = None

    @property
    def better(self) -> bool:
        """Whether one of both rates lies above chance, by its interval."""
        return self.low > 0.5 or self.tpr_low > self.fpr

    @classmethod
    def of(
        cls,
        ranks: Sequence[float],
        runs: Sequence[int],
        candidates: int,
        permitted: Permitted = NOTHING_PROVED,
        tried: int = 1,
    ) -> "Membership":
        """From the rank of every record of the batch among `candidates`, itself included."""
        others = candidates - 1
        above = [1 - (rank - 1) / others for rank in ranks]
        called = [float(rank - 1 < FALSE_POSITIVES * others) for rank in ranks]
        # As many ranks pass, of all that a record which is not in the batch may have.
        fpr = math.ceil(FALSE_POSITIVES * others) / candidates
        return cls(
            len(ranks),
            sum(above) / len(above),
            *intervals.mean(above, runs, _RATES * tried),
            sum(called) / len(called),
            *intervals.rate(called, runs, _RATES * tried),
            fpr,
            permitted_auc=permitted.auc,
            permitted_tpr=permitted.rate(fpr),
        )


@dataclass(frozen=True)
class Reconstruction:
    """How close records were rebuilt, beside guesses that used no message.

    median_error: of the summed squared error of a record (mean over its batch), with its interval.
    blind_error: the median error of the best guess that knows nothing; label_error: of the best
    guess that knows the label, the mean of public records with it. recovered: targets whose error
    is below `threshold` times that of the guess that knows the label, target by target. exact:
    targets every number of which is right after rounding to whole numbers, for records of whole
    numbers (tabular records, tokens); None for others. ssim: for images. recovered_chance: how
    often the best single guess that knows the label counts as recovered.
    """

    targets: int
    median_error: float | None
    low: float | None
    high: float | None
    blind_error: float
    label_error: float
    threshold: float
    recovered: int
    recovered_low: float
    recovered_high: float
    ssim: float | None = None
    exact: int | None = None
    recovered_chance: float = 0.0

    @property
    def better(self) -> bool:
        """Whether it lies above the best guess that knows the label, by its intervals."""
        closer = self.high is not None and self.high < self.label_error
        return closer or self.recovered_low > self.recovered_chance


@dataclass(frozen=True)
class Labels:
    """How many targets' labels were all read right: `right` of `targets`.

    low, high: of the rate. chance: of naming them by the likeliest guess, the commonest label.
    """

    targets: int
    right: int
    rate: float
    low: float
    high: float
    chance: float

    @property
    def better(self) -> bool:
        """Whether it lies above the likeliest guess, by its interval."""
        return self.low > self.chance

    @classmethod
    def of(
        cls, right: Sequence[bool], runs: Sequence[int], chance: float, tried: int = 1
    ) -> "Labels":
        hits = [float(one) for one in right]
        return cls(
            len(hits),
            int(sum(hits)),
            sum(hits) / len(hits),
            *intervals.rate(hits, runs, tried),
            chance,
        )


@dataclass(frozen=True)
class EpsilonLower:
    """ε that the attack rules out: with 95 % confidence the mechanism's is at least `epsilon`.

    gaussian: whether Gaussian noise is presumed; else the chain has other randomness, nothing is
    presumed of it, and the bound is far lower for the same errors.
    ceiling: the most that `targets` simulated pairs could have shown; high: nothing bounds ε from
    above here. norm: that of the canary's gradient; clipped: whether the mechanism bounds it.
    """

    targets: int
    epsilon: float
    low: float
    high: None
    ceiling: float
    delta: float
    norm: float
    clipped: bool
    gaussian: bool = True

    @property
    def better(self) -> bool:
        """Whether anything was shown."""
        return self.epsilon > 0


def as_json(measure: Any) -> dict[str, Any] | None:
    """A measure as JSON: its fields, and `interval` with both ends."""
    if measure is None:
        return None
    return {**asdict(measure), "interval": [measure.low, measure.high]}


def _median(values: Sequence[float]) -> float:
    ordered, half = sorted(values), len(values) // 2
    if len(ordered) % 2:
        return float(ordered[half])
    return (ordered[half - 1] + ordered[half]) / 2


def finite(value: float | None) -> float | None:
    """The number, or None where it is not finite."""
    return value if value is not None and math.isfinite(value) else None
