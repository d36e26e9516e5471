"""The questions of an audit: who attacks what, how, and what counts as success."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sottovoce.errors import AttackError
from sottovoce.graphs import Graph
from sottovoce.privacy.adversaries import Adversary, Eavesdropper, parse_adversary
from sottovoce.privacy.attacks import ATTACKS, Attack, attack_named
from sottovoce.privacy.readers import Reader, every_reader, reader_named
from sottovoce.randomness import require_jitter
from sottovoce.stepsizes import Stepsize, as_stepsize

THRESHOLD = 5.0
"""Summed squared error below which an image counts as recovered; the paper takes 50 to be
unrecognisable, a blind guess of an MNIST digit costs about 45."""

T = TypeVar("T")


@dataclass(frozen=True)
class AuditSettings:
    """What an audit asks.

    stepsize: its schedule serves all algorithms, its law those that draw private stepsizes; None is
    each algorithm's own. adversaries, attacks, readers: one or several, as objects or as the names
    of the command line; an empty list of attacks runs the controls alone. rounds: which to attack.
    targets: how many (run, agent) pairs. agents: which agents to attack, None being all. threshold:
    the summed squared error below which an image counts as recovered. controls: whether every
    reader that is used must also read exact gradients and noise. private_start: as for `simulate`.
    """

    stepsize: Stepsize | None = None
    adversaries: Sequence[Adversary] = field(default_factory=lambda: (Eavesdropper(),))
    attacks: Sequence[Attack] = tuple(ATTACKS.values())
    readers: Sequence[Reader] = field(default_factory=every_reader)
    rounds: Sequence[int] = (50,)
    targets: int = 8
    agents: Collection[int] | None = None
    threshold: float = THRESHOLD
    controls: bool = True
    private_start: float = 0.0
    insecure_seed: int | None = None

    def __post_init__(self) -> None:
        for name, parse in (
            ("adversaries", parse_adversary),
            ("attacks", attack_named),
            ("readers", reader_named),
        ):
            object.__setattr__(self, name, _several(getattr(self, name), parse))
        if self.stepsize is not None:
            object.__setattr__(self, "stepsize", as_stepsize(self.stepsize))
        rounds = tuple(sorted(set(self.rounds)))
        object.__setattr__(self, "rounds", rounds)
        if not rounds or rounds[0] < 1:
            raise AttackError(
                f"cannot attack round {min(rounds, default=None)}; rounds count from 1"
            )
        if self.targets < 1:
            raise AttackError(f"{self.targets} targets were asked for; accepted: 1 or more")
        require_jitter(self.private_start)

    def attacked(self, graph: Graph, adversary: Adversary | None = None) -> list[int]:
        """The agents to attack: those asked for that are not the adversary's own."""
        possible = range(graph.agents) if adversary is None else adversary.targets(graph)
        return [agent for agent in possible if self.agents is None or agent in self.agents]

    def recorded_rounds(self) -> list[int]:
        """Every round that the attacks need."""
        needed = {
            k for round in self.rounds for attack in self.attacks for k in attack.rounds(round)
        }
        return sorted(needed.union(self.rounds))


def _several(given: Any, parse: Callable[[str], T]) -> tuple[T, ...]:
    """One object or text, or several, as a tuple of objects."""
    each = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return tuple(parse(one) if isinstance(one, str) else one for one in each)
