"""One message on the wire: a header, the payload of d numbers, a trailer; and how it is checked.

    header (64 bytes) | payload (d x itemsize bytes) | trailer (8 bytes)

A frame lives in one byte tensor that is used again in every round. Bytes arrive in order, so a
trailer that is there proves that everything before it is. Gloo aborts the process when a message
is longer than the buffer that was offered, so the receiving side offers room for twice the frame
and a guard behind the trailer tells whether too much came.
"""

import os
import struct

import torch
from torch import Tensor

from sottovoce.errors import MessageError

_HEADER = struct.Struct("<8sIIQIIQ")
_TRAILER = struct.Struct("<Q")
_MAGIC = b"sottovoc"
FORMAT = 1
HEADER_BYTES = 64
TRAILER_BYTES = _TRAILER.size
OVERHEAD_BYTES = HEADER_BYTES + TRAILER_BYTES
GUARD_BYTES = 16
_TRAILER_MASK = 0x5AA5_C33C_0FF0_9669
DTYPES = {torch.float32: 1, torch.float64: 2}


class Frame:
    """A reusable message between two agents of `dimension` numbers of type `dtype`.

    room: how many bytes to offer beyond the frame when it is used to receive.
    """

    def __init__(
        self, sender: int, receiver: int, dimension: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.sender, self.receiver = sender, receiver
        self.dimension, self.dtype = dimension, dtype
        self.end = HEADER_BYTES + dimension * dtype.itemsize
        self.size = self.end + TRAILER_BYTES
        self.bytes = torch.zeros(self.size, dtype=torch.uint8, device=device)
        self.payload = self.bytes[HEADER_BYTES : self.end].view(dtype)

    def stamp(self, round: int) -> None:
        """Write header and trailer of `round` around the payload."""
        header = _HEADER.pack(
            _MAGIC, FORMAT, DTYPES[self.dtype], round, self.sender, self.receiver, self.dimension
        )
        _write(self.bytes, 0, header)
        _write(self.bytes, self.end, _TRAILER.pack(round ^ _TRAILER_MASK))


class Inbox(Frame):
    """Where the message of one neighbour arrives, and the check that it passes before use."""

    def __init__(
        self,
        sender: int,
        receiver: int,
        dimension: int,
        dtype: torch.dtype,
        device: torch.device,
        spacious: bool,
    ) -> None:
        super().__init__(sender, receiver, dimension, dtype, device)
        room = self.size + (1 << 16) if spacious else 0
        # Never touched unless a wrong message comes, so the system does not back it by memory.
        self.bytes = torch.empty(self.size + room, dtype=torch.uint8, device=device)
        self.payload = self.bytes[HEADER_BYTES : self.end].view(dtype)
        self.payload.zero_()
        self._spacious = spacious
        self._guard = os.urandom(GUARD_BYTES)

    def clear(self) -> None:
        """Make sure that nothing of an earlier message passes for a part of the next."""
        _write(self.bytes, 0, bytes(HEADER_BYTES))
        _write(self.bytes, self.end, bytes(TRAILER_BYTES))
        if self._spacious:
            _write(self.bytes, self.size, self._guard)

    def check(self, round: int) -> None:
        """Raise `MessageError` unless this is the whole, finite message of `round`.

        The error names the field, never a number of the payload.
        """
        magic, format, dtype, got_round, sender, receiver, dimension = _HEADER.unpack_from(
            _read(self.bytes, 0, HEADER_BYTES)
        )
        if magic != _MAGIC:
            raise self._error(round, "it does not begin as a message of this library does")
        for name, got, expected in (
            ("format", format, FORMAT),
            ("number type", dtype, DTYPES[self.dtype]),
            ("dimension", dimension, self.dimension),
            ("sender", sender, self.sender),
            ("receiver", receiver, self.receiver),
            ("round", got_round, round),
        ):
            if got != expected:
                raise self._error(round, f"its {name} is {got} instead of {expected}")
        if self._spacious and _read(self.bytes, self.size, GUARD_BYTES) != self._guard:
            raise self._error(round, f"it is longer than the {self.size} bytes expected")
        if _read(self.bytes, self.end, TRAILER_BYTES) != _TRAILER.pack(round ^ _TRAILER_MASK):
            raise self._error(
                round, f"it is not the {self.size} bytes expected: its end is missing"
            )
        if not all_finite(self.payload):
            raise self._error(round, "it holds NaN or infinite numbers")

    def _error(self, round: int, reason: str) -> MessageError:
        return MessageError(
            f"agent {self.receiver} refused the message of agent {self.sender} in round {round}: "
            f"{reason}; its own state is as before the round"
        )


def all_finite(tensor: Tensor) -> bool:
    """Whether there is no NaN and no infinity; one pass where the sum does not overflow."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def _write(target: Tensor, at: int, content: bytes) -> None:
    if target.device.type == "cpu":
        memoryview(target.numpy())[at : at + len(content)] = content  # type: ignore[arg-type]
    else:
        target[at : at + len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _read(source: Tensor, at: int, size: int) -> bytes:
    return source[at : at + size].cpu().numpy().tobytes()
