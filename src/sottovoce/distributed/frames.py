"""One message on the wire: a header, then the payload in segments; and how it is checked.

    header (64 bytes) | segment | trailer (8 bytes) | segment | trailer (8 bytes) | ...

A short payload is one segment. A long one is cut, so that the first numbers travel while the last
are computed; each segment is a transfer of its own, the header going with the first. Bytes arrive
in order, so a trailer that is there proves that everything before it is. Gloo aborts the process
when more comes than the buffer that was offered holds, so the receiving side offers room for twice
the message, and a guard behind each trailer tells whether too much came.
"""

import logging
import os
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from sottovoce.errors import MessageError

_HEADER = struct.Struct("<8sIIQIIQQI")
_TRAILER = struct.Struct("<Q")
_MAGIC = b"sottovoc"
FORMAT = 3
HEADER_BYTES = 64
TRAILER_BYTES = _TRAILER.size
GUARD_BYTES = 16
_TRAILER_MASK = 0x5AA5_C33C_0FF0_9669
DTYPES = {torch.float32: 1, torch.float64: 2}
_NUMBERS = {**DTYPES, torch.int32: 3}
"""The number of each type in a header; integers travel on masked links."""

_log = logging.getLogger(__name__)

MOST_SEGMENTS = 8
SEGMENT_BYTES = 1 << 18
"""A segment is at least this long: shorter ones cost more than they gain."""
_WHOLE_NUMBERS = 64
"""Segments begin at multiples of this: whole blocks of the cipher and lines of the cache."""


