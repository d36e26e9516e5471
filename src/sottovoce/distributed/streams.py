"""The private numbers of one agent, wherever its model lies, and drawn while it waits."""

from collections.abc import Callable

import torch
from torch import Tensor

from sottovoce.randomness import CipherStreams, Streams


class AgentStreams(Streams):
    """One agent's cipher stream with the numbers on the agent's device.

    `draw_ahead` draws the next round's large numbers while messages are under way. Every number is
    the one that the cipher stream alone would give: what is drawn early is only drawn early.
    """

    def __init__(self, agent: int, insecure_seed: int | None, device: torch.device) -> None:
        super().__init__(range(1), [agent], device)
        self._cipher = CipherStreams(range(1), [agent], insecure_seed)
        self._buffers: dict[_Request, Tensor] = {}
        self._drawn: dict[_Request, int] = {}

    def __repr__(self) -> str:
        return f"AgentStreams(agent={self.agents[0]})"

    def part(self, runs: slice, agents: slice) -> "AgentStreams":
        return self

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        return self._cipher.uniform(purpose, round, count, dtype).to(self.device)

    def scale_(self, tensor: Tensor, low: float, high: float, purpose: str, round: int) -> None:
        request = (purpose, None, tensor.shape, tensor.dtype)
        factors = self._take(request, round).mul_(high - low).add_(low)
        tensor.mul_(factors.to(self.device))

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        request = (purpose, deviation, tensor.shape, tensor.dtype)
        tensor.add_(self._take(request, round).to(self.device))

    def draw_ahead(self, round: int) -> None:
        """Draw now what will be asked for in `round`, if it is what was asked for last."""
        for request in self._buffers:
            self._draw(request, round)

    def _take(self, request: "_Request", round: int) -> Tensor:
        """The numbers of a round, which the caller may alter."""
        if self._drawn.get(request) != round:
            if request not in self._buffers:
                # A request with other options replaces the earlier one of its purpose.
                self._keep_only(lambda held: held[0] != request[0])
            self._draw(request, round)
        del self._drawn[request]
        return self._buffers[request]

    def _draw(self, request: "_Request", round: int) -> None:
        purpose, deviation, shape, dtype = request
        if request not in self._buffers:
            self._buffers[request] = torch.empty(shape, dtype=dtype)
        numbers = self._buffers[request]
        if deviation is None:
            # 1 · (u · 1 + 0) is u to the bit.
            self._cipher.scale_(numbers.fill_(1.0), 0.0, 1.0, purpose, round)
        else:
            self._cipher.add_normal_(numbers.zero_(), deviation, purpose, round)
        self._drawn[request] = round

    def _keep_only(self, wanted: Callable[["_Request"], bool]) -> None:
        self._buffers = {held: numbers for held, numbers in self._buffers.items() if wanted(held)}


_Request = tuple[str, float | None, torch.Size, torch.dtype]
"""Purpose, standard deviation (None for uniform numbers), shape and type."""
