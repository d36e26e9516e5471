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

_BUFFERED_BYTES = 4096
"""Small draws are made for many rounds at a time, this many bytes a stream."""

_BLOCK_BYTES = 1 << 22
"""Large draws are made in blocks of about this many bytes, so that no second tensor is stored."""


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
        """`count` numbers in [0, 1) for each run and agent: (runs, agents, count), not to be altered."""

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
    """ChaCha20 keystreams: one key for each (run, agent), one nonce for each (purpose, rounds)."""

    def __init__(
        self, runs: range, agents: Sequence[int], insecure_seed: int | None = None
    ) -> None:
        super().__init__(runs, agents, torch.device("cpu"))
        pairs = [(run, agent) for run in runs for agent in self.agents]
        if insecure_seed is None:
            material = os.urandom(32 * len(pairs))
            self._keys = [material[at : at + 32] for at in range(0, len(material), 32)]
        else:
            self._keys = [_digest(32, insecure_seed, run, agent) for run, agent in pairs]
        self._buffers: dict[tuple[str, int, torch.dtype], tuple[int, Tensor]] = {}

    def __repr__(self) -> str:
        return f"CipherStreams(runs={len(self.runs)}, agents={len(self.agents)})"

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        rounds = max(1, _BUFFERED_BYTES // (count * dtype.itemsize))
        chunk, position = divmod(round, rounds)
        key = (purpose, count, dtype)
        held, buffer = self._buffers.get(key, (-1, torch.empty(0)))
        if held != chunk:
            if not len(buffer):
                buffer = torch.empty(len(self._keys), rounds * count, dtype=dtype)
            self._fill(buffer, 0, key, chunk)
            self._buffers[key] = (chunk, buffer)
        shape = (len(self.runs), len(self.agents), rounds, count)
        return buffer.view(shape)[:, :, position]

    def scale_(self, tensor: Tensor, low: float, high: float, purpose: str, round: int) -> None:
        width = high - low
        if _is_small(tensor):
            draws = self.uniform(purpose, round, tensor.shape[-1], tensor.dtype)
            tensor.mul_(draws.mul(width).add_(low))
            return
        for rows, draws in self._blocks(tensor, purpose, round):
            rows.mul_(draws.mul_(width).add_(low))

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        if _is_small(tensor):
            draws = self.normal(purpose, round, tensor.shape[-1], tensor.dtype)
            tensor.add_(draws.mul_(deviation))
            return
        for rows, draws in self._blocks(tensor, purpose, round):
            rows.add_(_to_normal(draws).mul_(deviation))

    def _blocks(
        self, tensor: Tensor, purpose: str, round: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
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

    def _fill(
        self, out: Tensor, first: int, key: tuple[str, int, torch.dtype], chunk: int
    ) -> None:
        """Overwrite the rows of `out` by uniform numbers of the streams `first`, `first` + 1, ..."""
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

        nonce = bytes(4) + _digest(7, *key) + chunk.to_bytes(5, "little")
        rows = memoryview(out.view(torch.uint8).numpy())  # type: ignore[arg-type]
        zeros = bytes(rows.shape[1])  # type: ignore[index]
        for row, stream in enumerate(self._keys[first : first + len(out)]):
            cipher = Cipher(ChaCha20(stream, nonce), None).encryptor()
            cipher.update_into(zeros, rows[row : row + 1].cast("B"))
        _bits_to_uniform_(out)


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
        out = torch.empty(
            len(self.runs), len(self.agents), count, dtype=dtype, device=self.device
        )
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


def _is_small(tensor: Tensor) -> bool:
    """Whether an agent's row is short enough to draw it for several rounds at once."""
    return 2 * tensor.shape[-1] * tensor.element_size() <= _BUFFERED_BYTES


def _digest(size: int, *parts: object) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=size, person=b"sottovoce").digest()


def _bits_to_uniform_(out: Tensor) -> None:
    """Read random bits as numbers in [0, 1), in place: random mantissa, exponent of [1, 2), minus 1."""
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
    return torch.special.ndtri(uniform + step)
