"""Where private numbers come from: one independent stream for each run and agent.

A private number (stepsize, mixing coefficient, noise, choice of samples) must be unpredictable for
whoever saw any number of others. torch's CPU generator is a Mersenne Twister: its future follows
from its outputs, and `seed + rank` gives every agent everybody's numbers. Here they come from
AES-256 in counter mode under a key of the operating system, each agent process having its own key.

A stream is addressed, not consumed: the numbers of (run, agent, purpose, round) do not depend on
what was drawn before, on the other agents, or on how runs are divided into chunks. A stopped run
therefore resumes from its round alone.
"""

import hashlib
import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.errors import SottovoceError
from sottovoce.kernels import philox

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

_BLOCK_BYTES = 1 << 17
"""Draws are made in blocks of about this many bytes, so that no second tensor is stored."""

_DEVICE_BLOCK_BYTES = 1 << 28
"""The same on a device, where many numbers at once are quicker."""

_CIPHER_BLOCK = 16

_FORMATS = {
    torch.float64: (np.int64, 52, 1023, np.float64),
    torch.float32: (np.int32, 23, 127, np.float32),
}
"""The integer of the same size, the bits of the mantissa, the exponent of [1, 2), the number."""

_Block = NDArray[np.floating[Any]]
_Address = tuple[str, int, torch.dtype]


class InsecureSeedWarning(UserWarning):
    """Whoever knows the seed knows every private number of every agent."""


