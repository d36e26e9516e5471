"""What a visitor may choose, and the training that it stands for."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from sottovoce.errors import SottovoceError

MOST_AGENTS, MOST_ROUNDS = 16, 400
BEFORE, AFTER = 7, 6
"""Rounds before and after the attacked one that a listener hears."""
MECHANISMS = {
    "dsgd": "DSGD: nothing is hidden",
    "pdsgd": "PDSGD: the paper's algorithm",
    "pdsgd:coordinate": "PDSGD, drawn at every coordinate",
    "zero-sum:0.15": "zero-sum noise on the shares",
}
DATA = {"digits": "handwritten digits", "census": "census records", "words": "lines of plays"}
EPSILONS = (1.0, 3.0, 8.0)
_ROUNDS = {"digits": 120, "census": 120, "words": 60}
_STEPSIZE = {"digits": "0.2/k^0.5", "census": "0.3/k^0.5", "words": "1/k^0.5"}


_GRAPH = re.compile(
    r"(ring|path|star|complete|grid|torus|hypercube|exponential|random-regular|erdos-renyi):"
    r"[0-9.x:]{1,12}|links:[0-9,-]{3,400}"
)
"""Names of graphs, and no path of a file."""


class WishError(SottovoceError, ValueError):
    """A visitor asked for something that the studio does not offer."""


@dataclass(frozen=True)
class Wish:
    """A training as the page asks for it.

    graph: its text. mechanism: a key of `MECHANISMS`. epsilon: None, or the ε that is to be proved,
    which replaces the mechanism by the paper's algorithm with clip and noise. data: a key of
    `DATA`. rounds: how many; seed: of the private numbers, so that an address shows the same again.
    """

    graph: str = "ring:5"
    mechanism: str = "pdsgd"
    epsilon: float | None = None
    data: str = "digits"
    rounds: int = 120
    seed: int = 1

    @classmethod
    def of(cls, said: Any) -> "Wish":
        """Read what a page sent; everything is checked."""
        if not isinstance(said, Mapping) or set(said) - {one.name for one in fields(cls)}:
            raise WishError("the page sent a training that is not understood; load it again")
        data = said.get("data", "digits")
        found = cls(**{"rounds": _ROUNDS.get(data, 120), **said})
        kinds = (
            (isinstance(found.graph, str) and _GRAPH.fullmatch(found.graph), "graph", found.graph),
            (found.mechanism in MECHANISMS, "mechanism", found.mechanism),
            (found.epsilon in (None, *EPSILONS), "ε", found.epsilon),
            (found.data in DATA, "data", found.data),
            (_between(found.rounds, BEFORE + AFTER + 2, MOST_ROUNDS), "rounds", found.rounds),
            (_between(found.seed, 0, 1 << 31), "seed", found.seed),
        )
        if wrong := [f"{name} {str(value)[:60]!r}" for fine, name, value in kinds if not fine]:
            raise WishError(f"the studio does not offer {', '.join(wrong)}")
        return found

    @property
    def attacked(self) -> int:
        """The round that a listener wants to read."""
        return self.rounds - AFTER

    @property
    def batch(self) -> int:
        """Records in a gradient: one, or where a proof is asked for an expected number."""
        return 1 if self.epsilon is None else 64

    @property
    def stepsize(self) -> str:
        """The text of the stepsize, with the law that the mechanism uses."""
        if self.epsilon is not None:
            return f"{'4' if self.data == 'words' else '2'}:falling={self.rounds}"
        law = "experiment:" if self.mechanism.startswith("pdsgd") else ""
        return law + _STEPSIZE[self.data]

    @cached_property
    def command(self) -> str:
        """What asks the same of the command line."""
        if self.epsilon is not None:
            return (
                f"sottovoce plan --epsilon {self.epsilon:g} --graph {self.graph} --batch-size "
                f"{self.batch} --rounds {self.rounds} --algorithm dp-pdsgd --try"
            )
        data = (
            ""
            if self.data == "digits"
            else f" --data {'census' if self.data == 'census' else 'text'}"
        )
        model = " --model softmax" if self.data == "digits" else ""
        return (
            f"sottovoce audit --algorithm {self.mechanism} --graph {self.graph}{data}{model} "
            f"--stepsize {self.stepsize} --rounds {self.attacked} --insecure-seed {self.seed}"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def choices() -> dict[str, Any]:
    """What the page offers."""
    return {
        "mechanisms": MECHANISMS,
        "data": DATA,
        "epsilons": EPSILONS,
        "rounds": _ROUNDS,
        "graphs": ["ring:5", "complete:5", "path:5", "star:6", "grid:2x4", "ring:8"],
        "most_agents": MOST_AGENTS,
        "default": Wish().to_json(),
    }


def _between(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high
