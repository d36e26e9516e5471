"""How a step is split into shares: the one place where the algorithms differ.

Agent j turns its gradient into a step s_j = Λ_j g_j, splits it into shares, one for each member of
its neighbourhood N_j (itself included), and sends neighbour i

    v_ij = w_ij x_j - share_ij,        Σ_{i in N_j} share_ij = s_j,        x_i <- Σ_{j in N_i} v_ij

Since the shares of an agent sum to its step and W is doubly stochastic, the network average obeys
x̄ <- x̄ - mean_j(s_j) whatever the rule. States are combined before the step is applied
(combine-then-adapt), as in the paper's eq. (proposed_algorithm); adapt-then-combine is common
elsewhere.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeGuard

import torch
from torch import Tensor

from sottovoce.errors import AlgorithmError
from sottovoce.graphs import Routes
from sottovoce.randomness import Streams
from sottovoce.stepsizes import Deterministic, Experiment, Stepsize


class Algorithm(ABC):
    """A share rule. Subclass `ScalarShares` when a share is a number times the step."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def default_stepsize(self) -> Stepsize:
        """The stepsize that the paper uses with this algorithm."""

    def perturb_(self, gradient: Tensor, streams: Streams, round: int) -> None:  # noqa: B027
        """Alter the gradients in place before they become steps; most algorithms do not."""

    @abstractmethod
    def shares(
        self, step: Tensor, routes: Routes, streams: Streams, round: int, stepsize: Stepsize
    ) -> Tensor:
        """Split the steps (runs, agents, d) over the routes: (runs, routes, d).

        stepsize: the one behind the steps; a rule may use its public mean.
        """

    @abstractmethod
    def expected_coefficients(self, routes: Routes) -> Tensor:
        """The public mean of the b_ij in share_ij = b_ij s_j + noise, in float64: (routes,)."""

    @property
    def coefficients_are_public(self) -> bool:
        """Whether every b_ij is its public mean."""
        return False

    def messages(
        self,
        state: Tensor,
        step: Tensor,
        routes: Routes,
        streams: Streams,
        round: int,
        stepsize: Stepsize,
    ) -> Tensor:
        """What travels on every route, v_ij = w_ij x_j - share_ij: (runs, routes, d).

        Multiplication and subtraction stay separate operations, so that one agent alone computes
        the same bits as a simulation of all.
        """
        weight = routes.weight.to(state.dtype).unsqueeze(-1)
        sent = state.index_select(1, routes.sender).mul_(weight)
        return sent.sub_(self.shares(step, routes, streams, round, stepsize))

    def __str__(self) -> str:
        """The text that `parse_algorithm` reads back."""
        return ":".join([self.name, *map(str, vars(self).values())])

    def describe(self) -> dict[str, Any]:
        """Name and options as JSON."""
        return {"name": self.name, **vars(self)}


def receive(messages: Tensor, routes: Routes, agents: int) -> Tensor:
    """Sum what arrives at every agent, senders ascending: (runs, agents, d)."""
    state = messages.new_zeros(messages.shape[0], agents, messages.shape[2])
    return state.index_add_(1, routes.receiver, messages)


class ScalarShares(Algorithm):
    """A rule whose shares are b_ij s_j with scalars b_ij that sum to 1 over N_j."""

    keeps_whole_step: ClassVar[bool] = False
    """Whether b_jj = 1 always, so that the update is x <- Wx - s."""

    @abstractmethod
    def coefficients(self, routes: Routes, streams: Streams, round: int) -> Tensor:
        """The b_ij of every route, in float64: (runs, routes)."""

    def shares(
        self, step: Tensor, routes: Routes, streams: Streams, round: int, stepsize: Stepsize
    ) -> Tensor:
        coefficients = self.coefficients(routes, streams, round).to(step.dtype)
        return step.index_select(1, routes.sender).mul_(coefficients.unsqueeze(-1))


def has_scalar_shares(algorithm: Algorithm) -> TypeGuard[ScalarShares]:
    """Whether each share is one number times the step, so that the update is x <- Wx - Bs."""
    by_coordinate = isinstance(algorithm, PDSGD) and algorithm.mixing == _COORDINATE
    return isinstance(algorithm, ScalarShares) and not by_coordinate


@dataclass(frozen=True)
class DSGD(ScalarShares):
    """Conventional decentralized SGD (Nedić and Ozdaglar 2009; Lian et al. 2017).

    x_i <- Σ_j w_ij x_j - λ g_i: an agent keeps its whole step and sends w_ij x_j, from which an
    eavesdropper computes every gradient.
    """

    name: ClassVar[str] = "dsgd"
    keeps_whole_step: ClassVar[bool] = True

    @property
    def default_stepsize(self) -> Stepsize:
        return Stepsize(law=Deterministic())

    @property
    def coefficients_are_public(self) -> bool:
        return True

    def expected_coefficients(self, routes: Routes) -> Tensor:
        return routes.own.double()

    def coefficients(self, routes: Routes, streams: Streams, round: int) -> Tensor:
        return routes.own.double().expand(len(streams.runs), -1)


