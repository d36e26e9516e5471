"""A mechanism: the chain of parts that the agents play in every round."""

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from sottovoce.errors import AlgorithmError
from sottovoce.mechanisms.claim import NOTHING, Claim
from sottovoce.mechanisms.part import PLACES, Bound, Part, Place, Split
from sottovoce.stepsizes import Deterministic, Stepsize


@dataclass(frozen=True)
class Mechanism:
    """A chain of parts under a name, such as `PDSGD()`; `+` puts a part where it belongs.

    name: the text that `parse_algorithm` reads back. parts: in the order of `PLACES`, just one of
    them a `Split` and at most one a `Bound`. default_stepsize: what the chain's source uses with
    it. exchanges: how often the agents exchange messages in one round. claim: what its authors
    promise, which decides no number.
    """

    name: str
    parts: tuple[Part, ...]
    default_stepsize: Stepsize = field(default=Stepsize(law=Deterministic()), compare=False)
    exchanges: int = 1
    claim: Claim = field(default=NOTHING, compare=False)

    def __post_init__(self) -> None:
        wrong = [part for part in self.parts if getattr(part, "place", None) not in PLACES]
        if wrong:
            raise AlgorithmError(
                f"{self.name}: {wrong[0]!r} is not a part; accepted: a Part with one of the places "
                f"{', '.join(PLACES)}"
            )
        ordered = sorted(self.parts, key=lambda part: PLACES.index(part.place))
        object.__setattr__(self, "parts", tuple(ordered))
        if len(self.at("split")) != 1 or self.exchanges < 1:
            raise AlgorithmError(
                f"{self.name} has {len(self.at('split'))} parts that split the step and "
                f"{self.exchanges} exchanges a round; accepted: one such part, such as "
                "Shares('weights'), and at least one exchange"
            )
        bounds = self.at("samples")
        if len(bounds) > 1 or not all(hasattr(part, "factors") for part in bounds):
            raise AlgorithmError(
                f"{self.name} has {', '.join(map(repr, bounds))} to bound samples; accepted: at "
                "most one Bound, such as Clip(1.0)"
            )

    def at(self, place: Place) -> tuple[Part, ...]:
        """The parts that stand at one place of the chain."""
        return self._by_place[place]

    @cached_property
    def _by_place(self) -> dict[str, tuple[Part, ...]]:
        return {one: tuple(part for part in self.parts if part.place == one) for one in PLACES}

    @cached_property
    def split(self) -> Split:
        """The part that splits the step."""
        (part,) = self.at("split")
        if not hasattr(part, "coefficients"):
            raise AlgorithmError(f"{self.name}: {part!r} splits the step but is not a Split")
        return part  # type: ignore[return-value]

    @property
    def bound(self) -> Bound | None:
        """The part that bounds what a sample contributes, if the chain has one."""
        return next(iter(self.at("samples")), None)  # type: ignore[return-value]

    @property
    def plain(self) -> bool:
        """Whether a message is w_ij x_j - b_ij s_j with one number b_ij a link, and no more."""
        added = any(self.at(place) for place in ("shares", "messages"))
        return self.split.scalar and not added and self.exchanges == 1

    @property
    def by_coordinate(self) -> bool:
        """Whether every part works on single coordinates, so that blocks of them suffice."""
        return all(part.by_coordinate for part in self.parts)

    def __add__(self, part: Part) -> "Mechanism":
        return replace(self, name=f"{self.name}+{text_of(part)}", parts=(*self.parts, part))

    def __radd__(self, part: Part) -> "Mechanism":
        return replace(self, name=f"{text_of(part)}+{self.name}", parts=(part, *self.parts))

    def with_split(self, split: Split) -> "Mechanism":
        """The same chain with another rule for the shares."""
        others = (part for part in self.parts if part.place != "split")
        return replace(self, parts=(*others, split))

    def __str__(self) -> str:
        return self.name

    @property
    def spec(self) -> dict[str, Any]:
        """What decides the chain's numbers, as JSON."""
        return {
            "mechanism": self.name,
            "parts": [part.spec for part in self.parts],
            "exchanges": self.exchanges,
        }


def text_of(part: Part) -> str:
    """A part as the command line writes it, without trailing defaults: `gradient-noise:0.1`."""
    words = "".join(f"-{c.lower()}" if c.isupper() else c for c in type(part).__name__)
    given = list(part.options.values())
    while given and given[-1] == fields(part)[len(given) - 1].default:  # type: ignore[arg-type]
        given.pop()
    return ":".join([words.lstrip("-"), *map(str, given)])
