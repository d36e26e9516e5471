"""One record against noise: what an adversary faces who knows the rest of the batch.

The step λ (c g_1 + ... + c g_B) / B + noise, less the terms of the other records, is that of a
training with one record in a batch, steps λ / B and B times the noise on a gradient. A proof grants
its adversary that much; attacks get it here, too, so that both face the same noise.
"""

from dataclasses import dataclass, replace
from typing import Any

from sottovoce.errors import StepsizeError
from sottovoce.mechanisms import Flow, Mechanism, Part, Place
from sottovoce.stepsizes import Power, Stepsize

_IN_GRADIENTS: tuple[Place, ...] = ("gradient", "step", "shares")
"""Places whose noise is in the unit of the divided gradient."""


@dataclass(frozen=True)
class Times(Part):
    """Another part with what it adds multiplied by `factor`."""

    part: Part
    factor: int

    def __post_init__(self) -> None:
        for name in ("place", "linear", "by_coordinate", "keeps_average", "reach"):
            object.__setattr__(self, name, getattr(self.part, name))

    def __call__(self, flow: Flow) -> None:
        shares = self.part.place == "shares"
        for each in (flow.s, flow.shares) if shares else (flow.s,):
            each.div_(self.factor)
        self.part(flow)
        for each in (flow.s, flow.shares) if shares else (flow.s,):
            each.mul_(self.factor)

    @property
    def options(self) -> dict[str, Any]:
        return {"part": self.part.spec, "factor": self.factor}


def with_rest_known(mechanism: Mechanism, batch: int) -> Mechanism:
    """The chain that one record of a batch faces when the others' terms are known."""
    parts = tuple(
        Times(part, batch) if part.place in _IN_GRADIENTS else part for part in mechanism.parts
    )
    return replace(mechanism, parts=parts)


def for_one_record(stepsize: Stepsize, batch: int) -> Stepsize:
    """The stepsize λ / B of that chain."""
    schedule = stepsize.schedule
    if not isinstance(schedule, Power) or isinstance(schedule.scale, tuple):
        raise StepsizeError(f"{stepsize} has no scale to divide; accepted: c/k^p, the same for all")
    return replace(stepsize, schedule=replace(schedule, scale=schedule.scale / batch))
