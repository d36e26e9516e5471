"""Where private numbers come from: one independent stream for each run and agent.

A private number (stepsize, mixing coefficient, noise, choice of samples) must be unpredictable for
whoever saw any number of others. torch's CPU generator is a Mersenne Twister: its future follows
from its outputs, and `seed + rank` gives every agent everybody's numbers. Here each agent's stream
is ChaCha20 under a key of its own, drawn from the operating system.

A stream is addressed, not consumed: the numbers of (run, agent, purpose, round) do not depend on
what was drawn before, on the other agents, or on how runs are divided into chunks. A stopped run
therefore resumes from its round alone.
"""

import hashlib
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sottovoce.errors import SottovoceError

_CHUNK_BYTES = 4096
"""Rounds share a nonce as long as their numbers fit into this many bytes a stream."""

_BLOCK_BYTES = 1 << 16
"""Large draws are made in blocks of about this many bytes, so that no second tensor is stored."""

_CIPHER_BLOCK = 64


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
        """`count` numbers in [0, 1) a run and agent, not to be altered: (runs, agents, count)."""

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
    hold: int = _CHUNK_BYTES,
) -> Streams:
    """Streams keyed by the operating system, or by `insecure_seed` for a study to be repeated.

    hold: how many bytes a stream and purpose may keep of small draws made ahead, a matter of speed
    and memory alone; `hold_beside` chooses it for states of a given size.

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
        return CipherStreams(runs, agents, insecure_seed, hold)
    return DeviceStreams(runs, agents, insecure_seed, device)


def hold_beside(row_bytes: int, streams: int) -> int:
    """Bytes a stream and purpose may hold, so that they stay small beside states of `row_bytes`.

    Short rows are cheap to store and their draws dear to make one by one, so they may hold more.
    """
    wanted = row_bytes // 6 if row_bytes > 256 else (1 << 26) // streams
    return max(128, min(wanted, _CHUNK_BYTES))


def warn_about_seed() -> None:
    """Say what `insecure_seed` gives away; real agents call this, studies need not."""
    warnings.warn(
        "insecure_seed makes every private number predictable: whoever knows the seed recovers "
        "every agent's stepsizes, coefficients and gradients. Use it for studies only.",
        InsecureSeedWarning,
        stacklevel=3,
    )


class CipherStreams(Streams):
    """ChaCha20 keystreams: one key for each (run, agent), one nonce for each (purpose, rounds)."""

    def __init__(
        self,
        runs: range,
        agents: Sequence[int],
        insecure_seed: int | None = None,
        hold: int = _CHUNK_BYTES,
    ) -> None:
        super().__init__(runs, agents, torch.device("cpu"))
        pairs = [(run, agent) for run in runs for agent in self.agents]
        if insecure_seed is None:
            material = os.urandom(32 * len(pairs))
            self._keys = [material[at : at + 32] for at in range(0, len(material), 32)]
        else:
            self._keys = [_digest(32, insecure_seed, run, agent) for run, agent in pairs]
        self._hold = hold
        self._held: dict[_Purpose, tuple[int, Tensor]] = {}

    def __repr__(self) -> str:
        return f"CipherStreams(runs={len(self.runs)}, agents={len(self.agents)})"

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        key = (purpose, count, dtype)
        rounds = self._rounds_held(count, dtype)
        # Counted within its chunk, so that what is held never reaches into the next one's rounds.
        start = round - round % _rounds_in_chunk(count, dtype) % rounds
        held, buffer = self._held.get(key, (-1, None))
        if buffer is None:
            buffer = torch.empty(len(self._keys), rounds * count, dtype=dtype)
        if held != start:
            self._fill(buffer, 0, key, start)
            self._held[key] = (start, buffer)
        shape = (len(self.runs), len(self.agents), rounds, count)
        return buffer.view(shape)[:, :, round - start]

    def scale_(self, tensor: Tensor, low: float, high: float, purpose: str, round: int) -> None:
        width = high - low
        if self._rounds_held(tensor.shape[-1], tensor.dtype) > 1:
            draws = self.uniform(purpose, round, tensor.shape[-1], tensor.dtype)
            tensor.mul_(draws.mul(width).add_(low))
            return
        for rows, draws in self._blocks(tensor, purpose, round):
            rows.mul_(draws.mul_(width).add_(low))

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        if self._rounds_held(tensor.shape[-1], tensor.dtype) > 1:
            draws = self.normal(purpose, round, tensor.shape[-1], tensor.dtype)
            tensor.add_(draws.mul_(deviation))
            return
        for rows, draws in self._blocks(tensor, purpose, round):
            rows.add_(_to_normal(draws).mul_(deviation))

    def _rounds_held(self, count: int, dtype: torch.dtype) -> int:
        held = self._hold // (count * dtype.itemsize)
        return max(1, min(held, _rounds_in_chunk(count, dtype)))

    def _blocks(self, tensor: Tensor, purpose: str, round: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs (rows of the tensor, fresh uniform numbers for them) that cover the tensor."""
        count, dtype = tensor.shape[-1], tensor.dtype
        rows = tensor.view(-1, count)
        size = max(1, _BLOCK_BYTES // (count * dtype.itemsize))
        scratch = torch.empty(min(size, len(rows)), count, dtype=dtype)
        for first in range(0, len(rows), size):
            block = rows[first : first + size]
            draws = scratch[: len(block)]
            self._fill(draws, first, (purpose, count, dtype), round)
            yield block, draws

    def _fill(self, out: Tensor, first: int, key: "_Purpose", round: int) -> None:
        """Overwrite the rows of `out` by the numbers of the streams `first`, `first` + 1, ...

        A row begins with the numbers of `round` and goes on with those of the rounds after it.
        """
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

        _, count, dtype = key
        chunk, within = divmod(round, _rounds_in_chunk(count, dtype))
        block, skipped = divmod(within * count * dtype.itemsize, _CIPHER_BLOCK)
        nonce = block.to_bytes(4, "little") + _digest(7, *key) + chunk.to_bytes(5, "little")
        rows = memoryview(out.view(torch.uint8).numpy())  # type: ignore[arg-type]
        zeros, before = bytes(rows.shape[1]), bytes(skipped)  # type: ignore[index]
        for row, stream in enumerate(self._keys[first : first + len(out)]):
            cipher = Cipher(ChaCha20(stream, nonce), None).encryptor()
            if skipped:
                cipher.update(before)
            cipher.update_into(zeros, rows[row : row + 1].cast("B"))
        _bits_to_uniform_(out)


_Purpose = tuple[str, int, torch.dtype]
"""What numbers are for, how many of them a round needs, and their type: each has its own nonces."""


def _rounds_in_chunk(count: int, dtype: torch.dtype) -> int:
    return max(1, _CHUNK_BYTES // (count * dtype.itemsize))


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