@dataclass(frozen=True)
class PDSGD(ScalarShares):
    """The paper's algorithm: private random stepsizes and private random mixing coefficients.

    v_ij = w_ij x_j - b_ij Λ_j g_j with b_ij >= 0 random, Σ_{i in N_j} b_ij = 1 (eq.
    proposed_algorithm). `mixing` says how b is drawn: `uniform` (uniform numbers divided by their
    sum), `dirichlet` (flat on the simplex), `coordinate` (as `uniform`, but anew at every
    coordinate), `equal` (1/|N_j|, no randomness) or `weights` (w_ij, no randomness).

    One b_ij for all coordinates lets whoever sees two messages of a sender remove its state; with
    `coordinate` what is left has a random factor of either sign at every coordinate.
    """

    name: ClassVar[str] = "pdsgd"
    mixing: str = "uniform"

    def __post_init__(self) -> None:
        _require_mixing(self.mixing, MIXINGS)

    @property
    def default_stepsize(self) -> Stepsize:
        return Stepsize(law=Experiment())

    @property
    def coefficients_are_public(self) -> bool:
        return self.mixing in _PUBLIC

    def expected_coefficients(self, routes: Routes) -> Tensor:
        return _expected(self.mixing, routes)

    def coefficients(self, routes: Routes, streams: Streams, round: int) -> Tensor:
        if self.mixing == _COORDINATE:
            raise AlgorithmError(
                "with mixing 'coordinate' there is no one coefficient a link; ask for the shares"
            )
        return _normalised(_SCALAR_MIXINGS[self.mixing](routes, streams, round), routes)

    def shares(
        self, step: Tensor, routes: Routes, streams: Streams, round: int, stepsize: Stepsize
    ) -> Tensor:
        if self.mixing != _COORDINATE:
            return super().shares(step, routes, streams, round, stepsize)
        raw = _by_route(streams.uniform, "mixing", step, routes, round).neg_().add_(1.0)
        factor = step / torch.zeros_like(step).index_add_(1, routes.sender, raw)
        return raw.mul_(factor.index_select(1, routes.sender))


@dataclass(frozen=True)
class NoisyDSGD(ScalarShares):
    """The paper's differential-privacy baseline: Gaussian noise on the gradient, b = 1/|N_j|.

    `noise` is the standard deviation of each coordinate (Table I writes σ_DP).
    """

    name: ClassVar[str] = "noisy-dsgd"
    noise: float = 1e-2

    def __post_init__(self) -> None:
        _require_noise(self.noise)

    @property
    def default_stepsize(self) -> Stepsize:
        return Stepsize(law=Deterministic())

    @property
    def coefficients_are_public(self) -> bool:
        return True

    def expected_coefficients(self, routes: Routes) -> Tensor:
        return _expected("equal", routes)

    def perturb_(self, gradient: Tensor, streams: Streams, round: int) -> None:
        if self.noise:
            streams.add_normal_(gradient, self.noise, "noise", round)

    def coefficients(self, routes: Routes, streams: Streams, round: int) -> Tensor:
        return self.expected_coefficients(routes).expand(len(streams.runs), -1)


@dataclass(frozen=True)
class ZeroSumDSGD(Algorithm):
    """Private noise on every share that cancels in the sum: the average never feels it.

    share_ij = b_ij s_j + λ̄_j σ n_ij with n_ij = z_ij - mean_{l in N_j} z_lj, z standard normal and
    private, so that Σ_{i in N_j} n_ij = 0 at every coordinate; n_jj stays with agent j. `noise` is
    σ: it has the unit of a gradient and is scaled by the public mean stepsize λ̄, so that it shrinks
    with the steps and never relative to them. `mixing` is as for `PDSGD`; with the default,
    `weights` (b_ij = w_ij), two messages of one sender differ by noise alone.
    """

    name: ClassVar[str] = "zero-sum"
    noise: float = 0.1
    mixing: str = "weights"

    def __post_init__(self) -> None:
        _require_noise(self.noise)
        _require_mixing(self.mixing, tuple(_SCALAR_MIXINGS))

    @property
    def default_stepsize(self) -> Stepsize:
        return Stepsize(law=Deterministic())

    @property
    def coefficients_are_public(self) -> bool:
        return self.mixing in _PUBLIC

    def expected_coefficients(self, routes: Routes) -> Tensor:
        return _expected(self.mixing, routes)

    def shares(
        self, step: Tensor, routes: Routes, streams: Streams, round: int, stepsize: Stepsize
    ) -> Tensor:
        raw = _SCALAR_MIXINGS[self.mixing](routes, streams, round)
        coefficients = _normalised(raw, routes).to(step.dtype).unsqueeze(-1)
        shares = step.index_select(1, routes.sender).mul_(coefficients)
        if not self.noise:
            return shares
        means = [stepsize.mean(round, agent) for agent in streams.agents]
        size = step.new_tensor(means).mul_(self.noise).unsqueeze(-1)
        noise = _by_route(streams.normal, "zero-sum noise", step, routes, round)
        members = torch.bincount(routes.sender, minlength=routes.agents).to(step.dtype)
        centre = torch.zeros_like(step).index_add_(1, routes.sender, noise)
        noise.sub_(centre.div_(members.unsqueeze(-1)).index_select(1, routes.sender))
        return shares.add_(noise.mul_(size[routes.sender]))


