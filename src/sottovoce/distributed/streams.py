"""The private numbers of one agent, wherever its model lies, and drawn while it waits."""

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
        self._ahead: dict[str, tuple[int, Tensor]] = {}
        self._wanted: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}

    def __repr__(self) -> str:
        return f"AgentStreams(agent={self.agents[0]})"

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        return self._cipher.uniform(purpose, round, count, dtype).to(self.device)

    def scale_(self, tensor: Tensor, low: float, high: float, purpose: str, round: int) -> None:
        self._wanted[purpose] = (tuple(tensor.shape), tensor.dtype)
        drawn, numbers = self._ahead.get(purpose, (-1, tensor))
        if drawn != round or numbers.shape != tensor.shape or numbers.dtype != tensor.dtype:
            numbers = self._draw(purpose, round)
        factors = numbers.mul_(high - low).add_(low)
        self._ahead[purpose] = (-1, numbers)
        tensor.mul_(factors.to(self.device))

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        if tensor.device.type == "cpu":
            self._cipher.add_normal_(tensor, deviation, purpose, round)
            return
        noise = torch.zeros(tensor.shape, dtype=tensor.dtype)
        self._cipher.add_normal_(noise, deviation, purpose, round)
        tensor.add_(noise.to(self.device))

    def draw_ahead(self, round: int) -> None:
        """Draw now what `scale_` will ask for in `round`, if it asks as it last did."""
        for purpose in self._wanted:
            self._ahead[purpose] = (round, self._draw(purpose, round))

    def _draw(self, purpose: str, round: int) -> Tensor:
        """Uniform numbers on [0, 1) in a buffer used again: 1 · (u · 1 + 0) is u to the bit."""
        shape, dtype = self._wanted[purpose]
        _, numbers = self._ahead.get(purpose, (-1, None))
        if numbers is None or numbers.shape != shape or numbers.dtype != dtype:
            numbers = torch.empty(shape, dtype=dtype)
        self._cipher.scale_(numbers.fill_(1.0), 0.0, 1.0, purpose, round)
        return numbers
