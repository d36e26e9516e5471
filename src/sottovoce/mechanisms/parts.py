"""The parts of the named chains: what bounds samples, how the step is split, where noise goes."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sottovoce.errors import AlgorithmError
from sottovoce.graphs import Routes
from sottovoce.mechanisms.flow import Flow, Scope
from sottovoce.mechanisms.part import Bound, Part, Place, Split
from sottovoce.mechanisms.terms import add_exact_noise, subtract_zero_sum

RULES = ("uniform", "dirichlet", "equal", "weights", "coordinate", "keep")
"""How `Shares` may split a step."""
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Shares(Split):
    """Split a step by a rule: b_ij >= 0 with Σ_{i in N_j} b_ij = 1 (the paper's B).

    `uniform`: private uniform numbers divided by their sum. `dirichlet`: flat on the simplex.
    `coordinate`: as `uniform`, but drawn anew at every coordinate. Public are `equal` (1/|N_j|),
    `weights` (w_ij) and `keep` (the agent keeps its whole step).
    """

    rule: str = "uniform"

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise AlgorithmError(
                f"the share rule {self.rule!r} is not known; accepted: {', '.join(RULES)}"
            )

    @property
    def scalar(self) -> bool:
        return self.rule != "coordinate"

    @property
    def timeless(self) -> bool:
        return self.scalar

    def coefficients(self, flow: Flow) -> Tensor:
        raw = self._raw(flow)
        return raw / flow.by_route(flow.over_routes(raw))

    def mean(self, routes: Routes) -> Tensor:
        raw = self._public(routes)
        return raw / raw.new_zeros(routes.agents).index_add_(0, routes.sender, raw)[routes.sender]

    def __call__(self, flow: Flow) -> None:
        if self.scalar:
            super().__call__(flow)
            return
        raw = self._raw(flow)
        flow.shares = raw.mul_(flow.by_route(flow.s / flow.over_routes(raw)))

    def _raw(self, flow: Flow) -> Tensor:
        """Numbers in proportion to the coefficients: (runs, routes, 1 or d)."""
        if self.rule in ("uniform", "dirichlet", "coordinate"):
            drawn = flow.uniform(Scope.LINK, "mixing", single=self.scalar).neg_().add_(1.0)
            return -torch.log(drawn) + _TINY if self.rule == "dirichlet" else drawn
        return self._public(flow.routes).expand(len(flow.s), -1).unsqueeze(-1)

    def _public(self, routes: Routes) -> Tensor:
        """The same where nothing is drawn; the means of a random rule are alike on all links."""
        if self.rule == "keep":
            return routes.own.double()
        return routes.weight if self.rule == "weights" else torch.ones_like(routes.weight)


@dataclass(frozen=True)
class Clip(Bound):
    """Shorten every sample's gradient to `norm` where it is longer (Abadi et al. 2016).

    c_n = min(1, C / ||g_n||), the norm being that over all coordinates; it holds to the rounding of
    the gradients' type.
    """

    norm: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.norm < float("inf"):
            raise AlgorithmError(f"the clip is {self.norm}; it must be finite and above 0")

    def factors(self, norms: Tensor) -> Tensor:
        return (self.norm / norms).clamp_(max=1.0)


@dataclass(frozen=True)
class GradientNoise(Part):
    """Add independent Gaussian noise to the gradient; `noise` is the deviation of a coordinate.

    In a chain with a clip it is drawn and added as in `StepNoise`, fit for a proof.
    """

    place: ClassVar[Place] = "gradient"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True
    keeps_average: ClassVar[bool] = False
    noise: float = 1e-2

    def __post_init__(self) -> None:
        require_noise(self.noise)

    def __call__(self, flow: Flow) -> None:
        if not self.noise:
            return
        if flow.in_kernel and flow.proving:
            sizes = flow.s.new_full((flow.s.shape[1], 1), self.noise, dtype=torch.float64)
            add_exact_noise(flow, Scope.AGENT, "noise", sizes, {flow.at.round: 1.0})
        else:
            flow.add_normal_(flow.s, self.noise, "noise")


@dataclass(frozen=True)
class ZeroSumNoise(Part):
    """Add to every share private noise that sums to zero over the sender's neighbourhood.

    λ̄_j σ n_ij with n_ij = z_ij - mean_{l in N_j} z_lj and z standard normal (RSS-LB of Gade and
    Vaidya 2018). `noise` is σ, one number or one for each agent: it has the unit of a gradient, and
    the public mean stepsize λ̄ scales it, so that it shrinks with the steps. Two such parts in one
    chain draw apart where their purposes differ.
    """

    place: ClassVar[Place] = "shares"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True
    additive: ClassVar[bool] = True
    noise: float | tuple[float, ...] = 0.1
    purpose: str = "zero-sum noise"

    def __post_init__(self) -> None:
        for noise in self.noise if isinstance(self.noise, tuple) else (self.noise,):
            require_noise(noise)

    def __call__(self, flow: Flow) -> None:
        if not self.noise:
            return
        noise = flow.normal(Scope.LINK, self.purpose)
        noise.sub_(flow.by_route(flow.mean_over_routes(noise)))
        flow.shares.add_(noise.mul_(flow.by_route(self._sizes(flow))))

    def subtract_received(self, flow: Flow, total: Tensor) -> None:
        if self.noise:
            subtract_zero_sum(flow, self.purpose, self._sizes(flow), total)

    def _sizes(self, flow: Flow) -> Tensor:
        """The deviation of every sender's noise: (senders, 1)."""
        sizes: float | Tensor = self.noise if isinstance(self.noise, float | int) else 0.0
        if isinstance(self.noise, tuple):
            each = [self.noise[agent] for agent in flow.streams.agents]
            sizes = flow.s.new_tensor(each).unsqueeze(-1)
        return flow.mean_stepsize.mul_(sizes)


@dataclass(frozen=True)
class StepNoise(Part):
    """Add to every step independent Gaussian noise fit for a proof: s += λ̄ σ z.

    `noise` is σ in the unit of the gradient, which is divided by the expected batch B: the noise
    multiplier m of DP-SGD is σ = m C / B. The public mean stepsize λ̄ scales it, so that Λ does not
    touch it. z is a sum of float64 draws, added in float64 and then rounded (`Flow.exact_normal`).
    """

    place: ClassVar[Place] = "step"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True
    keeps_average: ClassVar[bool] = False
    shared: ClassVar[bool] = False
    noise: float = 1e-2

    def __post_init__(self) -> None:
        require_noise(self.noise)

    def __call__(self, flow: Flow) -> None:
        if not self.noise:
            return
        if flow.in_kernel:
            self._add_in_kernel(flow)
        else:
            flow.add_exactly(self._drawn, self.shared)

    def _sizes(self, flow: Flow) -> Tensor:
        return self.noise * flow.mean_stepsize.double()

    def _add_in_kernel(self, flow: Flow) -> None:
        now = {flow.at.round: 1.0}
        add_exact_noise(flow, Scope.AGENT, "step noise", self._sizes(flow), now)

    def _drawn(self, flow: Flow) -> Tensor:
        return flow.exact_normal(Scope.AGENT, "step noise").mul_(self._sizes(flow))


@dataclass(frozen=True)
class EdgeNoise(StepNoise):
    """Add to every step noise that both ends of an edge hold and that cancels between them.

    s_i += λ̄ σ Σ_{e at i} ±z_e, with opposite signs at the two ends of edge e (DECOR, Allouah et al.
    2024). `noise` is σ in the unit of the gradient. It keeps the average where all agents have the
    same mean stepsize λ̄. Drawn and added as in `StepNoise`.
    """

    keeps_average: ClassVar[bool] = True
    shared: ClassVar[bool] = True

    def _add_in_kernel(self, flow: Flow) -> None:
        now = {flow.at.round: 1.0}
        add_exact_noise(flow, Scope.EDGE, "edge noise", self._sizes(flow), now)

    def _drawn(self, flow: Flow) -> Tensor:
        drawn = flow.exact_normal(Scope.EDGE, "edge noise")
        total = flow.over_routes(drawn.mul_(flow.routes.sign.unsqueeze(-1)))
        return total.mul_(self._sizes(flow))


def require_noise(noise: float) -> None:
    """Raise unless a standard deviation is finite and not negative."""
    if not 0 <= noise < float("inf"):
        raise AlgorithmError(f"noise is {noise}; it must be finite and not negative")
