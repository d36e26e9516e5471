"""How large a step: a public schedule times a private random law.

The stepsize of agent j in round k is λ = base(k) · factor with a factor uniform on an interval that
the law fixes. The agents may know base and law; the drawn number stays with the agent. Rounds count
from 1.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor

from sottovoce.errors import StepsizeError
from sottovoce.randomness import Streams
from sottovoce.stepsizes.laws import LAWS, Deterministic, Experiment, Law
from sottovoce.stepsizes.schedules import Custom, Falling, Power, PrivateDeviation
from sottovoce.storage.identity import code_of


@dataclass(frozen=True)
class Stepsize:
    """The random stepsizes Λ_j^k of the paper: a schedule, a law, and who shares one draw.

    `per="coordinate"` draws every diagonal entry of Λ_j on its own (the paper's CNN experiment),
    `per="agent"` one number for the whole gradient (the paper's convex experiment).
    """

    schedule: Power | Falling | Custom = Power()  # noqa: RUF009
    law: Law = Experiment()  # noqa: RUF009
    per: Literal["coordinate", "agent"] = "coordinate"
    deviation: PrivateDeviation | None = None

    def __post_init__(self) -> None:
        if self.per not in ("coordinate", "agent"):
            raise StepsizeError(
                f"stepsizes are drawn per {self.per!r}; accepted: 'coordinate', 'agent'"
            )

    def __str__(self) -> str:
        """The text that `parse_stepsize` reads back, unless the schedule is of your own."""
        block = f":block={self.schedule.block}" if self.schedule.block > 1 else ""
        return f"{self.law.name}:{self.schedule}{block}:{self.per}"

    @property
    def differs(self) -> bool:
        """Whether agents have schedules of different scale."""
        return self._scales is not None

    @property
    def _scales(self) -> tuple[float, ...] | None:
        scales = getattr(self.schedule, "scale", None)
        return scales if isinstance(scales, tuple) else None

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
        if (scales := self._scales) is not None:
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

    def common_interval(self, round: int) -> tuple[float, float] | None:
        """Where every coordinate of every agent draws; None where agents differ or share a draw."""
        deviate = self.deviation is not None and round <= self.deviation.rounds
        low, high = self.interval(round)
        shared = self.per == "agent" and low != high
        return None if self.differs or deviate or shared else (low, high)

    @property
    def spec(self) -> dict[str, Any]:
        """All that decides the drawn stepsizes, as JSON; code stands for what a user defined."""
        ours = LAWS.get(self.law.name) == self.law
        return {
            "law": self.law.name if ours else {"name": self.law.name, "code": code_of(self.law)},
            "schedule": self.schedule.spec,
            "per": self.per,
            "deviation": None if self.deviation is None else asdict(self.deviation),
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], given: "Stepsize | None" = None) -> "Stepsize":
        """Rebuild a stepsize; one with a schedule or law of your own must be given, and match."""
        if given is not None and given.spec == spec:
            return given
        schedule, law, deviation = spec["schedule"], spec["law"], spec["deviation"]
        own = [schedule["custom"]] if "custom" in schedule else []
        own += [] if isinstance(law, str) else [law["name"]]
        if given is not None or own:
            used = " and ".join(map(repr, own)) or schedule
            raise StepsizeError(
                f"the stored stepsize uses {used}, but {given or 'nothing'} was given; give the "
                "Stepsize with which the numbers were made"
            )
        deviation = deviation and PrivateDeviation(**deviation)
        return cls(_schedule_from(schedule), LAWS[law], spec["per"], deviation)

    def describe(self) -> dict[str, Any]:
        """The public part as JSON."""
        scales = self._scales
        return {
            "law": self.law.name,
            "schedule": str(self.schedule),
            **({"scales": list(scales)} if scales else {}),
            "block": self.schedule.block,
            "per": self.per,
            "private_deviation": self.deviation is not None,
        }


def _schedule_from(spec: Mapping[str, Any]) -> Power | Falling:
    scale = spec["scale"]
    if "falling" in spec:
        return Falling(scale, spec["falling"])
    return Power(**{**spec, "scale": tuple(scale) if isinstance(scale, list) else scale})


_NUMBER = r"\d+(?:\.\d*)?(?:e[+-]?\d+)?"
_MEAN = re.compile(
    rf"(?P<c>{_NUMBER})(?:/(?:k|\(k(?P<k0>[+-]{_NUMBER})\))(?:\^(?P<p>{_NUMBER}))?)?", re.ASCII
)


def parse_stepsize(text: str) -> Stepsize:
    """Read a stepsize from the command line: parts joined by ':', in any order.

    A law (`deterministic`, `experiment`, `uniform`), a schedule (`1/k`, `0.3/(k+5)^0.75`, `0.1`),
    `block=187`, `falling=940`, and `agent` or `coordinate`. A schedule without a law is
    deterministic.
    """
    law: Law | None = None
    mean: re.Match[str] | None = None
    block, per, falling = 1, "coordinate", 0
    for part in text.replace(" ", "").split(":"):
        if part in LAWS:
            law = LAWS[part]
        elif part in ("agent", "coordinate"):
            per = part
        elif match := re.fullmatch(r"block=(\d+)", part):
            block = int(match[1])
        elif match := re.fullmatch(r"falling=(\d+)", part):
            falling = int(match[1])
        elif match := _MEAN.fullmatch(part):
            mean = match
        else:
            raise StepsizeError(
                f"{part!r} in the stepsize {text!r} is not understood; accepted, joined by ':': "
                f"a law ({', '.join(LAWS)}), a schedule (1/k, 0.3/(k+5)^0.75, 0.1), block=187, "
                "falling=940 (rounds, with a constant), agent or coordinate"
            )
    schedule: Power | Falling = Power(block=block)
    if mean and not falling:
        exponent = float(mean["p"]) if mean["p"] else float("/" in mean[0])
        schedule = Power(float(mean["c"]), exponent, float(mean["k0"] or 0), block)
    if falling:
        if not mean or "/" in mean[0] or block > 1:
            raise StepsizeError(
                f"the stepsize {text!r} falls over {falling} rounds from no constant; accepted: a "
                "constant and no block, as in 2:falling=940"
            )
        schedule = Falling(float(mean["c"]), falling)
    law = law or (Deterministic() if mean else Experiment())
    return Stepsize(schedule, law, per)  # type: ignore[arg-type]


def as_stepsize(given: Stepsize | str | float) -> Stepsize:
    """The stepsize itself, or the one that a text or a constant number names."""
    if isinstance(given, Stepsize):
        return given
    if isinstance(given, str | float | int):
        return parse_stepsize(str(given))
    raise StepsizeError(
        f"a stepsize is given as {type(given).__name__}; accepted: a Stepsize, or its text such as "
        "'experiment:0.1/k'"
    )