def _require_noise(noise: float) -> None:
    if not 0 <= noise < float("inf"):
        raise AlgorithmError(f"noise is {noise}; it must be finite and not negative")


def _require_mixing(mixing: str, accepted: tuple[str, ...]) -> None:
    if mixing not in accepted:
        raise AlgorithmError(f"mixing {mixing!r} is not known; accepted: {', '.join(accepted)}")


def _by_route(
    draw: Callable[[str, int, int, torch.dtype], Tensor],
    purpose: str,
    step: Tensor,
    routes: Routes,
    round: int,
) -> Tensor:
    """Private numbers for every route and coordinate, drawn by the sender: (runs, routes, d)."""
    runs, _, d = step.shape
    drawn = step.new_empty(runs, len(routes.sender), d)
    for slot in range(routes.slots):
        here = (routes.slot == slot).nonzero().flatten()
        if len(here):
            numbers = draw(f"{purpose}, slot {slot}", round, d, step.dtype)
            drawn.index_copy_(1, here, numbers.index_select(1, routes.sender[here]))
    return drawn


def _uniform(routes: Routes, streams: Streams, round: int) -> Tensor:
    draws = streams.uniform("mixing", round, routes.slots)
    return 1.0 - draws[:, routes.sender, routes.slot]


def _dirichlet(routes: Routes, streams: Streams, round: int) -> Tensor:
    return -torch.log(_uniform(routes, streams, round)) + torch.finfo(torch.float64).tiny


def _equal(routes: Routes, streams: Streams, round: int) -> Tensor:
    return torch.ones_like(routes.weight).expand(len(streams.runs), -1)


def _weights(routes: Routes, streams: Streams, round: int) -> Tensor:
    return routes.weight.expand(len(streams.runs), -1)


_SCALAR_MIXINGS: dict[str, Callable[[Routes, Streams, int], Tensor]] = {
    "uniform": _uniform,
    "dirichlet": _dirichlet,
    "equal": _equal,
    "weights": _weights,
}
_COORDINATE = "coordinate"
_PUBLIC = ("equal", "weights")
MIXINGS = (*_SCALAR_MIXINGS, _COORDINATE)
"""How PDSGD may draw its coefficients."""


def _expected(mixing: str, routes: Routes) -> Tensor:
    """The mean of the coefficients; those of a random rule are alike on all links."""
    raw = routes.weight if mixing == "weights" else torch.ones_like(routes.weight)
    return _normalised(raw.unsqueeze(0), routes)[0]


def _normalised(raw: Tensor, routes: Routes) -> Tensor:
    """Divide by the sum over each sender's neighbourhood."""
    total = raw.new_zeros(raw.shape[0], routes.agents).index_add_(1, routes.sender, raw)
    return raw / total[:, routes.sender]


ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    algorithm.name: algorithm for algorithm in (DSGD, PDSGD, NoisyDSGD, ZeroSumDSGD)
}


def parse_algorithm(text: str) -> Algorithm:
    """Read an algorithm: `dsgd`, `pdsgd:coordinate`, `noisy-dsgd:0.01`, `zero-sum:0.1:equal`."""
    name, *options = text.split(":")
    if name == "pdsgd" and len(options) <= 1:
        return PDSGD(*options)
    if (name == "noisy-dsgd" and len(options) <= 1) or (name == "zero-sum" and len(options) <= 2):
        try:
            noise = [float(option) for option in options[:1]]
        except ValueError as error:
            raise AlgorithmError(f"the noise in {text!r} is not a number") from error
        return ALGORITHMS[name](*noise, *options[1:])
    if name in ALGORITHMS and not options:
        return ALGORITHMS[name]()
    raise AlgorithmError(
        f"the algorithm {text!r} is not known; accepted: dsgd, pdsgd, pdsgd:coordinate, "
        "noisy-dsgd:0.01, zero-sum:0.1, zero-sum:0.1:equal"
    )
