"""Which features or words an attack finds in the batches, and how that is measured."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from sottovoce.errors import AttackError
from sottovoce.privacy.auditor import intervals
from sottovoce.privacy.auditor.rows import CONTROL, EXACT, NOISE, beyond_luck
from sottovoce.privacy.auditor.scoring import Attempt
from sottovoce.privacy.knowledge import Inputs, Knowledge
from sottovoce.privacy.readers.support import Support, likeliest_support


@dataclass(frozen=True)
class Counted:
    """One target's support: how many places are right, found and true, and whether all agree."""

    right: int
    found: int
    true: int

    @property
    def exact(self) -> bool:
        return self.right == self.found == self.true


@dataclass(frozen=True)
class Supported:
    """What one attack finds of the features or words of all targets' batches.

    counted: of every target; None where it was not attacked. guessed: the same for the best guess
    without messages, what most batches of public records have. luck: the share of batches that have
    the commonest support. runs: the run of every target.
    """

    algorithm: str
    stepsize: str
    adversary: str
    round: int
    attack: str
    targets: int
    counted: tuple[Counted | None, ...]
    guessed: tuple[Counted, ...]
    runs: tuple[int, ...]
    refused: str = ""
    seconds: float = 0.0
    luck: float = 0.0

    name = Support.name

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Supported":
        counted = tuple(None if one is None else Counted(**one) for one in found["counted"])
        guessed = tuple(Counted(**one) for one in found["guessed"])
        return cls(
            **{**found, "counted": counted, "guessed": guessed, "runs": tuple(found["runs"])}
        )

    @property
    def is_control(self) -> bool:
        return self.adversary == CONTROL

    @property
    def attacked(self) -> int:
        return sum(one is not None for one in self.counted)

    @property
    def exact(self) -> int:
        """Targets whose support is right in every place."""
        return sum(one is not None and one.exact for one in self.counted)

    @property
    def quality(self) -> tuple[float, float]:
        """Precision and recall over all attacked targets."""
        return _quality([one for one in self.counted if one is not None])

    @property
    def doubt(self) -> str:
        """What a control that failed says about the reader; nothing where it came out right."""
        if self.is_control and self.attack == EXACT and 2 * self.exact < self.targets:
            return f"what {self.name} does not find is not evidence"
        if (
            self.is_control
            and self.attack == NOISE
            and beyond_luck(self.exact, self.targets, self.luck)
        ):
            return f"what {self.name} finds is not evidence"
        return ""

    def __str__(self) -> str:
        precision, recall = self.quality
        law = "control" if self.is_control else self.algorithm.partition(":")[0].upper()
        return (
            f"{law}: {self.attack} + {self.name}, round {self.round}: precision {precision:.1%}, "
            f"recall {recall:.1%}, all right for {self.exact} of {self.targets}"
        )


@dataclass(frozen=True)
class SupportFound:
    """How much of the batches' features or words was found.

    exact: targets where all of them are right and no other was named, of `targets`; low, high: of
    that rate. precision: how much of what was named is there; recall: how much of what is there was
    named. blind_precision, blind_recall: of the best guess without messages. chance: of having all
    right by the likeliest guess. above_guess: whether more is right, target by target, than the
    guess has (interval of the mean difference).
    """

    targets: int
    exact: int
    rate: float
    low: float
    high: float
    precision: float
    recall: float
    blind_precision: float
    blind_recall: float
    chance: float = 0.0
    above_guess: bool = False

    @property
    def better(self) -> bool:
        """Whether it lies above the best guess without messages, by its intervals."""
        return self.low > self.chance or self.above_guess

    @property
    def sentence(self) -> str:
        return (
            f"found the features or words of the batches with a precision of {self.precision:.0%} "
            f"and a recall of {self.recall:.0%}, and all of them for {self.exact} of "
            f"{self.targets} (the best guess without messages: {self.blind_precision:.0%} and "
            f"{self.blind_recall:.0%})"
        )


def best_support(found: Sequence[Supported]) -> tuple[SupportFound, str]:
    """What the best of several attacks found, and its name."""
    best = max(found, key=lambda one: (one.exact, sum(one.quality)))
    hits = [float(one is not None and one.exact) for one in best.counted]
    measured = SupportFound(
        best.targets,
        best.exact,
        sum(hits) / len(hits),
        *intervals.rate(hits, best.runs, len(found)),
        *best.quality,
        *_quality(best.guessed),
        best.luck,
        _above_guess(best, len(found)),
    )
    return measured, f"{best.attack} + {best.name}"


def find_supports(
    attempt: Attempt, knowledge: Knowledge, model: nn.Module, noisy: bool
) -> Supported:
    """Read the supports of an attempt's targets, and compare them with the true ones."""
    began, row, inputs = time.perf_counter(), attempt.row, knowledge.inputs
    reader, answer = Support.of(model), attempt.answer
    truth = reader.truth(answer.images, inputs)
    guess, luck = likeliest_support(inputs.pixels(knowledge.records).cpu(), inputs, reader)
    guessed = [_counted(guess, one) for one in truth]
    refused, placed = "", {}
    try:
        found = reader.read(model, attempt.estimate, inputs, noisy).cpu()
        each = [_counted(a, b) for a, b in zip(found, truth, strict=True)]
        placed = dict(zip(attempt.attacked, each, strict=True))
    except AttackError as error:
        refused = str(error)
    return Supported(
        row.algorithm,
        row.stepsize,
        row.adversary,
        row.round,
        row.attack,
        row.targets,
        tuple(placed.get(at) for at in range(row.targets)),
        tuple(guessed),
        row.runs,
        refused,
        round(time.perf_counter() - began, 2),
        luck,
    )


def suits_support(model: nn.Module, inputs: Inputs) -> bool:
    """Whether the model's first layer shows which features or words a batch has."""
    return Support().suits(model, inputs)


def _counted(found: Any, truth: Any) -> Counted:
    return Counted(int((found & truth).sum()), int(found.sum()), int(truth.sum()))


def _above_guess(found: Supported, tried: int) -> bool:
    """Whether targets have more right than the guess has: in the mean difference of F1."""
    differences = [
        (1 + _agreement(one) - _agreement(guess)) / 2 if one is not None else 0.5
        for one, guess in zip(found.counted, found.guessed, strict=True)
    ]
    return intervals.mean(differences, found.runs, tried).low > 0.5


def _agreement(one: Counted) -> float:
    return 2 * one.right / max(1, one.found + one.true)


def _quality(counted: Sequence[Counted]) -> tuple[float, float]:
    right = sum(one.right for one in counted)
    named, true = sum(one.found for one in counted), sum(one.true for one in counted)
    return right / max(1, named), right / max(1, true)
