"""A mechanism of one's own, in a file of one's own: CONTRIBUTING.md explains it."""

from dataclasses import dataclass
from typing import ClassVar

from sottovoce import Flow, Mechanism, Part, Place, Scope, Shares


@dataclass(frozen=True)
class NoiseTakenBack(Part):
    """Add fresh noise to every share that leaves, and take its sum from the share that stays."""

    place: ClassVar[Place] = "shares"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True
    noise: float = 0.1

    def __call__(self, flow: Flow) -> None:
        own = flow.routes.own[:, None]
        sent = flow.normal(Scope.LINK, "noise taken back").masked_fill(own, 0.0)
        kept = flow.by_route(flow.over_routes(sent)) * own
        flow.shares = flow.shares + self.noise * flow.by_route(flow.mean_stepsize) * (sent - kept)


def drowned(noise: float = 0.1) -> Mechanism:
    """Split the step by the weights and drown every message; promises noise, not a proof."""
    return Mechanism(f"drowned:{noise}", (Shares("weights"), NoiseTakenBack(noise)))
