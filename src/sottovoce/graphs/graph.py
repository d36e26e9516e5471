"""Who talks to whom, and with which weights: a graph, its mixing matrix W and its routes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.errors import GraphError
from sottovoce.graphs.mixing import canonical, contraction, diameter, mixing_faults
from sottovoce.graphs.symmetry import shift_eigenvalues

if TYPE_CHECKING:
    import torch

DIAMETER_LIMIT = 2000
RHO_LIMIT = 20_000
_BY_ROUTE = ("receiver", "sender", "weight", "slot", "own", "edge", "sign")


@dataclass(frozen=True, eq=False)
class Routes:
    """Every way a share can travel, an agent's share to itself included.

    One entry for each (receiver i, sender j) with w_ij > 0, ordered by receiver, then sender. In
    the view of one agent only its own entries as sender remain, and `sender` is 0 throughout
    because there is one local sender; `receiver` stays a global agent number.

    agents: number of senders (1 in the view of one agent)
    receiver, sender, slot: (routes,) int64; weight: (routes,) float64; own: (routes,) bool
    slot: position of the receiver in the sender's neighbourhood N_j (itself included, ascending)
    slots: the largest neighbourhood of the whole graph, also in the view of one agent
    own: the receiver is the sender itself
    edge: a number of the edge, the same for both of its directions: (routes,) int64
    sign: 1 where the receiver's number is above the sender's, -1 where below, 0 for own: (routes,)
    """

    agents: int
    receiver: torch.Tensor
    sender: torch.Tensor
    weight: torch.Tensor
    slot: torch.Tensor
    slots: int
    own: torch.Tensor
    edge: torch.Tensor
    sign: torch.Tensor

    @cached_property
    def members(self) -> torch.Tensor:
        """How many routes each sender has: (senders,)."""
        import torch

        return torch.bincount(self.sender, minlength=self.agents)

    @cached_property
    def place(self) -> torch.Tensor:
        """Where a route's number lies among those of all (sender, slot) in a row: (routes,)."""
        return self.sender * self.slots + self.slot

    def to(self, device: torch.device | str) -> Routes:
        """Copy the routes to `device`."""
        return replace(self, **{name: getattr(self, name).to(device) for name in _BY_ROUTE})

    def of(self, senders: Sequence[int]) -> Routes:
        """The routes of chosen senders, which are numbered from 0 in their order."""
        import torch

        local = torch.full((self.agents,), -1, device=self.sender.device)
        local[list(senders)] = torch.arange(len(senders), device=local.device)
        kept = (local[self.sender] >= 0).nonzero().flatten()
        part = {name: getattr(self, name)[kept] for name in _BY_ROUTE}
        return replace(self, agents=len(senders), **part | {"sender": local[part["sender"]]})

    def part(self, senders: slice) -> Routes:
        """The routes of some senders, which are numbered from 0."""
        return self.of(range(self.agents)[senders])


@dataclass(frozen=True, eq=False)
class Graph:
    """An undirected connected graph with its mixing matrix W; build one with `ring(5)` or its like.

    W is doubly stochastic to 1e-12 with a positive diagonal, and w_ij > 0 exactly where i hears j
    (the paper's Assumption on W). Anything else is refused with every fault at once.

    mixing: (agents, agents) float64, sorted indices
    weights: name of the rule that made W, "given" for a user's matrix
    """

    name: str
    mixing: sparse.csr_array
    weights: str

    def __post_init__(self) -> None:
        mixing = canonical(self.mixing)
        if faults := mixing_faults(mixing):
            raise GraphError("; ".join(faults), faults)
        object.__setattr__(self, "mixing", mixing)

    @property
    def agents(self) -> int:
        """Number of agents m."""
        return int(self.mixing.shape[0])

    @cached_property
    def rho(self) -> float:
        """Contraction of disagreement in one round: ρ = ‖W - 11ᵀ/m‖₂, 0 for one agent."""
        return contraction(self.mixing)

    @property
    def spectral_gap(self) -> float:
        """1 - ρ: the larger, the faster the agents agree."""
        return 1.0 - self.rho

    @property
    def links(self) -> list[tuple[int, int]]:
        """Undirected links as pairs i < j, ascending."""
        upper = sparse.triu(self.mixing, k=1, format="csr").tocoo()
        return list(zip(upper.row.tolist(), upper.col.tolist(), strict=True))

    @property
    def degrees(self) -> NDArray[np.int64]:
        """Neighbours of each agent, itself not counted: (agents,)."""
        return np.diff(self.mixing.indptr).astype(np.int64) - 1

    def neighbours(self, agent: int) -> list[int]:
        """Agents linked to `agent`, ascending, without itself."""
        self._require_agent(agent)
        heard = self.mixing.indices[self.mixing.indptr[agent] : self.mixing.indptr[agent + 1]]
        return [i for i in heard.tolist() if i != agent]

    def routes(self, agent: int | None = None) -> Routes:
        """List the routes that shares travel, for all senders or for `agent` alone."""
        import torch

        sizes = self.degrees + 1
        receiver = np.repeat(np.arange(self.agents), sizes)
        sender = self.mixing.indices.astype(np.int64)
        by_sender = np.argsort(sender, kind="stable")
        slot = np.empty_like(sender)
        slot[by_sender] = np.arange(sender.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        # W's pattern is symmetric, so that the k-th route by sender is the k-th one turned round.
        edge = np.minimum(np.arange(sender.size), by_sender)
        sign = np.sign(receiver - sender).astype(np.float64)
        by_route = (receiver, sender, self.mixing.data, slot, receiver == sender, edge, sign)
        found = {n: torch.tensor(values) for n, values in zip(_BY_ROUTE, by_route, strict=True)}
        routes = Routes(agents=self.agents, slots=int(sizes.max()), **found)
        if agent is None:
            return routes
        self._require_agent(agent)
        return routes.of([agent])

    @property
    def spec(self) -> dict[str, Any]:
        """What decides a simulation's numbers: names and a fingerprint of W."""
        W, found = self.mixing, hashlib.sha256()
        for part in (W.indptr.astype("<i8"), W.indices.astype("<i8"), W.data.astype("<f8")):
            found.update(part.tobytes())
        mixing = found.hexdigest()[:32]
        return {"name": self.name, "weights": self.weights, "agents": self.agents, "mixing": mixing}

    def describe(self) -> dict[str, Any]:
        """Summarise the graph for JSON.

        `diameter` is None above 2,000 agents, and what depends on ρ above 20,000 unless a closed
        form gives it; the property `rho` computes it at any size.
        """
        degrees, rho = self.degrees, None
        if self.agents <= RHO_LIMIT or shift_eigenvalues(self.mixing) is not None:
            rho = self.rho
        return {
            "name": self.name,
            "agents": self.agents,
            "links": int(degrees.sum()) // 2,
            "weights": self.weights,
            "rho": rho,
            "spectral_gap": None if rho is None else 1.0 - rho,
            "min_degree": int(degrees.min()),
            "max_degree": int(degrees.max()),
            "diameter": diameter(self.mixing) if self.agents <= DIAMETER_LIMIT else None,
        }

    def _require_agent(self, agent: int) -> None:
        if not 0 <= agent < self.agents:
            raise GraphError(f"there is no agent {agent}; agents are 0 to {self.agents - 1}")
