"""How the private factor of a stepsize is distributed."""

from dataclasses import dataclass, field
from typing import Protocol


class Law(Protocol):
    """The distribution of the private factor: uniform on `interval(k)`."""

    @property
    def name(self) -> str: ...

    def interval(self, k: int) -> tuple[float, float]:
        """Lowest and highest factor at count k."""


@dataclass(frozen=True)
class Deterministic:
    """No randomness: the stepsize is the public schedule."""

    name: str = field(default="deterministic", init=False)

    def interval(self, k: int) -> tuple[float, float]:
        return 1.0, 1.0


@dataclass(frozen=True)
class Experiment:
    """The law of the paper's experiments, 1 - ϱ/k with ϱ uniform on [0, 1].

    Its relative spread is 1/k: the protection fades as training goes on (`sottovoce bound`).
    """

    name: str = field(default="experiment", init=False)

    def interval(self, k: int) -> tuple[float, float]:
        return 1.0 - 1.0 / k, 1.0


@dataclass(frozen=True)
class Uniform:
    """The law of the paper's privacy theorem: uniform on [0, 2λ̄], of constant relative spread."""

    name: str = field(default="uniform", init=False)

    def interval(self, k: int) -> tuple[float, float]:
        return 0.0, 2.0


LAWS: dict[str, Law] = {law.name: law for law in (Deterministic(), Experiment(), Uniform())}
