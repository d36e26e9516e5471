"""What a visitor may choose, and the training that it stands for."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from sottovoce.errors import SottovoceError

MOST_AGENTS, MOST_ROUNDS = 16, 400
BEFORE, AFTER = 7, 6
"""Rounds before and after the attacked one that a listener hears."""
MECHANISMS = {
    "dsgd": "DSGD: nothing is hidden",
    "pdsgd": "PDSGD, as in the paper",
    "pdsgd:coordinate": "PDSGD, drawn at every coordinate",
    "zero-sum:0.15": "zero-sum noise on the shares",
}
DATA = {"digits": "handwritten digits", "census": "census records", "words": "lines of plays"}
EPSILONS = (1.0, 3.0, 8.0)
_ROUNDS = {"digits": 120, "census": 120, "words": 60}
_STEPSIZE = {"digits": "0.2/k^0.5", "census": "0.3/k^0.5", "words": "1/k^0.5"}


_GRAPH = re.compile(
    r"(ring|path|star|complete):\d{1,2}|grid:\d{1,2}x\d{1,2}|links:\d{1,2}-\d{1,2}(,\d{1,2}-\d{1,2}){0,199}"
)
"""Graphs that the page can draw: no path of a file, and none that is large to build."""


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
        known = isinstance(said, Mapping) and set(said) <= {one.name for one in fields(cls)}
        if not known or any(isinstance(value, list | dict) for value in said.values()):
            raise WishError("the page sent a training that is not understood; load it again")
        data = said.get("data", "digits")
        found = cls(**{"rounds": _ROUNDS.get(data, 120), **said})
        least = BEFORE + AFTER + 2
        graphs = isinstance(found.graph, str) and _GRAPH.fullmatch(found.graph)
        accepted = (
            (graphs, "graph", "ring, path, star or complete:5, grid:2x4, links:0-1,1-2"),
            (found.mechanism in MECHANISMS, "mechanism", ", ".join(MECHANISMS)),
            (found.epsilon in (None, *EPSILONS), "epsilon", "none, 1, 3, 8"),
            (found.data in DATA, "data", ", ".join(DATA)),
            (_between(found.rounds, least, MOST_ROUNDS), "rounds", f"{least} to {MOST_ROUNDS}"),
            (_between(found.seed, 0, 1 << 31), "seed", f"0 to {1 << 31}"),
        )
        for fine, name, offered in accepted:
            if not fine:
                given = str(getattr(found, name))[:60]
                raise WishError(f"the studio does not offer {name} {given!r}; accepted: {offered}")
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
