"""From messages to a gradient estimate: what each adversary can infer, attack by attack."""

from sottovoce.errors import AttackError
from sottovoce.privacy.attacks.base import Attack, Estimate, state_from_messages
from sottovoce.privacy.attacks.elimination import Chain, Elimination
from sottovoce.privacy.attacks.identities import Conventional, LeastSquares
from sottovoce.privacy.attacks.network import LongRange
from sottovoce.privacy.attacks.references import Averaging, FirstRound, KnownState, OwnState
from sottovoce.privacy.attacks.refined import Refined
from sottovoce.privacy.attacks.restart import Restart, sent_again
from sottovoce.privacy.attacks.smoothing import Smoothing

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        Conventional(),
        LeastSquares(),
        Elimination(),
        Chain(),
        FirstRound(),
        OwnState(),
        KnownState(),
        Averaging(),
        Smoothing(),
        LongRange(),
        Refined(),
        Restart(),
    )
}
"""Every attack by its name."""


def attack_named(name: str) -> Attack:
    """The attack of this name."""
    if name not in ATTACKS:
        raise AttackError(f"the attack {name!r} is not known; accepted: {', '.join(ATTACKS)}")
    return ATTACKS[name]


__all__ = [
    "ATTACKS",
    "Attack",
    "Averaging",
    "Chain",
    "Conventional",
    "Elimination",
    "Estimate",
    "FirstRound",
    "KnownState",
    "LeastSquares",
    "LongRange",
    "OwnState",
    "Refined",
    "Restart",
    "Smoothing",
    "attack_named",
    "sent_again",
    "state_from_messages",
]
