"""Parts that act on what is sent and on what is made of it: published rules for the exchange."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sottovoce.errors import AlgorithmError
from sottovoce.mechanisms.flow import Flow, Scope
from sottovoce.mechanisms.part import Part, Place
from sottovoce.mechanisms.parts import require_noise


@dataclass(frozen=True)
class CancellingNoise(Part):
    """Add to every sent model noise that cancels where the mixing matrix sums it (Zip-DL).

    v_ij += σ w_ij (y_ij - Σ_{l in N_j} w_lj y_lj) with y standard normal: Σ_i v_ij stays. `noise`
    is σ in the unit of a model, the same in every round.
    """

    place: ClassVar[Place] = "messages"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True
    noise: float = 0.1

    def __post_init__(self) -> None:
        require_noise(self.noise)

    def __call__(self, flow: Flow) -> None:
        if not self.noise:
            return
        weight = flow.routes.weight.to(flow.v.dtype).unsqueeze(-1)
        drawn = flow.normal(Scope.LINK, "cancelling noise").mul_(weight)
        drawn.sub_(flow.by_route(flow.over_routes(drawn)).mul_(weight))
        flow.v.add_(drawn, alpha=self.noise)


@dataclass(frozen=True)
class SentNoise(Part):
    """Add Gaussian noise to the state that is sent, the same on all links: x_j + σ k^growth ζ_j.

    The agent's own part of the sum has no noise, so that the average moves.
    """

    place: ClassVar[Place] = "messages"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True
    keeps_average: ClassVar[bool] = False
    noise: float = 0.1
    growth: float = 0.0

    def __post_init__(self) -> None:
        require_noise(self.noise)

    def __call__(self, flow: Flow) -> None:
        if not self.noise:
            return
        size = self.noise * flow.at.round**self.growth
        weight = (flow.routes.weight * ~flow.routes.own).to(flow.v.dtype).unsqueeze(-1)
        flow.v.add_(flow.by_route(self._drawn(flow)).mul_(weight), alpha=size)

    def _drawn(self, flow: Flow) -> Tensor:
        return flow.normal(Scope.AGENT, "sent noise")


@dataclass(frozen=True)
class SentLaplace(SentNoise):
    """As `SentNoise`, from the Laplace law of scale σ k^growth; no Gaussian credit is given."""

    linear: ClassVar[bool] = False

    def _drawn(self, flow: Flow) -> Tensor:
        centred = flow.uniform(Scope.AGENT, "sent noise") - 0.5
        tiny = torch.finfo(centred.dtype).tiny
        return -centred.sign() * (1 - 2 * centred.abs()).clamp_min(tiny).log()


@dataclass(frozen=True)
class Coupling(Part):
    """Weaken what neighbours do to each other with time: χ_k = k^-exponent on every sent message.

    What a message loses stays with its sender: v_ij <- χ_k v_ij, v_jj <- v_jj + (1 - χ_k) Σ v_ij.
    Where an agent keeps its step, x_i <- x_i + χ_k Σ_j w_ij (x_j - x_i) - s_i.
    """

    place: ClassVar[Place] = "messages"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True
    exponent: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.exponent < float("inf"):
            raise AlgorithmError(
                f"the exponent of the coupling is {self.exponent}; it must be finite and not "
                "negative"
            )

    def __call__(self, flow: Flow) -> None:
        factor, own = flow.at.round**-self.exponent, flow.routes.own.nonzero().flatten()
        kept = flow.v.index_select(1, own)
        lost = flow.over_routes(flow.v).index_select(1, flow.routes.sender[own]).sub_(kept)
        flow.v.mul_(factor).index_copy_(1, own, kept.add_(lost, alpha=1 - factor))


@dataclass(frozen=True)
class Acceleration(Part):
    """Gossip with memory: from the second exchange of a round on, x <- (1 + γ) W x - γ x_before.

    `gamma` is γ. With γ = (1 - √(1 - λ²)) / (1 + √(1 - λ²)) and λ the second largest absolute
    eigenvalue of W, differences shrink by about √γ in an exchange in place of λ.
    """

    place: ClassVar[Place] = "state"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True
    gamma: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.gamma < 1:
            raise AlgorithmError(f"the acceleration is {self.gamma}; accepted: 0 up to below 1")

    def __call__(self, flow: Flow) -> None:
        if flow.at.inner:
            flow.x.mul_(1 + self.gamma).sub_(flow.memory["before"], alpha=self.gamma)
        # The first exchange spends the step, so that the state before it has another average.
        flow.memory["before"] = (flow.before if flow.at.inner else flow.x).clone()
