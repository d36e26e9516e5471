"""The keys behind private numbers: one for each round, from which no earlier one follows.

    K_{t+1} = BLAKE2b(K_t)

Whoever takes a key learns the private numbers of its round and of later ones, and of none before
it, because the agent erases what it no longer needs. The two ends of an edge hold one such row of
keys in common. It begins with

    K = HKDF-SHA256(X25519(own private key, the neighbour's public key), info)

where `info` names the training, its epoch, the purpose and both agents. Private keys serve one
epoch and live in memory. An agent that keeps a journal holds the root of its own there as well,
from before a neighbour hears of them until the journal begins (`journal.Journal.begin`).
"""

import hashlib
import json
import os
from typing import Any

from sottovoce.errors import DistributedError

KEY_BYTES = 32
_NEXT = b"next round"


class Ratchet:
    """The keys of consecutive rounds, of which those before `round` - `reach` are erased.

    key: the key of `round`, fresh from the operating system unless given.
    """

    def __init__(self, round: int = 0, reach: int = 0, key: bytes | None = None) -> None:
        self._reach = reach
        self._keys = {round: os.urandom(KEY_BYTES) if key is None else key}

    def __repr__(self) -> str:
        return f"Ratchet(from round {min(self._keys)})"

    def key(self, round: int) -> bytes:
        """The key of a round, which may be any later one."""
        first, last = min(self._keys), max(self._keys)
        if round < first:
            raise DistributedError(
                f"the private numbers of round {round} were asked for again, but the keys of "
                f"rounds before {first} are erased; a part that asks for earlier rounds says how "
                "far back it goes with `reach`"
            )
        for later in range(last + 1, round + 1):
            self._keys[later] = _after(self._keys[later - 1])
        return self._keys[round]

    def erase_before(self, round: int) -> None:
        """Forget the keys that rounds from `round` on do not need."""
        first = max(round - self._reach, min(self._keys))
        self.key(first)
        self._keys = {kept: key for kept, key in self._keys.items() if kept >= first}

    def from_round(self, round: int) -> tuple[int, bytes]:
        """The earliest round that rounds from `round` on may ask for, and its key."""
        first = max(round - self._reach, min(self._keys))
        return first, self.key(first)


def _after(key: bytes) -> bytes:
    return _hash(_NEXT, key)


def _hash(content: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(content, key=key, digest_size=KEY_BYTES, person=b"sottovoce").digest()


class Ephemeral:
    """A key pair of one epoch, from whose public half neighbours make secrets with this agent.

    root: 32 secret bytes from which it follows for a purpose; fresh from the operating system
    unless given.
    """

    def __init__(self, root: bytes | None = None, purpose: str = "") -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        key = os.urandom(KEY_BYTES) if root is None else root
        self._private = X25519PrivateKey.from_private_bytes(_hash(f"pair {purpose}".encode(), key))

    @property
    def public(self) -> str:
        """The public key, 64 hexadecimal digits."""
        return self._private.public_key().public_bytes_raw().hex()

    def secret(self, other: object, *info: Any) -> bytes:
        """The 32 bytes that this agent and the owner of a public key share under `info`.

        other: what the neighbour sent; refused unless it is a public key, and not one's own.
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        try:
            content = bytes.fromhex(str(other))
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(content))
        except ValueError:
            content = b""
        if not content or str(other) == self.public:
            raise DistributedError(
                "a neighbour sent no usable public key; accepted: an X25519 key of its own"
            )
        return HKDF(SHA256(), KEY_BYTES, None, json.dumps(info).encode()).derive(shared)
