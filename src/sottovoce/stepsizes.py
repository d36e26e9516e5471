"""How large a step: a public schedule times a private random law.

The stepsize of agent j in round k is λ = base(k) · factor with a factor uniform on an interval that
the law fixes. The agents may know base and law; the drawn number stays with the agent. Rounds count
from 1.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from sottovoce.errors import StepsizeError
from sottovoce.randomness import Streams


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
        scales = self.scale if isinstance(self.scale, tuple) else (self.scale,)
        if not scales or not all(math.isfinite(c) and c > 0 for c in scales):
            raise StepsizeError(f"the scale of a stepsize is {self.scale}; it must be positive")
        if not (math.isfinite(self.exponent) and self.exponent >= 0):
            raise StepsizeError(f"the exponent is {self.exponent}; it must be 0 or more")
        if not (math.isfinite(self.offset) and self.offset > -1):
            raise StepsizeError(f"the offset k0 is {self.offset}; it must be above -1")
        if self.block < 1:
            raise StepsizeError(f"a block has {self.block} rounds; it must have at least 1")

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
class Custom:
    """A schedule of your own: `function(k)` gives the base stepsize at count k = 1, 2, ..."""

    function: Callable[[int], float]
    block: int = 1
    name: str = "custom"

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


@dataclass(frozen=True)
class Stepsize:
    """The random stepsizes Λ_j^k of the paper: a schedule, a law, and who shares one draw.

    `per="coordinate"` draws every diagonal entry of Λ_j on its own (the paper's CNN experiment),
    `per="agent"` one number for the whole gradient (the paper's convex experiment).
    """

    schedule: Power | Custom = Power()
    law: Law = Experiment()
    per: Literal["coordinate", "agent"] = "coordinate"
    deviation: PrivateDeviation | None = None

    def __post_init__(self) -> None:
        if self.per not in ("coordinate", "agent"):
            raise StepsizeError(
                f"stepsizes are drawn per {self.per!r}; accepted: 'coordinate', 'agent'"
            )

    def __str__(self) -> str:
        """The text that `parse_stepsize` reads back, where the schedule is a plain power."""
        block = f":block={self.schedule.block}" if self.schedule.block > 1 else ""
        return f"{self.law.name}:{self.schedule}{block}:{self.per}"

    def interval(self, round: int, agent: int = 0) -> tuple[float, float]:
        """Smallest and largest stepsize that an agent may draw in a round."""
        base = self.schedule.base(round, agent)
        low, high = self.law.interval(self.schedule.count(round))
        return base * low, base * high

    def mean(self, round: int, agent: int = 0) -> float:
        """The public expectation λ̄ of the stepsize."""
        low, high = self.interval(round, agent)
        return (low + high) / 2

    def std(self, round: int, agent: int = 0) -> float:
        """The standard deviation σ of the stepsize."""
        low, high = self.interval(round, agent)
        return (high - low) / math.sqrt(12)

    def scale_(self, gradient: Tensor, streams: Streams, round: int) -> None:
        """Turn gradients into steps s = Λ g in place; Λ itself is never stored.

        gradient: (runs, agents, d), the agents being those of `streams`.
        """
        scales = getattr(self.schedule, "scale", 1.0)
        if isinstance(scales, tuple):
            last = max(streams.agents)
            if last >= len(scales):
                raise StepsizeError(
                    f"the schedule has scales for {len(scales)} agents, but there is an agent "
                    f"{last}; give one scale or one for each agent"
                )
            bases = [self.schedule.base(round, agent) for agent in streams.agents]
            low, high = self.law.interval(self.schedule.count(round))
            gradient.mul_(gradient.new_tensor(bases).unsqueeze(-1))
        else:
            low, high = self.interval(round)
        if self.deviation and round <= self.deviation.rounds:
            gradient.mul_(self.deviation.factor(streams, round, gradient.dtype))
        if low == high:
            gradient.mul_(low)
        elif self.per == "agent":
            draws = streams.uniform("stepsize", round, 1) * (high - low) + low
            gradient.mul_(draws.to(gradient.dtype))
        else:
            streams.scale_(gradient, low, high, "stepsize", round)

    def describe(self) -> dict[str, Any]:
        """The public part as JSON."""
        scales = getattr(self.schedule, "scale", None)
        return {
            "law": self.law.name,
            "schedule": str(self.schedule),
            **({"scales": list(scales)} if isinstance(scales, tuple) else {}),
            "block": self.schedule.block,
            "per": self.per,
            "private_deviation": self.deviation is not None,
        }


def _plain(number: float) -> str:
    """The short form of a number where it is exact, else all its digits."""
    short = f"{number:g}"
    return short if float(short) == number else repr(float(number))


_NUMBER = r"\d+(?:\.\d*)?(?:e[+-]?\d+)?"
_MEAN = re.compile(
    rf"(?P<c>{_NUMBER})(?:/(?:k|\(k(?P<k0>[+-]{_NUMBER})\))(?:\^(?P<p>{_NUMBER}))?)?", re.ASCII
)


def parse_stepsize(text: str) -> Stepsize:
    """Read a stepsize from the command line: parts joined by ':', in any order.

    A law (`deterministic`, `experiment`, `uniform`), a schedule (`1/k`, `0.3/(k+5)^0.75`, `0.1`),
    `block=187`, and `agent` or `coordinate`. A schedule without a law is deterministic.
    """
    law: Law | None = None
    mean: re.Match[str] | None = None
    block, per = 1, "coordinate"
    for part in text.replace(" ", "").split(":"):
        if part in LAWS:
            law = LAWS[part]
        elif part in ("agent", "coordinate"):
            per = part
        elif match := re.fullmatch(r"block=(\d+)", part):
            block = int(match[1])
        elif match := _MEAN.fullmatch(part):
            mean = match
        else:
            raise StepsizeError(
                f"{part!r} in the stepsize {text!r} is not understood; accepted, joined by ':': "
                f"a law ({', '.join(LAWS)}), a schedule (1/k, 0.3/(k+5)^0.75, 0.1), block=187, "
                "agent or coordinate"
            )
    schedule = Power(block=block)
    if mean:
        exponent = float(mean["p"]) if mean["p"] else float("/" in mean[0])
        schedule = Power(float(mean["c"]), exponent, float(mean["k0"] or 0), block)
    law = law or (Deterministic() if mean else Experiment())
    return Stepsize(schedule, law, per)  # type: ignore[arg-type]
