"""What an algorithm needs to know of a problem: gradients, and how far the agents have come."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from sottovoce.errors import ProblemError
from sottovoce.mechanisms import Bound
from sottovoce.problems.sampling import Sampling
from sottovoce.randomness import Streams
from sottovoce.storage.identity import code_of, identity_of

WORK_BYTES = 1 << 18


class Problem(ABC):
    """min_x F(x) = mean_i f_i(x), with f_i known to agent i alone (the paper's eq. 1)."""

    name: ClassVar[str]
    agents: int
    dimension: int
    dtype: torch.dtype = torch.float64
    device: torch.device = torch.device("cpu")
    sampling: Sampling | None = None
    """How batches are drawn, or None where a gradient is not a mean over samples."""
    scratch: ClassVar[frozenset[str]] = frozenset()
    """Attributes that decide no number, such as memory to work in: `spec` leaves them out."""

    @abstractmethod
    def gradient(self, state: Tensor, streams: Streams, round: int, out: Tensor) -> Tensor:
        """Stochastic gradients g_i(x_i) of every run and agent, written to `out`.

        state, out: (runs, agents, dimension). The samples are private draws of `streams`.
        """

    def clipped_gradient(
        self, state: Tensor, streams: Streams, round: int, out: Tensor, bound: Bound
    ) -> Tensor:
        """The same of gradients whose samples are bounded: (1/B) Σ_n c_n g_n, written to `out`.

        n runs over the same samples, B is the (expected) batch of `sampling`, and c_n is
        `bound.factors` of the norm of sample n's gradient g_n.
        """
        raise ProblemError(
            f"the problem {self.name!r} has no samples whose gradients could be bounded; use an "
            "algorithm without clip, or a problem with samples"
        )

    @abstractmethod
    def measure(self, state: Tensor) -> dict[str, Tensor]:
        """How far the agents are, by name: (runs,) or, for what each agent has, (runs, agents)."""

    def with_batches(self, batch: int, *, poisson: bool = False) -> Self:
        """The same problem with batches drawn otherwise (`Sampling`)."""
        if self.sampling is None:
            raise ProblemError(f"the problem {self.name!r} has no samples to draw batches of")
        other = copy(self)
        other.sampling = replace(self.sampling, batch=batch, poisson=poisson)
        return other

    def describe(self) -> dict[str, Any]:
        """Name and sizes as JSON, to which a problem may add."""
        return {"name": self.name, "agents": self.agents, "dimension": self.dimension}

    @property
    def spec(self) -> dict[str, Any]:
        """All that decides this problem's numbers, as JSON: code, data, options, type and device.

        Every attribute counts unless `scratch` names it; data counts by its fingerprint.
        """
        seen = {id(self): (0, self)}
        kept = {name: one for name, one in vars(self).items() if name not in self.scratch}
        return {
            **self.describe(),
            "code": code_of(type(self)),
            "dtype": str(self.dtype),
            "device": str(self.device),
            "state": {name: identity_of(one, seen) for name, one in kept.items()},
        }

    def start(self, runs: range, streams: Streams) -> Tensor:
        """Where the agents begin, (runs, agents, dimension): zero unless a problem overrides it."""
        return torch.zeros(
            len(runs), self.agents, self.dimension, dtype=self.dtype, device=self.device
        )

    def runs_at_once(self) -> int | None:
        """How many runs fit into the device's memory; None when that is no concern."""
        return None


class ConvexProblem(Problem):
    """A problem whose aggregate objective F and its minimiser are known."""

    optimum: Tensor
    """The minimiser θ* of F: (dimension,)."""

    @abstractmethod
    def objective(self, points: Tensor) -> Tensor:
        """F at each point: (points, dimension) -> (points,)."""

    @abstractmethod
    def full_gradient(self, points: Tensor) -> Tensor:
        """∇F at each point: (points, dimension) -> (points, dimension)."""

    def measure(self, state: Tensor) -> dict[str, Tensor]:
        """Distance to the optimum, consensus error, objective gap and gradient norm at x̄.

        distance: root mean square over agents of ||x_i - θ*||; consensus: likewise ||x_i - x̄||.
        """
        mean = state.mean(1)
        best = self.objective(self.optimum[None])
        return {
            "distance": _root_mean_square(state, self.optimum),
            "consensus": _root_mean_square(state, mean.unsqueeze(1)),
            "objective_gap": self.objective(mean) - best,
            "gradient_norm": self.full_gradient(mean).norm(dim=-1),
        }


def _root_mean_square(state: Tensor, centre: Tensor) -> Tensor:
    """Root mean square over agents of the distance to `centre`, a few agents at a time: (runs,)."""
    total = state.new_zeros(len(state))
    for part in blocks(state.shape[1], state[:, 0].numel() * state.element_size()):
        total += (state[:, part] - centre).square_().sum((1, 2))
    return total.div_(state.shape[1]).sqrt_()


def blocks(rows: int, row_bytes: int, times: int = 1) -> Iterator[slice]:
    """Slices of `rows` to work on in turn, so that temporary tensors stay small beside states.

    They fit into a core's own cache; `times` asks for larger ones.
    """
    size = max(1, times * WORK_BYTES // max(1, row_bytes))
    return (slice(first, first + size) for first in range(0, rows, size))


def in_huge_pages(tensor: Tensor) -> Tensor:
    """Copy a CPU tensor into huge pages, which makes random row access faster; others stay."""
    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided
    if not plain or tensor.dtype not in (torch.float32, torch.float64):
        return tensor
    return room_like(tensor).copy_(tensor.detach())


def room_like(tensor: Tensor) -> Tensor:
    """Memory like that of a tensor, in huge pages where it is numbers on a CPU.

    numpy asks the system for huge pages, torch does not.
    """
    kinds = {torch.float32: np.float32, torch.float64: np.float64}
    if tensor.device.type != "cpu" or tensor.dtype not in kinds:
        return torch.empty_like(tensor)
    return torch.from_numpy(np.empty(tensor.shape, kinds[tensor.dtype]))


def plain_tensor(value: Any) -> Tensor:
    """A tensor as it is, a numpy array or nested lists of numbers as a tensor of their type."""
    return value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))


def as_tensor(name: str, value: Any) -> Tensor:
    """`plain_tensor`, or a `ProblemError` that names what is not an array of finite numbers."""
    try:
        tensor = plain_tensor(value)
    except (TypeError, ValueError) as error:
        raise ProblemError(
            f"{name} is a {type(value).__name__} that is not an array of numbers; "
            "accepted: a torch tensor, a numpy array or nested lists of numbers"
        ) from error
    require_finite(name, tensor)
    return tensor


def require_finite(name: str, tensor: Tensor) -> None:
    """Raise unless all entries are finite, and name the first that is not."""
    bad = (~torch.isfinite(tensor)).nonzero()
    if len(bad):
        where = tuple(bad[0].tolist())
        raise ProblemError(
            f"{name} is not finite at index {where} ({len(bad)} of {tensor.numel()} entries); "
            "clean the data before training on it"
        )


def require_sizes(**sizes: int) -> None:
    """Raise unless every size is at least 1, and name the one that is not."""
    for name, size in sizes.items():
        if size < 1:
            raise ProblemError(f"{name} is {size}; it must be at least 1")
