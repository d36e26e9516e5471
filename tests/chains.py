"""Chains that ask for more than the named ones do: edges' numbers, memory, several exchanges."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from sottovoce import Flow, Mechanism, Part, Place, Scope, Shares


@dataclass(frozen=True)
class EdgeNoise(Part):
    """Noise that both ends of an edge hold and that cancels between them (DECOR)."""

    place: ClassVar[Place] = "step"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True
    noise: float = 0.5

    def __call__(self, flow: Flow) -> None:
        drawn = flow.normal(Scope.EDGE, "edge noise") * flow.routes.sign[:, None]
        flow.s = flow.s + self.noise * flow.over_routes(drawn)


@dataclass(frozen=True)
class Accelerated(Part):
    """Gossip with memory (Muffliato): from the second exchange on, x <- (1 + γ) x - γ before."""

    place: ClassVar[Place] = "state"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True
    gamma: float = 0.3

    def __call__(self, flow: Flow) -> None:
        if flow.at.inner:
            flow.x = (1 + self.gamma) * flow.x - self.gamma * flow.memory["before"]
        # The first exchange spends the step, so that the state before it has another average.
        flow.memory["before"] = (flow.before if flow.at.inner else flow.x).clone()


@dataclass(frozen=True)
class Momentum(Part):
    """A share of the last round's step is added to this round's; it does not keep the average."""

    place: ClassVar[Place] = "step"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True
    keeps_average: ClassVar[bool] = False

    def __call__(self, flow: Flow) -> None:
        flow.s = flow.s + 0.5 * flow.memory.get("step", torch.zeros_like(flow.s))
        flow.memory["step"] = flow.s.clone()


DECOR = Mechanism("decor", (EdgeNoise(), Shares("weights")))
GOSSIP = Mechanism("muffliato", (Shares("weights"), Accelerated()), exchanges=3)
MOMENTUM = Mechanism("momentum", (Momentum(), Shares("uniform")))
