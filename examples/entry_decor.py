"""DECOR (Allouah et al., ICML 2024) written as a stranger would: parts of one's own, then a chain.

    sottovoce enter examples/entry_decor.py:decor:0.1:0.2

s_i = λ ((1/B) Σ_n clip(g_n) + σ z_i + σ_c Σ_{e at i} ±z_e). The package has the same chain as
`decor`; a test compares their numbers.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sottovoce import Claim, Clip, Flow, Mechanism, Part, Place, Scope, Shares


@dataclass(frozen=True)
class OwnNoise(Part):
    """Add to every step noise that its agent alone holds."""

    place: ClassVar[Place] = "step"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True
    keeps_average: ClassVar[bool] = False
    noise: float = 5e-3

    def __call__(self, flow: Flow) -> None:
        def drawn(part: Flow) -> Tensor:
            noise = part.exact_normal(Scope.AGENT, "step noise")
            return self.noise * part.mean_stepsize.double() * noise

        flow.add_exactly(drawn)


@dataclass(frozen=True)
class CancellingOnEdges(Part):
    """Add to every step the noise of its edges, with opposite signs at their two ends."""

    place: ClassVar[Place] = "step"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True
    noise: float = 1e-2

    def __call__(self, flow: Flow) -> None:
        def drawn(part: Flow) -> Tensor:
            signed = part.exact_normal(Scope.EDGE, "edge noise") * part.routes.sign.unsqueeze(-1)
            return self.noise * part.mean_stepsize.double() * part.over_routes(signed)

        flow.add_exactly(drawn)


def decor(noise: float = 5e-3, edge: float = 1e-2, clip: float = 1.0) -> Mechanism:
    """Clip to C, then independent noise and noise that cancels on edges."""
    against = ("eavesdropper", "neighbour")
    claim = Claim("(ε, δ) for one record.", "Allouah et al., ICML 2024", against)
    parts = (Clip(clip), OwnNoise(noise), CancellingOnEdges(edge), Shares("weights"))
    return Mechanism(f"entry-decor:{noise}:{edge}:{clip}", parts, claim=claim)
