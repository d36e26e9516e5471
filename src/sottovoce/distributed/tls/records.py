"""What travels inside a TLS connection: a header of fixed size, then as many bytes as it says.

    kind (1 byte) | segment | channel | number of the exchange | length of what follows

The length is compared with what is accepted before anything is read or any memory is taken.
"""

import json
import ssl
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from sottovoce.errors import DistributedError

_HEADER = struct.Struct("<B3xIIQQ")
HELLO, DOCUMENT, NEED, SEGMENT = range(1, 5)
FORMAT = 1
MOST_HELLO = 1 << 12
MOST_DOCUMENT = 1 << 20
"""No JSON document is longer, in bytes."""
_LIMITS = {HELLO: MOST_HELLO, DOCUMENT: MOST_DOCUMENT, NEED: 0}
"""The length of a segment is known exactly where it arrives."""


class Refused(DistributedError):  # noqa: N818
    """What came over a connection is not accepted, and the connection ends; the training does not.

    The reason holds nothing that the other end sent but numbers and short words.
    """


class Header(NamedTuple):
    """What stands before the bytes of a record; what a kind does not need is 0."""

    kind: int
    segment: int = 0
    channel: int = 0
    number: int = 0
    length: int = 0

    def packed(self) -> bytes:
        return _HEADER.pack(*self)


def read_header(connection: ssl.SSLSocket) -> Header:
    """The next header; refused where its kind is unknown or what follows would be too long."""
    header = Header(*_HEADER.unpack(read_bytes(connection, _HEADER.size)))
    if header.kind != SEGMENT and header.length > _LIMITS.get(header.kind, -1):
        limit = _LIMITS.get(header.kind)
        what = f"{header.length} bytes; accepted: at most {limit}"
        raise Refused(f"a record of kind {header.kind}" + (f" has {what}" if limit else ""))
    return header


def read_bytes(connection: ssl.SSLSocket, count: int) -> bytes:
    """Exactly `count` bytes."""
    content = bytearray(count)
    read_into(connection, memoryview(content))
    return bytes(content)


def read_into(connection: ssl.SSLSocket, room: memoryview) -> None:
    """Fill `room` with what arrives.

    `read`, not `recv`: on a connection without TLS it raises, where `recv` would go on in the open.
    """
    at = 0
    while at < len(room):
        got = connection.read(len(room) - at, room[at:])
        if not got:
            raise ConnectionResetError("the other end closed the connection")
        at += int(got)


def write_bytes(connection: ssl.SSLSocket, content: bytes | memoryview) -> None:
    """Write everything; `write`, not `send`, for the reason above."""
    left = memoryview(content)
    while left:
        left = left[connection.write(left) :]


def json_record(kind: int, content: Mapping[str, Any]) -> bytes:
    """A record that holds a JSON object."""
    body = json.dumps(content).encode()
    if len(body) > _LIMITS[kind]:
        raise DistributedError(
            f"a document for the neighbours has {len(body)} bytes; accepted: up to {_LIMITS[kind]}"
        )
    return Header(kind, length=len(body)).packed() + body


def read_json(connection: ssl.SSLSocket, length: int) -> dict[str, Any]:
    """The JSON object of a record whose header was read."""
    try:
        content = json.loads(read_bytes(connection, length))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise Refused("a document is not a JSON object")
    return content
