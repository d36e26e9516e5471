"""Chains that ask for more than the named ones do: edges' numbers, memory, several exchanges."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from sottovoce import EdgeNoise, Flow, Mechanism, Part, Place, Shares
from sottovoce.mechanisms import Acceleration


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


EDGES = Mechanism("edge-noise:0.5+shares:weights", (EdgeNoise(0.5), Shares("weights")))
GOSSIP = Mechanism("gossip", (Shares("weights"), Acceleration(0.3)), exchanges=3)
MOMENTUM = Mechanism("momentum", (Momentum(), Shares("uniform")))
