"""The private numbers of one agent, wherever its model lies, drawn beside everything else."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from sottovoce.errors import DistributedError
from sottovoce.randomness import CipherStreams, Streams

WORTH_A_THREAD = 1 << 15
"""Below this count drawing is faster than waking another thread."""

_Request = tuple[str, float | None, torch.dtype]
"""Purpose, standard deviation (None for uniform numbers) and type."""


@dataclass(eq=False)
class _Numbers:
    """The large numbers of one purpose: those of `round`, used up to `taken`, and the next ones."""

    current: Tensor
    spare: Tensor
    round: int = 0
    taken: int = 0
    coming_round: int = 0
    coming: "Future[None] | None" = None

    def move_on(self) -> None:
        """Make the numbers that were drawn ahead the current ones."""
        if self.coming:
            self.coming.result()
            self.round, self.taken, self.coming, self.coming_round = self.coming_round, 0, None, 0
            self.current, self.spare = self.spare, self.current


class AgentStreams(Streams):
    """One agent's cipher stream for vectors of `dimension` numbers on the agent's device.

    `scale_` and `add_normal_` also take a block of the vector, whose place `at` tells; blocks come
    in ascending order. `uniform` and `normal` give the numbers of that block where as many are
    asked for as `block` says. `draw_ahead` draws the next round's large numbers in a thread of its
    own. Every number is the one that the cipher stream alone would give for the whole vector.
    """

    def __init__(
        self, agent: int, insecure_seed: int | None, device: torch.device, dimension: int
    ) -> None:
        super().__init__(range(1), [agent], device)
        self.at = 0
        self.block: int | None = None
        self._dimension, self._seeded = dimension, insecure_seed is not None
        self._cipher = CipherStreams(range(1), [agent], insecure_seed)
        # A cipher's memory serves one thread: few numbers are drawn while the thread draws many.
        self._large = CipherStreams(range(1), [agent], insecure_seed)
        self._held: dict[_Request, _Numbers] = {}
        self._thread = ThreadPoolExecutor(1, "sottovoce-draws")

    def __repr__(self) -> str:
        return f"AgentStreams(agent={self.agents[0]})"

    def renumbered(self, agents: Sequence[int]) -> Streams:
        if not self._seeded:
            raise DistributedError(
                "this algorithm draws numbers that both ends of an edge hold, and these agents "
                "share no secrets; it runs in the simulator, or with insecure_seed"
            )
        return self._cipher.renumbered(agents)

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        if count == self.block:
            return self._take((purpose, None, dtype), count, round).to(self.device)
        return self._cipher.uniform(purpose, round, count, dtype).to(self.device)

    def normal(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        if count == self.block:
            return self._take((purpose, 1.0, dtype), count, round).to(self.device)
        return super().normal(purpose, round, count, dtype)

    def scale_(self, tensor: Tensor, low: float, high: float, purpose: str, round: int) -> None:
        factors = self._take((purpose, None, tensor.dtype), tensor.shape[-1], round)
        tensor.mul_(factors.mul_(high - low).add_(low).to(self.device))

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        noise = self._take((purpose, deviation, tensor.dtype), tensor.shape[-1], round)
        tensor.add_(noise.to(self.device))

    def draw_ahead(self, round: int) -> None:
        """Begin to draw what will be asked for in `round`, if it is what was asked for last."""
        if self._dimension < WORTH_A_THREAD:
            return
        for request, numbers in self._held.items():
            if numbers.coming_round != round:
                numbers.move_on()
                numbers.coming_round = round
                numbers.coming = self._thread.submit(self._draw, request, numbers.spare, round)

    def wait(self) -> None:
        """Return when nothing is being drawn."""
        for numbers in self._held.values():
            if numbers.coming:
                numbers.coming.result()

    def _take(self, request: _Request, count: int, round: int) -> Tensor:
        """The numbers of a round for a block, once, (1, 1, count); the caller may alter them."""
        if request not in self._held:
            self.wait()
            # A request with other options replaces the earlier one of its purpose.
            self._held = {held: kept for held, kept in self._held.items() if held[0] != request[0]}
            both = torch.empty(2, 1, 1, self._dimension, dtype=request[-1])
            self._held[request] = _Numbers(both[0], both[1])
        numbers = self._held[request]
        if numbers.coming_round == round:
            numbers.move_on()
        if numbers.round != round or self.at < numbers.taken:
            self.wait()
            self._draw(request, numbers.current, round)
            numbers.round = round
        numbers.taken = self.at + count
        return numbers.current[..., self.at : numbers.taken]

    def _draw(self, request: _Request, out: Tensor, round: int) -> None:
        purpose, deviation, _ = request
        if deviation is None:
            # 1 · (u · 1 + 0) is u to the bit.
            self._large.scale_(out.fill_(1.0), 0.0, 1.0, purpose, round)
        else:
            self._large.add_normal_(out.zero_(), deviation, purpose, round)
