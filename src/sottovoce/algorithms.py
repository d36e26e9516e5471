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
from typing import Any, ClassVar

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
    def shares(self, step: Tensor, routes: Routes, streams: Streams, round: int) -> Tensor:
        """Split the steps (runs, agents, d) over the routes: (runs, routes, d)."""

    def messages(
        self, state: Tensor, step: Tensor, routes: Routes, streams: Streams, round: int
    ) -> Tensor:
        """What travels on every route, v_ij = w_ij x_j - share_ij: (runs, routes, d).

        Multiplication and subtraction stay separate operations, so that one agent alone computes
        the same bits as a simulation of all.
        """
        weight = routes.weight.to(state.dtype).unsqueeze(-1)
        sent = state[:, routes.sender].mul_(weight)
        return sent.sub_(self.shares(step, routes, streams, round))

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

    def shares(self, step: Tensor, routes: Routes, streams: Streams, round: int) -> Tensor:
        coefficients = self.coefficients(routes, streams, round).to(step.dtype)
        return step[:, routes.sender].mul_(coefficients.unsqueeze(-1))


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

    def coefficients(self, routes: Routes, streams: Streams, round: int) -> Tensor:
        return routes.own.double().expand(len(streams.runs), -1)


@dataclass(frozen=True)
class PDSGD(ScalarShares):
    """The paper's algorithm: private random stepsizes and private random mixing coefficients.

    v_ij = w_ij x_j - b_ij Λ_j g_j with b_ij >= 0 random, Σ_{i in N_j} b_ij = 1 (eq.
    proposed_algorithm). `mixing` says how b is drawn: `uniform` (uniform numbers divided by their
    sum), `dirichlet` (flat on the simplex) or `equal` (1/|N_j|, no randomness).
    """

    name: ClassVar[str] = "pdsgd"
    mixing: str = "uniform"

    def __post_init__(self) -> None:
        if self.mixing not in _MIXINGS:
            raise AlgorithmError(
                f"mixing {self.mixing!r} is not known; accepted: {', '.join(_MIXINGS)}"
            )

    @property
    def default_stepsize(self) -> Stepsize:
        return Stepsize(law=Experiment())

    def coefficients(self, routes: Routes, streams: Streams, round: int) -> Tensor:
        return _normalised(_MIXINGS[self.mixing](routes, streams, round), routes)


@dataclass(frozen=True)
class NoisyDSGD(ScalarShares):
    """The paper's differential-privacy baseline: Gaussian noise on the gradient, b = 1/|N_j|.

    `noise` is the standard deviation of each coordinate (Table I writes σ_DP).
    """

    name: ClassVar[str] = "noisy-dsgd"
    noise: float = 1e-2

    def __post_init__(self) -> None:
        if not 0 <= self.noise < float("inf"):
            raise AlgorithmError(f"noise is {self.noise}; it must be finite and not negative")

    @property
    def default_stepsize(self) -> Stepsize:
        return Stepsize(law=Deterministic())

    def perturb_(self, gradient: Tensor, streams: Streams, round: int) -> None:
        if self.noise:
            streams.add_normal_(gradient, self.noise, "noise", round)

    def coefficients(self, routes: Routes, streams: Streams, round: int) -> Tensor:
        return _normalised(_equal(routes, streams, round), routes)


def _uniform(routes: Routes, streams: Streams, round: int) -> Tensor:
    draws = streams.uniform("mixing", round, routes.slots)
    return 1.0 - draws[:, routes.sender, routes.slot]


def _dirichlet(routes: Routes, streams: Streams, round: int) -> Tensor:
    return -torch.log(_uniform(routes, streams, round)) + torch.finfo(torch.float64).tiny


def _equal(routes: Routes, streams: Streams, round: int) -> Tensor:
    return torch.ones(
        len(streams.runs), len(routes.sender), dtype=torch.float64, device=streams.device
    )


_MIXINGS: dict[str, Callable[[Routes, Streams, int], Tensor]] = {
    "uniform": _uniform,
    "dirichlet": _dirichlet,
    "equal": _equal,
}


def _normalised(raw: Tensor, routes: Routes) -> Tensor:
    """Divide by the sum over each sender's neighbourhood."""
    total = raw.new_zeros(raw.shape[0], routes.agents).index_add_(1, routes.sender, raw)
    return raw / total[:, routes.sender]


ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    algorithm.name: algorithm for algorithm in (DSGD, PDSGD, NoisyDSGD)
}


def parse_algorithm(text: str) -> Algorithm:
    """Read an algorithm from the command line: `dsgd`, `pdsgd:dirichlet`, `noisy-dsgd:0.01`."""
    name, _, option = text.partition(":")
    if name == "pdsgd":
        return PDSGD(option or "uniform")
    if name == "noisy-dsgd":
        try:
            return NoisyDSGD(float(option or 1e-2))
        except ValueError as error:
            raise AlgorithmError(f"the noise in {text!r} is not a usable number") from error
    if name in ALGORITHMS and not option:
        return ALGORITHMS[name]()
    raise AlgorithmError(
        f"the algorithm {text!r} is not known; accepted: dsgd, pdsgd, pdsgd:dirichlet, "
        "pdsgd:equal, noisy-dsgd:0.01"
    )
