"""Zip-DL (Biswas et al., PETS 2025) written as a stranger would: a part of one's own and a chain.

    sottovoce check --algorithm examples/entry_zip_dl.py:zip_dl:0.1
    sottovoce enter examples/entry_zip_dl.py:zip_dl:0.1

v_ij = w_ij (x_j - s_j + σ Z_ij) with Σ_i w_ij Z_ij = 0: each neighbour gets other noise, and the
average feels none. The package has the same chain as `zip-dl`; a test compares their numbers.
"""

from dataclasses import dataclass
from typing import ClassVar

from sottovoce import Claim, Flow, Mechanism, Part, Place, Scope, Shares


@dataclass(frozen=True)
class NoiseThatCancels(Part):
    """Add to every sent model its own noise, less what would be left of it in the sum."""

    place: ClassVar[Place] = "messages"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True
    noise: float = 0.1

    def __call__(self, flow: Flow) -> None:
        weight = flow.routes.weight.to(flow.v.dtype).unsqueeze(-1)
        drawn = weight * flow.normal(Scope.LINK, "cancelling noise")
        flow.v = flow.v + self.noise * (drawn - weight * flow.by_route(flow.over_routes(drawn)))


def zip_dl(noise: float = 0.1) -> Mechanism:
    """Zip-DL with noise of this deviation on a sent model."""
    says = "A curious neighbour's membership attack is a guess."
    claim = Claim(says, "Biswas et al., PETS 2025", against=("neighbour",), hides=("membership",))
    parts = (Shares("weights"), NoiseThatCancels(noise))
    return Mechanism(f"entry-zip-dl:{noise}", parts, claim=claim)
