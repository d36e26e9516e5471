"""How large the table of claims is, and which part of it is computed."""

from dataclasses import dataclass, replace
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.mechanisms.claim import Whom
from sottovoce.privacy.adversaries import Adversary, CuriousAgents, Eavesdropper, RestartNeighbours
from sottovoce.studies.settings import OnGraph, option

VICTIM = 0
"""The agent that every adversary attacks."""
WHO: dict[Whom, str] = {
    "eavesdropper": "eavesdropper",
    "neighbour": "one curious neighbour",
    "colluding": "two colluding",
    "sums": "receiver of sums",
    "restart": "neighbour after a restart",
}
"""The adversaries, and their names in tables."""
DATA = ("census", "text", "images")


@dataclass(frozen=True)
class Sizes:
    """What the numbers of the table depend on.

    models: of census, text and images. images: their set. rounds, runs, batch: of the trainings.
    round: that is attacked. targets: independent trainings that are attacked; one record of each is
    looked for among `candidates`. pairs: simulated trainings that bound ε from below.
    shadows, records: shadow models and the records of an agent that they are about. iterations: of
    a search for records. refined: candidates times parameters up to which `refined` is run.
    """

    models: tuple[str, str, str] = ("linear", "embedding", "softmax")
    images: str = "subset"
    rounds: int = 200
    runs: int = 3
    batch: int = 32
    round: int = 30
    targets: int = 12
    candidates: int = 500
    pairs: int = 500
    shadows: int = 16
    records: int = 120
    iterations: int = 60
    refined: int = 1_000_000


SMALL = Sizes()
FULL = Sizes(
    images="mnist",
    rounds=500,
    batch=64,
    round=50,
    targets=24,
    candidates=2000,
    pairs=1000,
    shadows=32,
    records=200,
    iterations=100,
)


@dataclass(frozen=True, kw_only=True)
class ClaimsSettings(OnGraph):
    """Which part of the table of claims is computed, and how large."""

    mechanism: tuple[str, ...] = option(
        (), "A line of the table, or any algorithm; all lines unless given; repeatable."
    )
    workload: tuple[str, ...] = option((), "census, text or images; all unless given; repeatable.")
    adversary: tuple[str, ...] = option((), f"{', '.join(WHO)}; all unless given; repeatable.")
    full: bool = option(False, "Hours: all of MNIST, and more of everything.", option="--full")
    epsilon: float = option(3.0, "The ε for which noise is planned where a proof is possible.")
    delta: float = option(1e-5, "Its δ.")
    rounds: int | None = option(None, "Rounds of a training; as --full says unless given.", min=2)
    targets: int | None = option(None, "Trainings attacked; as --full says unless given.", min=2)
    pairs: int | None = option(
        None, "Trainings that bound ε from below; as --full says unless given.", min=20
    )
    data_dir: str | None = option(None, "Folder of IDX files (or set SOTTOVOCE_DATA).")
    device: str = option("cpu", "cpu or cuda.")
    join: tuple[str, ...] = option(
        (), "Compute nothing: put together saved tables, as of other machines; repeatable."
    )
    part: str = option("1/1", "2/4 does the second quarter; run all four with one --out.")
    jobs: int | None = option(None, "Processes side by side; one a core unless given.", min=1)

    def __post_init__(self) -> None:
        for name, accepted in (("workload", DATA), ("adversary", tuple(WHO))):
            for one in getattr(self, name):
                if one not in accepted:
                    raise SottovoceError(
                        f"the {name} {one!r} is not known; accepted: {', '.join(accepted)}"
                    )
        first, _, last = self.part.partition("/")
        if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
            raise SottovoceError(f"part {self.part!r} does not exist; accepted: 1/1, 2/4, ...")

    @property
    def sizes(self) -> Sizes:
        """The small or the full sizes, with what was given in their place."""
        given: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("rounds", "targets", "pairs")
            if getattr(self, name) is not None
        }
        found = replace(FULL if self.full else SMALL, **given)
        return replace(found, round=min(found.round, found.rounds))

    @property
    def workloads(self) -> tuple[str, ...]:
        return self.workload or DATA

    def adversaries(self, links: str = "plain") -> dict[Whom, Adversary]:
        """Who attacks agent 0, over links that are protected like this."""
        near = self.network().neighbours(VICTIM)
        if len(near) < 2:
            raise SottovoceError(
                f"agent {VICTIM} of {self.graph} has {len(near)} neighbour; accepted: a graph in "
                "which it has two that can collude, such as ring:5"
            )
        every: dict[Whom, Adversary] = {
            "eavesdropper": Eavesdropper(links=links),
            "neighbour": CuriousAgents(near[:1], links=links),
            "colluding": CuriousAgents(near[:2], links=links),
            "sums": CuriousAgents(near[:1], links="masked"),
            "restart": RestartNeighbours(near[:1], links=links),
        }
        return {name: one for name, one in every.items() if name in (self.adversary or WHO)}
