"""The questions of an audit: who attacks what, how, and what counts as success."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from sottovoce.errors import AttackError
from sottovoce.graphs import Graph
from sottovoce.privacy.adversaries import Adversary, Eavesdropper, parse_adversary
from sottovoce.privacy.attacks import ATTACKS, Attack, attack_named
from sottovoce.privacy.membership import ShadowSettings
from sottovoce.privacy.readers import Reader, every_reader, reader_named
from sottovoce.randomness import require_jitter
from sottovoce.stepsizes import Stepsize, as_stepsize

THRESHOLD = 1 / 3
"""A record counts as recovered where its error is below this part of the error of the best guess
that knows its label. Guesses never pass; a digit that can be read has about a quarter."""
CANDIDATES = 5000
"""Records among which a true one is looked for, itself included."""
PAIRS = 1000
"""Simulated trainings with and without a canary that bound ε from below."""
FEWEST_PAIRS = 20

_PROMISING = (
    "chain",
    "elimination",
    "known-state",
    "first-round",
    "refined",
    "long-range",
    "smoothing",
)
T = TypeVar("T")


@dataclass(frozen=True)
class AuditSettings:
    """What an audit asks.

    stepsize: its schedule serves all algorithms, its law those that draw private stepsizes; None is
    each algorithm's own. adversaries, attacks, readers: one or several, as objects or as the names
    of the command line; an empty list of attacks runs the controls alone. rounds: which to attack.
    targets: how many (run, agent) pairs. agents: which agents to attack, None being all.
    targets_a_run: how many of one run; 1 makes targets independent, None takes all agents.
    threshold: a record counts as recovered where its error is below this part of the error of the
    best guess that knows its label. candidates: among how many records a true one is looked for; 0
    leaves identification out. pairs: simulated trainings that bound ε from below; 0 leaves that
    out. public: (records, labels) that anybody may have, as the model is fed them, beside the
    problem's own. controls: whether every reader and identifier that is used must also read exact
    gradients and noise. thorough: whether to read the estimates of all attacks; otherwise the one
    closest to the gradient and the paper's are. private_start: as for `simulate`. membership: the
    trainings by which shadow models tell who was used in a whole training, with the audit's
    stepsize unless they have their own; None leaves that out.
    """

    stepsize: Stepsize | None = None
    adversaries: Sequence[Adversary] = field(default_factory=lambda: (Eavesdropper(),))
    attacks: Sequence[Attack] = tuple(ATTACKS.values())
    readers: Sequence[Reader] = field(default_factory=every_reader)
    rounds: Sequence[int] = (50,)
    targets: int = 8
    agents: Collection[int] | None = None
    targets_a_run: int | None = None
    threshold: float = THRESHOLD
    candidates: int = CANDIDATES
    pairs: int = PAIRS
    public: tuple[Tensor, Tensor] | None = None
    controls: bool = True
    thorough: bool = True
    private_start: float = 0.0
    membership: ShadowSettings | None = None
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
        if not 0 < self.threshold < 1:
            raise AttackError(
                f"the threshold is {self.threshold:g}; accepted: a part between 0 and 1 of the "
                "error of the best guess that knows the label"
            )
        if self.candidates < 0 or self.candidates == 1:
            raise AttackError(
                f"{self.candidates} candidates were asked for; accepted: 2 or more, or 0 for none"
            )
        if self.pairs and self.pairs < FEWEST_PAIRS:
            raise AttackError(
                f"{self.pairs} simulated pairs to bound ε from below; accepted: {FEWEST_PAIRS} or "
                "more, or 0 for none"
            )
        if self.targets_a_run is not None and self.targets_a_run < 1:
            raise AttackError(f"{self.targets_a_run} targets a run; accepted: 1 or more")
        require_jitter(self.private_start)

    def attacked(self, graph: Graph, adversary: Adversary | None = None) -> list[int]:
        """The agents to attack: those asked for that are not the adversary's own."""
        possible = range(graph.agents) if adversary is None else adversary.targets(graph)
        return [agent for agent in possible if self.agents is None or agent in self.agents]

    def ordered_attacks(self) -> list[Attack]:
        """The attacks, the most promising first where the rest may be left out."""
        if self.thorough:
            return list(self.attacks)
        place = {name: at for at, name in enumerate(_PROMISING)}
        return sorted(self.attacks, key=lambda one: place.get(one.name, len(place)))

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
