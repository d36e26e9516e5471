"""The public part of a stepsize: how large it is in which round, and who may deviate."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sottovoce.errors import StepsizeError
from sottovoce.randomness import Streams
from sottovoce.storage.identity import code_of


@dataclass(frozen=True)
class Power:
    """The schedule c / (k + k0)^p, with k counting blocks of `block` rounds.

    `scale` is c, one number or one for each agent; `exponent` is p; `offset` is k0. With `block`
    equal to the rounds of an epoch, k counts epochs; the theorems' conditions are unaffected.
    """

    scale: float | tuple[float, ...] = 1.0
    exponent: float = 1.0
    offset: float = 0.0
    block: int = 1

    def __post_init__(self) -> None:
        if not self.scales or not all(math.isfinite(c) and c > 0 for c in self.scales):
            raise StepsizeError(f"the scale of a stepsize is {self.scale}; it must be positive")
        if not (math.isfinite(self.exponent) and self.exponent >= 0):
            raise StepsizeError(f"the exponent is {self.exponent}; it must be 0 or more")
        if not (math.isfinite(self.offset) and self.offset > -1):
            raise StepsizeError(f"the offset k0 is {self.offset}; it must be above -1")
        if self.block < 1:
            raise StepsizeError(f"a block has {self.block} rounds; it must have at least 1")

    @property
    def scales(self) -> tuple[float, ...]:
        """The scale of each agent, or one for all."""
        return self.scale if isinstance(self.scale, tuple) else (self.scale,)

    @property
    def spec(self) -> dict[str, Any]:
        """All numbers, as JSON."""
        scales = [float(scale) for scale in self.scales]
        return {
            "scale": scales if isinstance(self.scale, tuple) else scales[0],
            "exponent": float(self.exponent),
            "offset": float(self.offset),
            "block": self.block,
        }

    def __str__(self) -> str:
        scale = "c" if isinstance(self.scale, tuple) else _plain(self.scale)
        sign = "+" if self.offset > 0 else "-"
        count = f"(k{sign}{_plain(abs(self.offset))})" if self.offset else "k"
        text = scale if not self.exponent else f"{scale}/{count}"
        if self.exponent not in (0, 1):
            text += f"^{_plain(self.exponent)}"
        return text

    def count(self, round: int) -> int:
        """The k of a round."""
        return (round - 1) // self.block + 1

    def base(self, round: int, agent: int = 0) -> float:
        scale = self.scale[agent] if isinstance(self.scale, tuple) else self.scale
        return float(scale / (self.count(round) + self.offset) ** self.exponent)


@dataclass(frozen=True)
class Falling:
    """Constant for the first half of `rounds`, then falling linearly to a tenth of `scale`.

    For a training of a fixed length, as guarantees need: the end averages the noise out. It meets
    no theorem's conditions, which speak of trainings without end; after `rounds` it stays there.
    """

    scale: float
    rounds: int
    block: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0) or self.rounds < 1:
            raise StepsizeError(
                f"a schedule that falls from {self.scale} over {self.rounds} rounds is not usable; "
                "accepted: a positive number and at least 1 round, as in 2:falling=940"
            )

    @property
    def spec(self) -> dict[str, Any]:
        """All numbers, as JSON."""
        return {"scale": float(self.scale), "falling": self.rounds}

    def __str__(self) -> str:
        return f"{_plain(self.scale)}:falling={self.rounds}"

    def count(self, round: int) -> int:
        """The k of a round."""
        return round

    def base(self, round: int, agent: int = 0) -> float:
        gone = min(1.0, max(0.0, 2.0 * round / self.rounds - 1.0))
        return self.scale * (1.0 - 0.9 * gone)


@dataclass(frozen=True)
class Custom:
    """A schedule of your own: `function(k)` gives the base stepsize at count k = 1, 2, ..."""

    function: Callable[[int], float]
    block: int = 1
    name: str = "custom"

    @property
    def spec(self) -> dict[str, Any]:
        """The function's code, for identification: it cannot be rebuilt from that."""
        return {"custom": self.name, "code": code_of(self.function), "block": self.block}

    def __str__(self) -> str:
        return self.name

    def count(self, round: int) -> int:
        return (round - 1) // self.block + 1

    def base(self, round: int, agent: int = 0) -> float:
        value = float(self.function(self.count(round)))
        if not (math.isfinite(value) and value >= 0):
            raise StepsizeError(
                f"the schedule {self.name!r} gave {value} at k = {self.count(round)}; "
                "a stepsize must be finite and not negative"
            )
        return value


@dataclass(frozen=True)
class PrivateDeviation:
    """Rounds, known to the agent alone, in which it deviates from the public mean.

    In each of the first `rounds` rounds an agent multiplies its stepsize, with `probability`, by a
    private number uniform on [1 - spread, 1 + spread]. Deviating finitely often keeps the
    heterogeneity condition (the paper's remark on hiding the expected stepsize).
    """

    rounds: int
    probability: float = 0.1
    spread: float = 0.5

    def __post_init__(self) -> None:
        if self.rounds < 1 or not 0 < self.probability <= 1 or not 0 < self.spread <= 1:
            raise StepsizeError(
                f"a deviation with rounds={self.rounds}, probability={self.probability}, "
                f"spread={self.spread} is not usable; accepted: rounds >= 1, "
                "0 < probability <= 1, 0 < spread <= 1"
            )

    def factor(self, streams: Streams, round: int, dtype: torch.dtype) -> Tensor:
        """What each agent multiplies its stepsize by: (runs, agents, 1)."""
        draws = streams.uniform("deviation", round, 2)
        deviates = draws[..., :1] < self.probability
        factor = 1 + self.spread * (2 * draws[..., 1:] - 1)
        return torch.where(deviates, factor, 1.0).to(dtype)


def _plain(number: float) -> str:
    """The short form of a number where it is exact, else all its digits."""
    short = f"{number:g}"
    return short if float(short) == number else repr(float(number))
