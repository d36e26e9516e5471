"""Whole numbers modulo 2^32 from AES-256 in counter mode, under a key that is used once."""

import numpy as np
from numpy.typing import NDArray

KEY_BYTES = 32
MOST_WORDS = 1 << 16
"""Words read at a time, so that they stay in the processor's cache."""

_BLOCK_BYTES = 16
_ZEROS = np.zeros(4 * MOST_WORDS, dtype=np.uint8)


class Keystream:
    """The words of one key, in order; two holders of the key read the same, however they cut it."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES256
        from cryptography.hazmat.primitives.ciphers.modes import CTR

        self._cipher = Cipher(AES256(key), CTR(bytes(_BLOCK_BYTES))).encryptor()

    def __repr__(self) -> str:
        return "Keystream()"

    def read(self, count: int, room: NDArray[np.uint8]) -> NDArray[np.int32]:
        """The next `count` words, at most `MOST_WORDS`, in `room`, a `new_room()`.

        They carry a sign, which does not matter modulo 2^32.
        """
        self._cipher.update_into(_ZEROS[: 4 * count].data, room.data)
        return room[: 4 * count].view("<i4")


def new_room() -> NDArray[np.uint8]:
    """Where words can be read to; the library asks for room for one block more than it writes."""
    return np.empty(4 * MOST_WORDS + _BLOCK_BYTES, dtype=np.uint8)
