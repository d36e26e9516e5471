"""What one adversary got from one setting, and the sentence that says it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.privacy.auditor import intervals
from sottovoce.privacy.auditor.controls import NO_DOUBTS, Doubts
from sottovoce.privacy.auditor.measures import (
    NOTHING_PROVED,
    EpsilonLower,
    Identification,
    Labels,
    Membership,
    Permitted,
    Reconstruction,
    as_json,
    finite,
)
from sottovoce.privacy.auditor.rows import NOT_READ, Lined, Row
from sottovoce.privacy.auditor.supports import Supported, SupportFound, best_support

Case = tuple[str, str, str, int]
"""Algorithm, stepsize, adversary and round."""
_WORTH_SAYING = 0.01
"""How often guesses must count as recovered for a sentence to say so."""


@dataclass(frozen=True)
class Yardstick:
    """What the measures of a case stand beside: guesses without messages, and the proof.

    blind_error, label_error: medians over the targets. saw: what the adversary saw, in words.
    links: what protects them. epsilon_lower: of the mechanism against this adversary, where it was
    bounded.
    """

    blind_error: float
    label_error: float
    label_chance: float
    saw: str = "messages"
    links: str = "plain"
    permitted: Permitted = NOTHING_PROVED
    epsilon_lower: EpsilonLower | None = None

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Yardstick":
        lower = found["epsilon_lower"]
        made = {
            "permitted": Permitted(**found["permitted"]),
            "epsilon_lower": None if lower is None else EpsilonLower(**lower),
        }
        return cls(**{**found, **made})


@dataclass(frozen=True)
class Finding:
    """What an adversary got from one algorithm in one round, by the best of all its attacks.

    A reader or identifier whose controls failed is named in `not_evidence`, and counts as `Doubts`
    says. by: the attack and reader behind each measure. A measure is None where nothing could be
    run.
    """

    algorithm: str
    stepsize: str
    adversary: str
    round: int
    beside: Yardstick
    identification: Identification | None
    membership: Membership | None
    reconstruction: Reconstruction | None
    labels: Labels | None
    by: Mapping[str, str]
    not_evidence: tuple[str, ...] = ()
    support: SupportFound | None = None

    def to_json(self) -> dict[str, Any]:
        permitted = self.beside.permitted
        return {
            "algorithm": self.algorithm,
            "stepsize": self.stepsize,
            "adversary": self.adversary,
            "links": self.beside.links,
            "round": self.round,
            "identification": as_json(self.identification),
            "membership": as_json(self.membership),
            "reconstruction": as_json(self.reconstruction),
            "labels": as_json(self.labels),
            "support": as_json(self.support),
            "epsilon_lower": as_json(self.beside.epsilon_lower),
            "proved": None if permitted.epsilon is None else vars(permitted),
            "by": dict(self.by),
            "not_evidence": list(self.not_evidence),
            "sentence": self.sentence,
        }

    @property
    def succeeded(self) -> bool:
        """Whether any measure lies above what nothing at all would have given, by its interval."""
        return any(better for _, better in self._parts())

    @property
    def sentence(self) -> str:
        """Who saw what and got what, against what nothing would have given."""
        who = f"{_called(self.adversary)}, who saw {self.beside.saw} of {self.algorithm} in round "
        who += f"{self.round}"
        parts = self._parts()
        better = "; ".join(said for said, good in parts if good)
        others = "; ".join(said for said, good in parts if not good)
        if not parts and self.not_evidence:
            names = ", ".join(self.not_evidence)
            return (
                f"{who}: what was run is not evidence, since the controls of {names} failed. "
                "Nothing follows from it."
            )
        if not parts:
            return (
                f"{who}, could run no attack of the suite; this says nothing about other attacks."
            )
        if not better:
            return (
                f"{who}: no attack of the suite did better than guessing ({others}). "
                "That is no proof: another attack may succeed."
            )
        rest = f"; not above guessing with 95 % confidence: {others}" if others else ""
        return f"{who}, {better}{rest}."

    def _parts(self) -> list[tuple[str, bool]]:
        """What was measured, in words, and whether it is above what nothing would have given."""
        first, told, rebuilt, labels = (
            self.identification,
            self.membership,
            self.reconstruction,
            self.labels,
        )
        said: list[tuple[str, bool]] = []
        if first:
            beside = f"chance {_share(first.chance)}, {_share(first.chance_given_label)} given the "
            beside += "label"
            if first.permitted is not None:
                beside += f"; the proof permits up to {_share(first.permitted)}"
            said.append(
                (
                    f"picked the true record out of {first.candidates:,} for {first.first} of "
                    f"{first.targets} records ({beside})",
                    first.better,
                )
            )
        if told:
            proof = ""
            if told.permitted_auc is not None:
                proof = f"; the proof permits up to {told.permitted_auc:.2f}"
            said.append(
                (
                    f"told records of the batch from others with an AUC of {told.auc:.2f} "
                    f"({told.low:.2f} to {told.high:.2f}; chance 0.50{proof}){_found(told)}",
                    told.better,
                )
            )
        if rebuilt and rebuilt.median_error is not None:
            luck = rebuilt.recovered_chance
            often = f" (chance {_share(luck)})" if luck >= _WORTH_SAYING else ""
            said.append(
                (
                    f"rebuilt records with a median error of {rebuilt.median_error:.3g}, where a "
                    f"blind guess has {rebuilt.blind_error:.3g} and one that knows the label "
                    f"{rebuilt.label_error:.3g}, and recovered {rebuilt.recovered} of "
                    f"{rebuilt.targets}{often}",
                    rebuilt.better,
                )
            )
        elif rebuilt and rebuilt.exact is not None:
            words = f"read every word, in order, of {rebuilt.exact} of {rebuilt.targets} batches"
            said.append((words, rebuilt.better))
        if self.support:
            said.append((self.support.sentence, self.support.better))
        if labels:
            said.append(
                (
                    f"read {labels.right} of {labels.targets} labels (chance "
                    f"{_share(labels.chance)})",
                    labels.better,
                )
            )
        if lower := self.beside.epsilon_lower:
            proved = self.beside.permitted.of_batch
            known = "nothing is proved" if proved is None else f"proved is {proved:.3g}"
            noise = f"{'Gaussian noise' if lower.gaussian else 'no kind of noise'} is presumed"
            said.append(
                (
                    f"showed that ε of one record in this round is at least {lower.epsilon:.2g} "
                    f"(the test could show up to {lower.ceiling:.2g}; {noise}; {known})",
                    lower.better,
                )
            )
        return said


def find(
    case: Case,
    rows: Sequence[Row],
    lined: Sequence[Lined],
    supports: Sequence[Supported],
    beside: Yardstick,
    doubts: Doubts = NO_DOUBTS,
) -> Finding:
    """The best of all rows of a case that count."""
    support = None
    told = [one for one in lined if doubts.permit(one)]
    ran = [row for row in rows if row.attacked and doubts.permit(row)]
    unread = len({row.attack for row in rows if row.refused == NOT_READ})
    used = {row.inversion for row in rows if row.attacked} | {one.identifier for one in lined}
    by = {}
    identification = membership = reconstruction = labels = None
    if told:
        best = min(told, key=lambda one: (-one.first, -one.auc))
        ranks, runs = best.spread_out
        tried = len(told) + unread
        beyond = (best.candidates, best.given_label, beside.permitted, tried)
        identification = Identification.of(ranks, runs, *beyond)
        by["identification"] = f"{best.attack} + {best.identifier}"
        best = max(told, key=lambda one: one.auc)
        ranks, runs = best.spread_out
        membership = Membership.of(ranks, runs, best.candidates, beside.permitted, tried)
        by["membership"] = f"{best.attack} + {best.identifier}"
    if ran:
        row = best_of(ran)
        reconstruction = _reconstruction(row, beside, len(ran) + unread)
        by["reconstruction"] = f"{row.attack} + {row.inversion}"
        row = max(ran, key=lambda one: one.labels_correct or 0)
        if row.rights:
            rights = [bool(one) for one in row.rights]
            tried = len({one.attack for one in ran}) + unread
            labels = Labels.of(rights, row.runs, beside.label_chance, tried)
            by["labels"] = f"{row.attack} + {row.inversion}"
    if seen := [one for one in supports if one.attacked and doubts.permit(one)]:
        support, by["support"] = best_support(seen)
    used |= {one.name for one in supports if one.attacked}
    return Finding(
        *case,
        beside,
        identification,
        membership,
        reconstruction,
        labels,
        by,
        tuple(sorted(used.intersection(doubts.failed))),
        support,
    )


def best_of(rows: Sequence[Row]) -> Row:
    """The row that recovered most, the lower median error deciding between equals."""
    return min(rows, key=lambda row: (-row.recovered, _number(row.median_error)))


def _reconstruction(row: Row, beside: Yardstick, tried: int) -> Reconstruction:
    runs = row.runs or tuple(range(row.targets))
    hits = [float(one or False) for one in row.hits] or [0.0] * row.targets
    errors = [_number(one) for one in row.errors]
    low, high = intervals.median(errors, runs, tried) if errors else (math.inf, math.inf)
    return Reconstruction(
        row.targets,
        row.median_error,
        finite(low),
        finite(high),
        beside.blind_error,
        beside.label_error,
        row.threshold,
        row.recovered,
        *intervals.rate(hits, runs, tried),
        row.ssim,
        row.exact,
        row.luck,
    )


def _number(value: float | None) -> float:
    return math.inf if value is None else value


def _found(told: Membership) -> str:
    """The rate that lies above chance where the AUC by itself may be chance."""
    if told.low > 0.5 or not told.better:
        return ""
    return (
        f", and {told.tpr:.0%} of them at a false-positive rate of {told.fpr:.2g} "
        f"({told.tpr_low:.0%} to {told.tpr_high:.0%})"
    )


def _share(value: float) -> str:
    return f"{value:.2g}" if value < 0.01 else f"{value:.2f}"


def _called(adversary: str) -> str:
    if adversary.startswith("eavesdropper"):
        return "An eavesdropper"
    kind, _, rest = adversary.partition(":")
    agents = rest.partition(" ")[0]
    if kind == "restart":
        return f"Agent {agents}, a neighbour of agents that restarted"
    several = "," in agents
    return f"Agents {agents}, colluding" if several else f"Agent {agents}, curious"
