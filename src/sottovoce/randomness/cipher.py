"""Private numbers from AES-256 in counter mode, under a key of the operating system."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.errors import SottovoceError
from sottovoce.randomness.ahead import Ahead
from sottovoce.randomness.streams import Streams, digest, master_key, terms_of, to_normal

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

_BLOCK_BYTES = 1 << 18
"""Draws are made in blocks of about this many bytes, so that no second tensor is stored."""

_AHEAD_BYTES, _FEWEST_ROUNDS, _MOST_ROUNDS = 1 << 17, 4, 64
"""Bytes held of numbers of many rounds; of how many rounds at least, or none, and at most."""

_CIPHER_BLOCK = 16
_SERIALS = count()

_FORMATS = {
    torch.float64: (np.int64, 52, 1023, np.float64),
    torch.float32: (np.int32, 23, 127, np.float32),
}
"""The integer of the same size, the bits of the mantissa, the exponent of [1, 2), the number."""

_Block = NDArray[np.floating[Any]]
_Address = tuple[str, int, torch.dtype]


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
    key: 32 secret bytes in place of fresh ones of the operating system.
    """

    def __init__(
        self,
        runs: range,
        agents: Sequence[int],
        insecure_seed: int | None = None,
        *,
        key: bytes | None = None,
    ) -> None:
        super().__init__(runs, agents, torch.device("cpu"))
        self._master = key or master_key(insecure_seed)
        self._ciphers: dict[_Address, CipherContext] = {}
        self._ahead: dict[tuple[object, ...], Ahead] | None = {}
        self._desk = _Desk()
        self._number()

    def _sharing(self, runs: range, agents: Sequence[int]) -> Self:
        part = super()._sharing(runs, agents)
        part._ahead = None
        part._number()
        return part

    def _number(self) -> None:
        """Lay out run and agent of every stream; the ciphers and the desk may be shared."""
        self._run = np.repeat(_numbers(self.runs), len(self.agents))
        self._agent = np.tile(_numbers(self.agents), len(self.runs))
        # A desk remembers whose counters it holds by number: a reference would make a cycle.
        self._serial = next(_SERIALS)

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        if self._rounds_ahead(len(self._run) * count * dtype.itemsize) == 1:
            return self.rounds(purpose, round, 1, count, dtype)[0]
        return self._held(purpose, round, count, dtype).clone()

    def _held(self, purpose: str, round: int, count: int, dtype: torch.dtype) -> Tensor:
        """The same numbers, not to be altered, from those of many rounds."""
        each = len(self._run) * count * dtype.itemsize

        def make(first: int, rounds: int) -> Tensor:
            return self.rounds(purpose, first, rounds, count, dtype)

        return self.ahead((purpose, count, dtype), each, round, make)

    def ahead(
        self, what: tuple[object, ...], each: int, round: int, make: Callable[[int, int], Tensor]
    ) -> Tensor:
        rounds = self._rounds_ahead(each)
        if rounds == 1 or self._ahead is None:
            return make(round, 1)[0]
        if what not in self._ahead:
            self._ahead[what] = Ahead(rounds)
        return self._ahead[what].at(round, make)

    def _rounds_ahead(self, each: int) -> int:
        """How many rounds of numbers are held, where one takes `each` bytes."""
        rounds = _AHEAD_BYTES // max(1, each)
        return 1 if self._ahead is None or rounds < _FEWEST_ROUNDS else min(rounds, _MOST_ROUNDS)

    def rounds(
        self, purpose: str, first: int, rounds: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        out = torch.empty(rounds, len(self.runs), len(self.agents), count, dtype=dtype)
        for block, draws in self._drawn(out, purpose, first, rounds):
            block[:] = draws
        return out

    def scale_(self, tensor: Tensor, low: float, high: float, purpose: str, round: int) -> None:
        width = high - low
        if self._rounds_ahead(tensor.nbytes) > 1:
            held = self._held(purpose, round, tensor.shape[-1], tensor.dtype)
            tensor.mul_((held * width).add_(low))
            return
        for block, draws in self._drawn(tensor, purpose, round):
            draws *= width
            draws += low
            block *= draws

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        for block, draws in self._drawn(tensor, purpose, round):
            block += to_normal(torch.from_numpy(draws)).mul_(deviation).numpy()

    def exact_normal(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        if self._rounds_ahead(len(self._run) * count * dtype.itemsize) > 1:
            return super().exact_normal(purpose, round, count, dtype)
        total = torch.empty(len(self.runs), len(self.agents), count, dtype=dtype)
        first, *others = (self._drawn(total, term, round) for term in terms_of(purpose))
        # The terms of a block meet in the cache; each overwrites the numbers of the one before.
        for block, draws in first:
            block[:] = to_normal(torch.from_numpy(draws)).numpy()
            for term in others:
                block += to_normal(torch.from_numpy(next(term)[1])).numpy()
            block *= 0.5
        return total

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
                if desk.lacks("round", (round, rounds, top if rounds > 1 else 0)):
                    counters[..., 0] = round
                    if rounds > 1:
                        number = np.arange(top, top + len(block))
                        counters[..., 0] += (number // len(self._run)).astype(">u4")[:, None]
                if desk.lacks("streams", (self._serial, rounds, top)):
                    stream = np.arange(top, top + len(block)) % len(self._run)
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

            key = AES256(digest(32, self._master, *address))
            self._ciphers[address] = Cipher(key, ECB()).encryptor()
        return self._ciphers[address]


def _numbers(given: Sequence[int]) -> NDArray[np.uint32]:
    """Numbers of runs or agents as the counter blocks hold them."""
    if isinstance(given, range):
        return np.arange(given.start, given.stop, given.step).astype(">u4")
    return np.asarray(given, dtype=">u4")


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
