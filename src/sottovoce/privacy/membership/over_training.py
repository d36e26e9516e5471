"""Whether a record was used at all, told from the final models of a whole training."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from sottovoce.graphs import Graph
from sottovoce.mechanisms import Mechanism
from sottovoce.privacy.membership.rates import Membership, permitted_auc, permitted_tpr
from sottovoce.privacy.membership.shadow import (
    Shadows,
    ShadowSettings,
    shadow_membership,
    train_shadows,
)
from sottovoce.problems.module import ModuleProblem

_PLANTED = 2.0
"""Deviations by which the control that must succeed moves members."""
_FOUND = 0.8
"""The least AUC that an attack must reach on planted members; the best possible is 0.92."""


@dataclass(frozen=True)
class TrainingMembership:
    """What shadow models tell of who was used in a whole training, and what a proof permits.

    attacks: LiRA, RMIA and the plain loss; intervals hold for all of them together.
    controls_passed: whether every attack finds members that were planted, and nobody where
    membership was shuffled. epsilon: what is proved of these trainings, None where nothing is.
    diverged: trainings whose models were not finite in the end, which are left out.
    """

    algorithm: str
    rounds: int
    records: int
    attacks: tuple[Membership, ...]
    controls_passed: bool
    epsilon: float | None = None
    delta: float = 0.0
    diverged: int = 0

    @property
    def best(self) -> Membership:
        """The attack with the largest AUC."""
        return max(self.attacks, key=lambda one: one.auc)

    def to_json(self) -> dict[str, Any]:
        epsilon, delta = self.epsilon, self.delta
        return {
            **asdict(self),
            "attacks": [one.to_json() for one in self.attacks],
            "best": self.best.to_json(),
            "permitted_auc": None if epsilon is None else permitted_auc([(epsilon, delta)]),
            "permitted_tpr": None if epsilon is None else permitted_tpr(epsilon, delta),
            "sentence": self.sentence,
        }

    @property
    def sentence(self) -> str:
        """What was told apart, against chance and against what the proof permits."""
        best = self.best
        permitted = ""
        if self.epsilon is not None:
            most = permitted_auc([(self.epsilon, self.delta)])
            permitted = f"; the proof permits up to {most:.2f}"
        said = (
            f"Over {self.rounds} rounds of {self.algorithm}, {best.attack} with shadow models told "
            f"records that an agent used from records that it did not by the final models with an "
            f"AUC of {best.auc:.2f} ({best.auc_low:.2f} to {best.auc_high:.2f}; chance "
            f"0.50{permitted}) and {best.tpr:.1%} true positives at 1 % false ones"
        )
        if self.diverged:
            said += f" ({self.diverged} trainings that diverged are left out)"
        if not self.controls_passed:
            return f"{said}. Not evidence: a control of the shadow attacks failed."
        if best.auc_low <= 0.5:
            return f"{said}, which is not above chance. That is no proof: another may do better."
        return f"{said}."


def membership_over_training(
    problem: ModuleProblem,
    algorithm: Mechanism | str,
    graph: Graph | str,
    settings: ShadowSettings,
    proved: tuple[float, float] | None = None,
) -> TrainingMembership:
    """Train many shadows of one setting and say how well members of a training are told apart.

    proved: (ε, δ) of one such training, on half of `settings.records` records of each agent.
    """
    every = train_shadows(problem, algorithm, graph, settings)
    shadows = every.finite
    found = tuple(shadow_membership(shadows))
    epsilon, delta = proved or (None, 0.0)
    passed = controls_pass(shadows)
    return TrainingMembership(
        str(algorithm),
        settings.rounds,
        settings.records,
        found,
        passed,
        epsilon,
        delta,
        len(every.member) - len(shadows.member),
    )


def controls_pass(shadows: Shadows) -> bool:
    """Whether members that are planted are found, and nobody where membership is shuffled.

    Planted members have logits two deviations above those of others, with these halves of records.
    """
    shadows = shadows.finite
    draws = torch.randn(shadows.member.shape, generator=torch.Generator().manual_seed(0)).double()
    known = Shadows((draws + _PLANTED * shadows.member).sigmoid(), shadows.member)
    order = torch.randperm(len(shadows.member), generator=torch.Generator().manual_seed(1))
    blind = replace(shadows, member=shadows.member[order])
    return all(
        found.auc > _FOUND and chance.auc_low <= 0.5
        for found, chance in zip(shadow_membership(known), shadow_membership(blind), strict=True)
    )