class Streams(ABC):
    """Private random numbers for `runs` x `agents`, addressed by purpose and round."""

    def __init__(self, runs: range, agents: Sequence[int], device: torch.device) -> None:
        self.runs = runs
        self.agents = tuple(agents)
        self.device = device

    @abstractmethod
    def part(self, runs: slice, agents: slice) -> "Streams":
        """The same numbers for some runs and agents alone."""

    @abstractmethod
    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """`count` numbers in [0, 1) for each run and agent: (runs, agents, count)."""

    @abstractmethod
    def scale_(self, tensor: Tensor, low: float, high: float, purpose: str, round: int) -> None:
        """Multiply each entry of (runs, agents, d) by its own number uniform on [low, high)."""

    def normal(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """`count` standard normal numbers for each run and agent: (runs, agents, count)."""
        return _to_normal(self.uniform(purpose, round, count, dtype))

    @abstractmethod
    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        """Add to each entry of (runs, agents, d) its own Gaussian number of this deviation."""

    def integers(self, purpose: str, round: int, count: int, high: int | Tensor) -> Tensor:
        """`count` whole numbers in [0, high) for each run and agent; `high` may differ by agent.

        A tensor `high` has shape (agents, 1). The bias is below high / 2**52.
        """
        return (self.uniform(purpose, round, count) * high).long()


def private_streams(
    runs: int | range,
    agents: int | Sequence[int],
    *,
    insecure_seed: int | None = None,
    device: torch.device | str = "cpu",
) -> Streams:
    """Streams keyed by the operating system, or by `insecure_seed` for a study to be repeated.

    On a GPU the simulator draws from a Philox generator instead of the cipher: quick, but no
    protection against prediction. A simulator holds every agent's secrets in one process
    anyway; an agent of its own (`sottovoce.distributed`) always uses the cipher.
    """
    device = torch.device(device)
    runs = range(runs) if isinstance(runs, int) else runs
    agents = range(agents) if isinstance(agents, int) else agents
    if insecure_seed is not None and not isinstance(insecure_seed, int):
        raise SottovoceError(f"insecure_seed is {insecure_seed!r}; accepted: a whole number")
    if device.type == "cpu":
        return CipherStreams(runs, agents, insecure_seed)
    return DeviceStreams(runs, agents, insecure_seed, device)


def warn_about_seed() -> None:
    """Say what `insecure_seed` gives away; real agents call this, studies need not."""
    warnings.warn(
        "insecure_seed makes every private number predictable: whoever knows the seed recovers "
        "every agent's stepsizes, coefficients and gradients. Use it for studies only.",
        InsecureSeedWarning,
        stacklevel=3,
    )


def require_jitter(private_start: float) -> None:
    """Refuse a standard deviation of private starting points that is none."""
    if not 0 <= private_start < float("inf"):
        raise SottovoceError(
            f"private_start is {private_start}; it must be finite and not negative"
        )


class _Desk:
    """Where counter blocks are laid out and encrypted, used again and again."""

    def __init__(self) -> None:
        self._memory = np.empty(0, dtype=">u4")
        self._counters = self._memory.reshape(0, 0, 4)
        self._stream = np.empty(0, dtype=np.uint8)
        self._written: dict[str, object] = {}

    def lay_out(self, rows: int, blocks: int) -> NDArray[np.uint32]:
        """Room for counter blocks, (rows, blocks, 4), with what was written there before."""
        if self._counters.shape != (rows, blocks, 4):
            size = rows * blocks
            if 4 * size > len(self._memory):
                self._memory = np.empty(4 * size, dtype=">u4")
                # The library asks for room for one block more than it writes.
                self._stream = np.empty((size + 1) * _CIPHER_BLOCK, dtype=np.uint8)
            self._counters = self._memory[: 4 * size].reshape(rows, blocks, 4)
            self._written.clear()
        return self._counters

    def lacks(self, part: str, values: object) -> bool:
        """Whether a part of the counter blocks has yet to be written with these values."""
        lacking = self._written.get(part) != values
        self._written[part] = values
        return lacking

    def encrypt(self, cipher: "CipherContext") -> NDArray[np.uint8]:
        """The counter blocks under the cipher: (rows, bytes), overwritten by the next ones."""
        cipher.update_into(self._counters.reshape(-1).view(np.uint8).data, self._stream.data)
        return self._stream[: self._counters.nbytes].reshape(len(self._counters), -1)


class CipherStreams(Streams):
    """AES-256 in counter mode: one key for each purpose, one counter block for each 16 bytes.

    A counter block is (round, run, agent, index), so that any number can be had without those
    before it. The counter blocks of many streams, or a part of a long one's, are one encryption.
    """

    def __init__(
        self, runs: range, agents: Sequence[int], insecure_seed: int | None = None
    ) -> None:
        super().__init__(runs, agents, torch.device("cpu"))
        self._master = os.urandom(32) if insecure_seed is None else _digest(32, insecure_seed)
        self._run = np.repeat(np.asarray(runs, dtype=">u4"), len(self.agents))
        self._agent = np.tile(np.asarray(self.agents, dtype=">u4"), len(runs))
        self._ciphers: dict[_Address, CipherContext] = {}
        self._ahead: dict[_Address, tuple[int, Tensor]] | None = {}
        self._desk = _Desk()

    def __repr__(self) -> str:
        return f"CipherStreams(runs={len(self.runs)}, agents={len(self.agents)})"

    def part(self, runs: slice, agents: slice) -> "CipherStreams":
        part = CipherStreams(self.runs[runs], self.agents[agents])
        part._master, part._ciphers, part._desk = self._master, self._ciphers, self._desk
        part._ahead = None
        return part

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        one_round = len(self._run) * -(-count * dtype.itemsize // _CIPHER_BLOCK) * _CIPHER_BLOCK
        rounds = max(1, _BLOCK_BYTES // max(1, one_round))
        if rounds == 1 or self._ahead is None:
            return self._rounds(purpose, round, 1, count, dtype)[0]
        # Few numbers a round: those of many rounds cost hardly more than those of one.
        first, numbers = self._ahead.get((purpose, count, dtype), (-1, None))
        if numbers is None or not first <= round < first + rounds:
            first = round - round % rounds
            numbers = self._rounds(purpose, first, rounds, count, dtype)
            self._ahead[purpose, count, dtype] = first, numbers
        return numbers[round - first].clone()

    def _rounds(
        self, purpose: str, first: int, rounds: int, count: int, dtype: torch.dtype
    ) -> Tensor:
        """The numbers of some rounds in a row: (rounds, runs, agents, count)."""
        out = torch.empty(rounds, len(self.runs), len(self.agents), count, dtype=dtype)
        for block, draws in self._drawn(out, purpose, first, rounds):
            block[:] = draws
        return out

    def scale_(self, tensor: Tensor, low: float, high: float, purpose: str, round: int) -> None:
        width = high - low
        for block, draws in self._drawn(tensor, purpose, round):
            draws *= width
            draws += low
            block *= draws

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        for block, draws in self._drawn(tensor, purpose, round):
            block += _to_normal(torch.from_numpy(draws)).mul_(deviation).numpy()

    def _drawn(
        self, tensor: Tensor, purpose: str, round: int, rounds: int = 1
    ) -> Iterator[tuple[_Block, _Block]]:
        """Pairs (block of the tensor, fresh uniform numbers for it) that cover the tensor.

        tensor: (rounds, runs, agents, d), the rounds counting from `round`. A block is a few whole
        rows or a part of one; the numbers are overwritten by those of the next block.
        """
        rows = tensor.view(-1, tensor.shape[-1]).numpy()
        each = _CIPHER_BLOCK // rows.itemsize
        across, at_once = -(-rows.shape[1] // each), max(1, _BLOCK_BYTES // _CIPHER_BLOCK)
        width, height = max(1, min(across, at_once)), max(1, at_once // max(1, across))
        cipher, desk = self._cipher(purpose, rows.shape[1], tensor.dtype), self._desk
        for top in range(0, len(rows), height):
            for left in range(0, across, width):
                block = rows[top : top + height, left * each : (left + width) * each]
                wide = min(width, across - left)
                counters = desk.lay_out(len(block), wide)
                number = np.arange(top, top + len(block))
                if desk.lacks("round", (round, rounds, top if rounds > 1 else 0)):
                    counters[..., 0] = round + number[:, None] // len(self._run)
                if desk.lacks("streams", (self, rounds, top)):
                    stream = number % len(self._run)
                    counters[..., 1] = self._run[stream, None]
                    counters[..., 2] = self._agent[stream, None]
                if desk.lacks("index", left):
                    counters[..., 3] = np.arange(left, left + wide)
                bits = desk.encrypt(cipher)[:, : block.shape[1] * rows.itemsize]
                yield block, _to_uniform(bits, tensor.dtype)

    def _cipher(self, purpose: str, count: int, dtype: torch.dtype) -> "CipherContext":
        """Every purpose, count of numbers and type has a key of its own: no block serves twice."""
        address = (purpose, count, dtype)
        if address not in self._ciphers:
            from cryptography.hazmat.primitives.ciphers import Cipher
            from cryptography.hazmat.primitives.ciphers.algorithms import AES256
            from cryptography.hazmat.primitives.ciphers.modes import ECB

            key = AES256(_digest(32, self._master, *address))
            self._ciphers[address] = Cipher(key, ECB()).encryptor()
        return self._ciphers[address]


class DeviceStreams(Streams):
    """Philox numbers on the device of the simulation: one key for each purpose, as in the cipher.

    For studies only: the generator is not cryptographic. The counters are (round, run, agent,
    block), see `sottovoce.kernels.philox`.
    """

    def __init__(
        self,
        runs: range,
        agents: Sequence[int],
        insecure_seed: int | None,
        device: torch.device,
    ) -> None:
        super().__init__(runs, agents, device)
        self._secret = os.urandom(32) if insecure_seed is None else _digest(32, insecure_seed)

    def __repr__(self) -> str:
        return f"DeviceStreams(runs={len(self.runs)}, agents={len(self.agents)})"

    def part(self, runs: slice, agents: slice) -> "DeviceStreams":
        part = DeviceStreams(self.runs[runs], self.agents[agents], None, self.device)
        part._secret = self._secret
        return part

    def key(self, purpose: str, count: int, dtype: torch.dtype) -> int:
        """The generator's key for rows of `count` numbers of a type."""
        digest = _digest(8, self._secret, purpose, count, str(dtype))
        return int.from_bytes(digest, "little") >> 1

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        key = self.key(purpose, count, dtype)
        return philox.uniform(self.runs, self.agents, count, dtype, key, round, self.device)

    def scale_(self, tensor: Tensor, low: float, high: float, purpose: str, round: int) -> None:
        for rows, draws in self._drawn(tensor, purpose, round):
            rows.mul_(draws.mul_(high - low).add_(low))

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        for rows, draws in self._drawn(tensor, purpose, round):
            rows.add_(_to_normal(draws), alpha=deviation)

    def _drawn(self, tensor: Tensor, purpose: str, round: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs (some runs of the tensor, fresh uniform numbers for them) that cover the tensor."""
        size = max(1, _DEVICE_BLOCK_BYTES // max(1, tensor[0].nbytes))
        for first in range(0, len(self.runs), size):
            runs = slice(first, first + size)
            streams = self.part(runs, slice(None))
            yield tensor[runs], streams.uniform(purpose, round, tensor.shape[-1], tensor.dtype)


def _digest(size: int, *parts: object) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=size, person=b"sottovoce").digest()


def _to_uniform(bits: NDArray[np.uint8], dtype: torch.dtype) -> _Block:
    """Read random bytes as numbers in [0, 1), in place: a mantissa in [1, 2), minus 1."""
    if dtype not in _FORMATS:
        raise SottovoceError(f"private numbers are float32 or float64, not {dtype}")
    integer, digits, exponent, kind = _FORMATS[dtype]
    mantissa = bits.view(integer)
    mantissa &= (1 << digits) - 1
    mantissa |= exponent << digits
    numbers: _Block = mantissa.view(kind)
    numbers -= 1.0
    return numbers


def _to_normal(uniform: Tensor) -> Tensor:
    """Make uniform numbers Gaussian in place, √2 erfinv(2u - 1); the half step keeps 0 out."""
    step = 2.0**-52 if uniform.dtype == torch.float64 else 2.0**-23
    return uniform.mul_(2.0).add_(step - 1.0).erfinv_().mul_(math.sqrt(2.0))
