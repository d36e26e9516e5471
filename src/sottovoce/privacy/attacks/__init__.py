"""From messages to a gradient estimate: what each adversary can infer, attack by attack."""

from sottovoce.errors import AttackError
from sottovoce.privacy.attacks.base import Attack, Estimate, state_from_messages
from sottovoce.privacy.attacks.elimination import Chain, Elimination
from sottovoce.privacy.attacks.identities import Conventional, LeastSquares
from sottovoce.privacy.attacks.references import Averaging, FirstRound, KnownState, OwnState
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
    "OwnState",
    "Smoothing",
    "attack_named",
    "state_from_messages",
]
