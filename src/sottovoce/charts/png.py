"""Grey images as PNG without an imaging library."""

import base64
import struct
import zlib

import torch
from torch import Tensor


def encode_grey(pixels: Tensor, enlarge: int = 1) -> bytes:
    """One image (height, width) of brightness 0 to 1 as a PNG file of 8-bit grey."""
    grey = pixels.detach().cpu().double().nan_to_num(0, 1, 0).clamp(0, 1).mul(255).round()
    grey = grey.to(torch.uint8).repeat_interleave(enlarge, 0).repeat_interleave(enlarge, 1)
    height, width = grey.shape
    rows = b"".join(b"\0" + bytes(row.tolist()) for row in grey)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)


def encode_text(pixels: Tensor, enlarge: int = 1) -> str:
    """The same as base64 text, for JSON."""
    return base64.b64encode(encode_grey(pixels, enlarge)).decode("ascii")


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
