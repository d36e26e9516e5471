"""Numbers for studies on a GPU, from a counter-based generator that is not cryptographic."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sottovoce.kernels import philox, usable
from sottovoce.kernels.noise import Terms, add_normals_
from sottovoce.randomness.streams import Streams, digest, master_key, to_normal

_BLOCK_BYTES = 1 << 28
"""Draws are made in blocks of about this many bytes: many at once are faster on a device."""


class DeviceStreams(Streams):
    """Philox numbers on the device of the simulation: one key for each purpose, as in the cipher.

    For studies only: the generator is not cryptographic. The counters are (round, run, agent,
    block), see `sottovoce.kernels.philox`.
    """

    def __init__(
        self, runs: range, agents: Sequence[int], insecure_seed: int | None, device: torch.device
    ) -> None:
        super().__init__(runs, agents, device)
        self._secret = master_key(insecure_seed)

    def key(self, purpose: str, count: int, dtype: torch.dtype) -> int:
        """The generator's key for rows of `count` numbers of a type."""
        key = digest(8, self._secret, purpose, count, str(dtype))
        return int.from_bytes(key, "little") >> 1

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        key = self.key(purpose, count, dtype)
        return philox.uniform(self.runs, self.agents, count, dtype, key, round, self.device)

    def scale_(self, tensor: Tensor, low: float, high: float, purpose: str, round: int) -> None:
        if usable(self.device) and tensor.dtype == torch.float32:
            key = self.key(purpose, tensor.shape[-1], tensor.dtype)
            philox.scale_(tensor, self.runs, self.agents, (low, high), key, round)
            return
        for rows, draws in self._drawn(tensor, purpose, round):
            rows.mul_(draws.mul_(high - low).add_(low))

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        if usable(self.device) and tensor.dtype == torch.float32:
            self._add_in_kernel(tensor, deviation, purpose, round)
            return
        for rows, draws in self._drawn(tensor, purpose, round):
            rows.add_(to_normal(draws), alpha=deviation)

    def _add_in_kernel(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        agents = torch.tensor(list(self.agents), device=self.device)
        key = torch.full_like(agents, self.key(purpose, tensor.shape[-1], tensor.dtype))
        clock, row = torch.full_like(agents, round), torch.arange(len(agents), device=self.device)
        sizes = torch.full_like(agents, deviation, dtype=torch.float64)
        terms = Terms(row, key, clock, agents, sizes, torch.float32)
        add_normals_(tensor, terms, self.runs)

    def _drawn(self, tensor: Tensor, purpose: str, round: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs (some runs of the tensor, fresh uniform numbers for them) that cover the tensor."""
        size = max(1, _BLOCK_BYTES // max(1, tensor[0].nbytes))
        for first in range(0, len(self.runs), size):
            runs = slice(first, first + size)
            streams = self.part(runs, slice(None))
            yield tensor[runs], streams.uniform(purpose, round, tensor.shape[-1], tensor.dtype)
