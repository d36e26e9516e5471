"""Controls in the mode in which a reader is used: one that must succeed and one that must fail."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sottovoce.privacy.attacks import Estimate
from sottovoce.privacy.auditor.measures import Identification
from sottovoce.privacy.auditor.rows import EXACT, NOISE, Lined, Row
from sottovoce.privacy.auditor.supports import Supported, best_support
from sottovoce.privacy.readers import Answer, Reader

_STRICT = 3.3
"""Standard deviations above chance at which noise identifies: one of 2,000 by bad luck."""


def control_estimates(reader: Reader, answer: Answer, spread: float) -> dict[str, Estimate]:
    """The reader's own two controls, the exact gradient through private factors of this spread.

    spread: std/mean of what the audited mechanism multiplies single coordinates by; the exact
    gradient is multiplied by numbers uniform around 1 with it, as the laws of stepsizes have them.
    """
    found = reader.controls(answer)
    exact = found[EXACT]
    return {**found, EXACT: replace(exact, gradient=exact.gradient * _factors(exact, spread))}


def identifier_estimates(answer: Answer, like: Estimate, spread: float) -> dict[str, Estimate]:
    """The two controls of an identifier for estimates of the kind of `like`."""
    gradient, state = answer.gradient.double(), answer.state.double()
    rms = gradient.square().mean(1, keepdim=True).sqrt()
    noise = rms * torch.randn(gradient.shape, generator=_seeded(2)).double()
    exact = Estimate(gradient, like.scale_known, state, signs_known=like.signs_known)
    shown = gradient * _factors(exact, spread)
    if not like.signs_known:
        shown = shown * (2 * torch.randint(0, 2, shown.shape, generator=_seeded(3)) - 1)
    return {EXACT: replace(exact, gradient=shown), NOISE: replace(exact, gradient=noise)}


Control = Row | Lined | Supported


@dataclass(frozen=True)
class Doubts:
    """Readers and identifiers whose controls failed; misled: those that find something in noise.

    What a reader finds is evidence unless it finds as much in noise. What it does not find is
    evidence only if it reads the exact gradient.
    """

    failed: frozenset[str] = frozenset()
    misled: frozenset[str] = frozenset()

    @classmethod
    def of(cls, controls: Sequence[Control]) -> "Doubts":
        doubtful = [one for one in controls if failed(one)]
        misled = (name_of(one) for one in doubtful if one.attack == NOISE)
        return cls(frozenset(map(name_of, doubtful)), frozenset(misled))

    def permit(self, one: Control) -> bool:
        """Whether what an attack got counts."""
        name = name_of(one)
        return name not in self.failed or (name not in self.misled and above_chance(one))


NO_DOUBTS = Doubts()


def name_of(control: Control) -> str:
    """The reader or identifier that a line is about."""
    if isinstance(control, Row):
        return control.inversion
    return control.identifier if isinstance(control, Lined) else control.name


def above_chance(one: Control) -> bool:
    """Whether a line by itself lies above what guesses reach."""
    if isinstance(one, Row):
        return one.low > one.luck
    if isinstance(one, Supported):
        return best_support([one])[0].better
    ranks, runs = one.spread_out
    return Identification.of(ranks, runs, one.candidates, one.given_label).better


def failed(control: Control) -> str:
    """Why a control does not come out as it must; nothing where it does.

    A reader must recover half of the records from the exact gradient and none from noise. An
    identifier must put half of them first, and noise must leave them where chance would.
    """
    if isinstance(control, Row | Supported):
        return control.doubt
    ranks, _ = control.spread_out
    if control.attack == EXACT and 2 * control.first < len(ranks):
        return f"what {control.identifier} does not identify is not evidence"
    # The noise of every target is its own, so that ranks are independent. They are uniform under
    # chance, or lie nearer the ends for records that are unlike the other candidates.
    places = torch.tensor(ranks).double() / control.candidates
    deviation = max(12**-0.5, float(places.std(correction=0)))
    if control.attack == NOISE and control.auc - 0.5 > _STRICT * deviation / len(ranks) ** 0.5:
        return f"what {control.identifier} identifies is not evidence"
    return ""


def _factors(estimate: Estimate, spread: float) -> Tensor:
    """Uniform around 1 with the deviation `spread`, (targets, d)."""
    draws = torch.rand(estimate.gradient.shape, generator=_seeded(4)).double()
    return 1 + spread * 12**0.5 * (draws - 0.5)


def _seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)