def segments(dimension: int, dtype: torch.dtype) -> list[slice]:
    """The parts of a vector that travel on their own; sender and receiver cut alike."""
    count = max(1, min(MOST_SEGMENTS, dimension * dtype.itemsize // SEGMENT_BYTES))
    size = -(-dimension // count)
    size += -size % _WHOLE_NUMBERS
    return [slice(at, min(at + size, dimension)) for at in range(0, dimension, size)]


def message_bytes(cuts: list[slice], dtype: torch.dtype) -> int:
    """How long a message is."""
    return HEADER_BYTES + int(cuts[-1].stop) * dtype.itemsize + TRAILER_BYTES * len(cuts)


class Frame:
    """A message between two agents in one byte tensor that is used again in every round.

    bytes: where it lies, (size,) or longer. gap: bytes left free behind each trailer.
    payloads: the numbers, one tensor for each segment. transfers: what travels at a time, one byte
    tensor for each segment. training, epoch: the numbers of what the message is a part of.
    """

    training = 0
    epoch = 0

    def __init__(
        self,
        sender: int,
        receiver: int,
        cuts: list[slice],
        dtype: torch.dtype,
        bytes: Tensor,
        gap: int = 0,
    ) -> None:
        self.sender, self.receiver, self.dtype, self.bytes = sender, receiver, dtype, bytes
        self.dimension = cuts[-1].stop
        self.places = places(cuts, dtype, gap)
        self.payloads = [bytes[place].view(dtype) for place in self.places]
        self.starts = [0, *(place.start for place in self.places[1:])]
        self.transfers = [
            bytes[start : place.stop + TRAILER_BYTES]
            for start, place in zip(self.starts, self.places, strict=True)
        ]
        self.size = message_bytes(cuts, dtype)

    def numbers(self) -> Tensor:
        """A copy of the payload: (d,)."""
        return torch.cat(self.payloads)

    def stamp(self, number: int, round: int) -> None:
        """Make segment `number` ready to travel: its trailer, and before the first the header."""
        if number == 0:
            facts = (_NUMBERS[self.dtype], round, self.sender, self.receiver, self.dimension)
            part_of = (self.training, self.epoch)
            _write(self.bytes, 0, _HEADER.pack(_MAGIC, FORMAT, *facts, *part_of))
        _write(self.bytes, self.places[number].stop, _trailer(number, round))


class Inbox(Frame):
    """Where the message of one neighbour arrives, and the check that it passes before use."""

    def __init__(
        self,
        sender: int,
        receiver: int,
        cuts: list[slice],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # Only Gloo, which serves the CPU, needs room for a message that is too long.
        spacious = device.type == "cpu"
        gap = GUARD_BYTES if spacious else 0
        size = message_bytes(cuts, dtype) + gap * len(cuts)
        # The room is never touched unless a wrong message comes, so no memory is behind it.
        room = size + (1 << 16) if spacious else 0
        content = torch.empty(size + room, dtype=torch.uint8, device=device)
        super().__init__(sender, receiver, cuts, dtype, content, gap)
        for payload in self.payloads:
            payload.zero_()
        if spacious:
            # What is too long for one segment ruins those behind it, and its own guard tells.
            self.transfers = [content[start:] for start in self.starts]
        self._guard = os.urandom(gap)

    def clear(self) -> None:
        """Make sure that nothing of an earlier message passes for a part of the next."""
        _write(self.bytes, 0, bytes(HEADER_BYTES))
        for place in self.places:
            _write(self.bytes, place.stop, bytes(TRAILER_BYTES) + self._guard)

    def check(self, number: int, round: int) -> None:
        """Raise `MessageError` unless segment `number` of the message of `round` is here, whole.

        Whether its numbers are finite is another question: `check_finite`.
        """
        if number == 0:
            self._check_header(round)
        end = self.places[number].stop
        found = _read(self.bytes, end, TRAILER_BYTES + len(self._guard))
        if found[TRAILER_BYTES:] != self._guard:
            raise self._error(round, f"it is longer than the {self.size} bytes expected")
        if found[:TRAILER_BYTES] != _trailer(number, round):
            raise self._error(
                round, f"it is not the {self.size} bytes expected: its end is missing"
            )

    def check_finite(self, round: int) -> None:
        """Raise `MessageError` if there is a NaN or an infinity; it names no number."""
        if not all_finite(self.payloads):
            raise self._error(round, "it holds NaN or infinite numbers")

    def check_norm(self, round: int, bound: float) -> None:
        """Raise `MessageError` if the numbers' norm exceeds `bound`; no number is named."""
        norms = [torch.linalg.vector_norm(p, dtype=torch.float64) for p in self.payloads]
        if float(torch.linalg.vector_norm(torch.stack(norms))) > bound:
            _log.warning(
                "agent %d refused the message of agent %d in round %d: its norm is above the bound",
                *(self.receiver, self.sender, round),
            )
            raise self._error(round, "its norm is above the bound that this agent set")

    def _check_header(self, round: int) -> None:
        magic, *found = _HEADER.unpack_from(_read(self.bytes, 0, HEADER_BYTES))
        format, dtype, got_round, sender, receiver, dimension, training, epoch = found
        if magic != _MAGIC:
            raise self._error(round, "it does not begin as a message of this library does")
        for name, got, expected in (
            ("format", format, FORMAT),
            ("number type", dtype, _NUMBERS[self.dtype]),
            ("dimension", dimension, self.dimension),
            ("sender", sender, self.sender),
            ("receiver", receiver, self.receiver),
            ("training", training, self.training),
            ("epoch", epoch, self.epoch),
            ("round", got_round, round),
        ):
            if got != expected:
                raise self._error(round, f"its {name} is {got} instead of {expected}")

    def _error(self, round: int, reason: str) -> MessageError:
        return MessageError(
            f"agent {self.receiver} refused the message of agent {self.sender} in round {round}: "
            f"{reason}; its own state is as before the round"
        )


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether there is no NaN and no infinity; one pass where no sum overflows."""
    if not tensors or bool(torch.isfinite(torch.stack([t.sum() for t in tensors])).all()):
        return True
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def places(cuts: list[slice], dtype: torch.dtype, gap: int = 0) -> list[slice]:
    """Where the numbers of each segment lie among the bytes."""
    found, at = [], HEADER_BYTES
    for cut in cuts:
        end = at + (cut.stop - cut.start) * dtype.itemsize
        found.append(slice(at, end))
        at = end + TRAILER_BYTES + gap
    return found


def _trailer(number: int, round: int) -> bytes:
    return _TRAILER.pack(round ^ _TRAILER_MASK ^ number << 56)


def _write(target: Tensor, at: int, content: bytes) -> None:
    if target.device.type == "cpu":
        memoryview(target.numpy())[at : at + len(content)] = content  # type: ignore[arg-type]
    else:
        target[at : at + len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _read(source: Tensor, at: int, size: int) -> bytes:
    return source[at : at + size].cpu().numpy().tobytes()
