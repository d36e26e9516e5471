"""The private numbers of one agent, wherever its model lies, and drawn while it waits."""

from collections.abc import Callable

import torch
from torch import Tensor

from sottovoce.randomness import CipherStreams, Streams

_FEW = 64
"""Up to this many numbers are kept for the round: they are asked for again with every block."""


class AgentStreams(Streams):
    """One agent's cipher stream for vectors of `dimension` numbers on the agent's device.

    `scale_` and `add_normal_` also take a block of the vector, whose place `at` tells; blocks come
    in ascending order. `draw_ahead` draws the next round's large numbers while messages are under
    way. Every number is the one that the cipher stream alone would give for the whole vector.
    """

    def __init__(
        self, agent: int, insecure_seed: int | None, device: torch.device, dimension: int
    ) -> None:
        super().__init__(range(1), [agent], device)
        self.at = 0
        self._dimension = dimension
        self._cipher = CipherStreams(range(1), [agent], insecure_seed)
        self._few: dict[tuple[str, int, int, torch.dtype], Tensor] = {}
        self._buffers: dict[_Request, Tensor] = {}
        self._drawn: dict[_Request, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"AgentStreams(agent={self.agents[0]})"

    def part(self, runs: slice, agents: slice) -> "AgentStreams":
        return self

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        request = (purpose, round, count, dtype)
        if request in self._few:
            return self._few[request].clone()
        numbers = self._cipher.uniform(purpose, round, count, dtype).to(self.device)
        if count <= _FEW:
            self._few = {held: kept for held, kept in self._few.items() if held[1] == round}
            self._few[request] = numbers.clone()
        return numbers

    def scale_(self, tensor: Tensor, low: float, high: float, purpose: str, round: int) -> None:
        factors = self._take((purpose, None, tensor.dtype), tensor, round)
        tensor.mul_(factors.mul_(high - low).add_(low).to(self.device))

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        noise = self._take((purpose, deviation, tensor.dtype), tensor, round)
        tensor.add_(noise.to(self.device))

    def draw_ahead(self, round: int) -> None:
        """Draw now what will be asked for in `round`, if it is what was asked for last."""
        for request in self._buffers:
            self._draw(request, round)

    def _take(self, request: "_Request", tensor: Tensor, round: int) -> Tensor:
        """The numbers of a round for a block, once; the caller may alter them."""
        if request not in self._buffers:
            # A request with other options replaces the earlier one of its purpose.
            self._keep_only(lambda held: held[0] != request[0])
        drawn, taken = self._drawn.get(request, (0, 0))
        if drawn != round or self.at < taken:
            self._draw(request, round)
        end = self.at + tensor.shape[-1]
        self._drawn[request] = (round, end)
        return self._buffers[request][..., self.at : end]

    def _draw(self, request: "_Request", round: int) -> None:
        purpose, deviation, dtype = request
        if request not in self._buffers:
            self._buffers[request] = torch.empty(1, 1, self._dimension, dtype=dtype)
        numbers = self._buffers[request]
        if deviation is None:
            # 1 · (u · 1 + 0) is u to the bit.
            self._cipher.scale_(numbers.fill_(1.0), 0.0, 1.0, purpose, round)
        else:
            self._cipher.add_normal_(numbers.zero_(), deviation, purpose, round)
        self._drawn[request] = (round, 0)

    def _keep_only(self, wanted: Callable[["_Request"], bool]) -> None:
        self._buffers = {held: numbers for held, numbers in self._buffers.items() if wanted(held)}


_Request = tuple[str, float | None, torch.dtype]
"""Purpose, standard deviation (None for uniform numbers) and type."""
