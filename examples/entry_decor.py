"""DECOR (Allouah et al., ICML 2024) written as a stranger would: parts of one's own, then a chain.

    sottovoce check --algorithm examples/entry_decor.py:decor:0.005:0.01
    sottovoce bound --algorithm examples/entry_decor.py:decor:0.05:0.1 --samples 1000

s_i = λ ((1/B) Σ_n clip(g_n) + σ z_i + σ_c Σ_{e at i} ±z_e). The package has the same chain as
`decor`; a test compares their numbers.
"""

from dataclasses import dataclass
from typing import ClassVar

from sottovoce import Clip, Flow, Mechanism, Part, Place, Scope, Shares


@dataclass(frozen=True)
class OwnNoise(Part):
    """Add to every step noise that its agent alone holds."""

    place: ClassVar[Place] = "step"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True
    keeps_average: ClassVar[bool] = False
    noise: float = 5e-3

    def __call__(self, flow: Flow) -> None:
        flow.add_exactly(
            lambda part: (
                self.noise
                * part.mean_stepsize.double()
                * part.exact_normal(Scope.AGENT, "step noise")
            )
        )


@dataclass(frozen=True)
class CancellingOnEdges(Part):
    """Add to every step the noise of its edges, with opposite signs at their two ends."""

    place: ClassVar[Place] = "step"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True
    noise: float = 1e-2

    def __call__(self, flow: Flow) -> None:
        flow.add_exactly(
            lambda part: (
                self.noise
                * part.mean_stepsize.double()
                * part.over_routes(
                    part.exact_normal(Scope.EDGE, "edge noise") * part.routes.sign.unsqueeze(-1)
                )
            )
        )


def decor(noise: float = 5e-3, edge: float = 1e-2, clip: float = 1.0) -> Mechanism:
    """Promises (ε, δ) for one record against an eavesdropper."""
    parts = (Clip(clip), OwnNoise(noise), CancellingOnEdges(edge), Shares("weights"))
    return Mechanism(f"entry-decor:{noise}:{edge}:{clip}", parts)
