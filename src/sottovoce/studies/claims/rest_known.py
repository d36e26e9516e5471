"""One record against noise: what an adversary faces who knows the rest of the batch.

The step λ (c g_1 + ... + c g_B) / B + noise, less the terms of the other records, is that of a
training with one record in a batch, steps λ / B and B times the noise on a gradient. A proof grants
its adversary that much; attacks get it here, too, so that both face the same noise. A chain that
does more than scale and add (`subtracts_others`), such as one that sends signs, is attacked with
batches of one record, from which more is read than from larger ones.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sottovoce.errors import StepsizeError
from sottovoce.graphs import Graph
from sottovoce.mechanisms import Clock, Flow, Mechanism, Part, Place
from sottovoce.mechanisms.reference import by_messages, exchange, take_step
from sottovoce.randomness import private_streams
from sottovoce.stepsizes import Power, Stepsize

_PLAYED = (2, 37)
"""Runs and coordinates with which a chain is played."""
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


def subtracts_others(mechanism: Mechanism, graph: Graph, stepsize: Stepsize) -> bool:
    """Whether what a record adds to a round's messages is the same beside whatever other records.

    The chain is played with the same private numbers on two gradients, their sum and 0.
    """
    runs, d = _PLAYED
    shape, generator = (2, runs, graph.agents, d), torch.Generator().manual_seed(0)
    one, other = torch.randn(shape, generator=generator, dtype=torch.float64)

    def sent(gradient: Tensor) -> Tensor:
        streams = private_streams(range(runs), graph.agents, insecure_seed=0)
        x = torch.zeros_like(gradient)
        flow = Flow(x, gradient.clone(), graph.routes(), streams, stepsize, Clock(1))
        seen: list[Tensor] = []
        take_step(mechanism, flow)
        exchange(mechanism, flow, by_messages(mechanism, lambda v: seen.append(v.clone())))
        return torch.cat([*seen, flow.x], 1)

    apart = sent(one) + sent(other)
    together = sent(one + other) + sent(torch.zeros_like(one))
    return torch.allclose(apart, together, rtol=1e-6, atol=1e-6)
