"""The lines of an audit: what one attack and one reader, or one identifier, made of the targets."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from scipy.stats import binom

CONTROL = "control"
"""Who appears as the adversary of a control."""

EXACT, NOISE = "exact gradient", "noise"
"""The two controls: one that must succeed and one that must fail."""

NOT_READ = "not read: another estimate was closer to the gradient"
"""Why an estimate has no reader where the best of several was chosen."""

_STRICT = 1e-3
"""How unlikely luck must be for what is recovered from noise to speak against a reader."""

MEASURES = ("cosine", "relative error", "error", "PSNR", "SSIM", "labels", "recovered")
"""Headings of `Row.cells`: the third is the summed squared error."""


@dataclass(frozen=True)
class Row:
    """One line of an audit: what one adversary got by one attack from one algorithm.

    errors, cosines, labels, rights, hits: of every target, the summed squared error (mean over its
    batch), the absolute cosine with its gradient, the labels of its batch, whether these are right,
    and whether it is recovered; None where the attack was refused or found nothing finite. cosine,
    relative_error: medians against the true gradient, the second after the best scaling where the
    attack leaves the scale open. Medians are over the attacked targets. exact: how many targets
    are right in every number, for records of whole numbers. luck: how often the best single guess
    counts as recovered. runs: the run of every target. refused: why no target, or only `attacked`
    of them, could be attacked.
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
    trace: tuple[tuple[float, ...], ...] = ()
    """Lower quartile, median and upper quartile of the errors at the iterations of the search."""
    seconds: float = 0.0
    cosines: tuple[float | None, ...] = ()
    labels: tuple[tuple[int, ...] | None, ...] = ()
    rights: tuple[bool | None, ...] = ()
    hits: tuple[bool | None, ...] = ()
    exact: int | None = None
    runs: tuple[int, ...] = ()
    luck: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Row":
        return cls(**_with_tuples(found))

    @property
    def verdict(self) -> str:
        """What happened, in words."""
        if not self.attacked:
            return f"refused: {self.refused}"
        missed = self.targets - self.attacked
        beyond = f", {missed} beyond its reach" if missed else ""
        return (
            f"recovered {self.recovered} of {self.targets} records{beyond} "
            f"(95 % interval {self.low:.0%} to {self.high:.0%})"
        )

    @property
    def is_control(self) -> bool:
        return self.adversary == CONTROL

    @property
    def doubt(self) -> str:
        """What a control that failed says about its reader; nothing where it came out as it must.

        An exact gradient must give half of the records away, and noise no more than guesses do.
        """
        if (
            self.is_control
            and self.attack == NOISE
            and beyond_luck(self.recovered, self.targets, self.luck)
        ):
            return f"what {self.inversion} recovers is not evidence"
        if self.is_control and self.attack != NOISE and 2 * self.recovered < self.targets:
            return f"what {self.inversion} does not recover is not evidence"
        return ""

    @property
    def name(self) -> str:
        """How a row is called in tables and charts."""
        how = f"{self.attack} + {self.inversion}"
        if self.is_control:
            return f"control: {how}"
        law = self.stepsize.partition(":")[0]
        private = "" if law == "deterministic" else f" ({law} law)"
        return f"{self.algorithm.partition(':')[0].upper()}{private}: {how}"

    @property
    def share(self) -> str:
        """How many records were recovered, with the interval and how many were attacked."""
        fewer = "" if self.attacked == self.targets else f", {self.attacked} attacked"
        return f"{self.recovered} of {self.targets} ({self.low:.0%} to {self.high:.0%}){fewer}"

    @property
    def cells(self) -> tuple[str, ...]:
        """What was measured, as text for a table under `MEASURES`."""
        values = (
            (self.cosine, ".4f"),
            (self.relative_error, ".2g"),
            (self.median_error, ".3g"),
            (self.psnr, ".1f"),
            (self.ssim, ".2f"),
        )
        shown = ["" if value is None else format(value, form) for value, form in values]
        shown = [one or "not finite" for one in shown[:3]] + shown[3:]
        shown[1] += "" if self.scale_known else " (scaled)"
        labels = "" if self.labels_correct is None else f"{self.labels_correct}/{self.attacked}"
        return (*shown, labels, self.share)

    def __str__(self) -> str:
        """One line for people who wait."""
        error = self.median_error
        shown = "nothing finite" if error is None else f"median error {error:.3g}"
        return (
            f"{self.name}, round {self.round}: {shown}, recovered {self.recovered} of "
            f"{self.targets}, {self.seconds:.0f} s"
        )


@dataclass(frozen=True)
class Lined:
    """Where one attack puts the true records among candidates.

    ranks: of every target's records, 1 being the best; None where the target was not attacked.
    candidates: how many are compared, the true one included; given_label: the chance of naming a
    record among the candidates with its label. runs: the run of every target.
    """

    algorithm: str
    stepsize: str
    adversary: str
    round: int
    attack: str
    identifier: str
    targets: int
    candidates: int
    given_label: float
    ranks: tuple[tuple[float, ...] | None, ...]
    runs: tuple[int, ...]
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Lined":
        return cls(**_with_tuples(found))

    @property
    def is_control(self) -> bool:
        return self.adversary == CONTROL

    @property
    def spread_out(self) -> tuple[list[float], list[int]]:
        """The ranks of all records with their runs; records out of reach stand in the middle."""
        batch = max(len(one) for one in self.ranks if one is not None)
        middle = ((self.candidates + 1) / 2,) * batch
        each = [
            (rank, run)
            for ranks, run in zip(self.ranks, self.runs, strict=True)
            for rank in (middle if ranks is None else ranks)
        ]
        return [rank for rank, _ in each], [run for _, run in each]

    @property
    def first(self) -> int:
        """How many records come first."""
        return sum(rank == 1 for rank in self.spread_out[0])

    @property
    def attacked(self) -> int:
        """How many targets could be attacked."""
        return sum(one is not None for one in self.ranks)

    @property
    def auc(self) -> float:
        """The probability that a record of the batch scores above another one."""
        ranks, _ = self.spread_out
        return 1 - (sum(ranks) / len(ranks) - 1) / max(1, self.candidates - 1)

    def __str__(self) -> str:
        ranks, _ = self.spread_out
        how = f"{self.attack} + {self.identifier}"
        law = "control" if self.is_control else self.algorithm.partition(":")[0].upper()
        return (
            f"{law}: {how}, round {self.round}: first among {self.candidates:,} for {self.first} "
            f"of {len(ranks)}, {self.seconds:.0f} s"
        )


def beyond_luck(recovered: int, targets: int, luck: float) -> bool:
    """Whether guesses would recover this many with a probability below `_STRICT`."""
    return recovered > 0 and float(binom.sf(recovered - 1, targets, luck)) < _STRICT


def _with_tuples(found: Mapping[str, Any]) -> dict[str, Any]:
    lists = {
        key: tuple(tuple(one) if isinstance(one, list) else one for one in value)
        for key, value in found.items()
        if isinstance(value, list)
    }
    return {**found, **lists}
