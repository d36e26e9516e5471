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
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sottovoce.errors import SottovoceError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.algorithms import AES256

_BLOCK_BYTES = 1 << 16
"""Draws are made in blocks of about this many bytes, so that no second tensor is stored."""

_SHORT_ROW = 4096
"""Rows of up to this many bytes are encrypted many at a time."""

_CIPHER_BLOCK = 16


class InsecureSeedWarning(UserWarning):
    """Whoever knows the seed knows every private number of every agent."""


class Streams(ABC):
    """Private random numbers for `runs` x `agents`, addressed by purpose and round."""

    def __init__(self, runs: range, agents: Sequence[int], device: torch.device) -> None:
        self.runs = runs
        self.agents = tuple(agents)
        self.device = device

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

    On a GPU the simulator draws from the device's Philox generator instead of the cipher: quick,
    but no protection against prediction. A simulator holds every agent's secrets in one process
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


class CipherStreams(Streams):
    """AES-256 in counter mode: one key for each purpose, one counter block for each 16 bytes.

    A counter block is (round, run, agent, index), so that any number can be had without those
    before it. Short rows of many streams are one encryption of all their counter blocks; a long row
    is the cipher's own counter mode from its first block. Both give the same numbers.
    """

    def __init__(
        self, runs: range, agents: Sequence[int], insecure_seed: int | None = None
    ) -> None:
        super().__init__(runs, agents, torch.device("cpu"))
        self._master = os.urandom(32) if insecure_seed is None else _digest(32, insecure_seed)
        self._run = np.repeat(np.asarray(runs, dtype=">u4"), len(self.agents))
        self._agent = np.tile(np.asarray(self.agents, dtype=">u4"), len(runs))
        self._keys: dict[tuple[str, int, torch.dtype], AES256] = {}

    def __repr__(self) -> str:
        return f"CipherStreams(runs={len(self.runs)}, agents={len(self.agents)})"

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        out = torch.empty(len(self.runs), len(self.agents), count, dtype=dtype)
        for block, first in self._blocks(out):
            self._fill(block, first, purpose, round)
        return out

    def scale_(self, tensor: Tensor, low: float, high: float, purpose: str, round: int) -> None:
        width = high - low
        for rows, draws in self._drawn(tensor, purpose, round):
            rows.mul_(draws.mul_(width).add_(low))

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        for rows, draws in self._drawn(tensor, purpose, round):
            rows.add_(_to_normal(draws).mul_(deviation))

    def _blocks(self, tensor: Tensor) -> Iterator[tuple[Tensor, int]]:
        """Some rows at a time of (runs, agents, d), with the number of their first stream."""
        rows = tensor.view(-1, tensor.shape[-1])
        size = max(1, _BLOCK_BYTES // max(1, rows.shape[1] * rows.element_size()))
        for first in range(0, len(rows), size):
            yield rows[first : first + size], first

    def _drawn(self, tensor: Tensor, purpose: str, round: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs (rows of the tensor, fresh uniform numbers for them) that cover the tensor."""
        scratch: Tensor | None = None
        for rows, first in self._blocks(tensor):
            scratch = torch.empty_like(rows) if scratch is None else scratch[: len(rows)]
            self._fill(scratch, first, purpose, round)
            yield rows, scratch

    def _fill(self, out: Tensor, first: int, purpose: str, round: int) -> None:
        """Overwrite the rows of `out` by the numbers of the streams `first`, `first` + 1, ..."""
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.modes import CTR, ECB

        size = out.shape[1] * out.element_size()
        streams = slice(first, first + len(out))
        count = -(-size // _CIPHER_BLOCK) if size <= _SHORT_ROW else 1
        counters = np.empty((len(out), count, 4), dtype=">u4")
        counters[..., 0] = round
        counters[..., 1] = self._run[streams, None]
        counters[..., 2] = self._agent[streams, None]
        counters[..., 3] = np.arange(count)
        key = self._key(purpose, out)
        rows = out.view(torch.uint8).numpy()
        if size <= _SHORT_ROW:
            stream = Cipher(key, ECB()).encryptor().update(counters.tobytes())
            rows[:] = np.frombuffer(stream, np.uint8).reshape(len(out), -1)[:, :size]
        else:
            zeros = bytes(size)
            for row, counter in zip(rows, counters, strict=True):
                encryptor = Cipher(key, CTR(counter.tobytes())).encryptor()
                encryptor.update_into(zeros, memoryview(row))
        _bits_to_uniform_(out)

    def _key(self, purpose: str, out: Tensor) -> "AES256":
        """Every purpose, count of numbers and type has a key of its own: no block serves twice."""
        address = (purpose, out.shape[1], out.dtype)
        if address not in self._keys:
            from cryptography.hazmat.primitives.ciphers.algorithms import AES256

            self._keys[address] = AES256(_digest(32, self._master, *address))
        return self._keys[address]


class DeviceStreams(Streams):
    """Philox numbers on the device of the simulation, seeded anew for each run, purpose and round.

    For studies only: the generator is not cryptographic.
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
        self._generator = torch.Generator(device)

    def __repr__(self) -> str:
        return f"DeviceStreams(runs={len(self.runs)}, agents={len(self.agents)})"

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        out = torch.empty(len(self.runs), len(self.agents), count, dtype=dtype, device=self.device)
        for row, run in enumerate(self.runs):
            out[row].uniform_(generator=self._seeded(run, purpose, round))
        return out

    def scale_(self, tensor: Tensor, low: float, high: float, purpose: str, round: int) -> None:
        scratch = torch.empty_like(tensor[0])
        for row, run in enumerate(self.runs):
            generator = self._seeded(run, purpose, round)
            tensor[row].mul_(scratch.uniform_(low, high, generator=generator))

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        scratch = torch.empty_like(tensor[0])
        for row, run in enumerate(self.runs):
            generator = self._seeded(run, purpose, round)
            tensor[row].add_(scratch.normal_(0.0, deviation, generator=generator))

    def _seeded(self, run: int, purpose: str, round: int) -> torch.Generator:
        seed = int.from_bytes(_digest(8, self._secret, run, purpose, round), "little")
        return self._generator.manual_seed(seed >> 1)


def _digest(size: int, *parts: object) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=size, person=b"sottovoce").digest()


def _bits_to_uniform_(out: Tensor) -> None:
    """Read random bits as numbers in [0, 1): a mantissa, the exponent of [1, 2), minus 1."""
    if out.dtype == torch.float64:
        out.view(torch.int64).bitwise_and_((1 << 52) - 1).bitwise_or_(1023 << 52)
    elif out.dtype == torch.float32:
        out.view(torch.int32).bitwise_and_((1 << 23) - 1).bitwise_or_(127 << 23)
    else:
        raise SottovoceError(f"private numbers are float32 or float64, not {out.dtype}")
    out.sub_(1.0)


def _to_normal(uniform: Tensor) -> Tensor:
    """Gaussian numbers by the inverse distribution function; the half step keeps 0 out."""
    step = 2.0**-53 if uniform.dtype == torch.float64 else 2.0**-24
    normal: Tensor = torch.special.ndtri(uniform + step)
    return normal
