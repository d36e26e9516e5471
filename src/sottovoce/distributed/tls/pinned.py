"""Signatures of agents with the keys that their links are pinned to."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sottovoce.distributed.tls.certificates import Peer
from sottovoce.storage.identity import canonical

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_DOMAIN = b"sottovoce pinned 1\0"


class PinnedKeys:
    """What an agent signs with where nothing else is given: the key of its links.

        Ed25519(key, "sottovoce pinned 1" | 0 | purpose | 0 | canonical JSON)

    A certificate or a handshake begins otherwise, so that no signature of one passes for another.
    """

    def __init__(self, private_key: "Ed25519PrivateKey", peers: Sequence[Peer]) -> None:
        self._key = private_key
        self._known = {peer.agent: peer.public_key for peer in peers}

    def sign(self, purpose: str, content: dict[str, Any]) -> bytes:
        """Sign `content` for `purpose` alone, as this agent."""
        return self._key.sign(_signed(purpose, content))

    def verified(self, agent: int, signature: bytes, purpose: str, content: dict[str, Any]) -> bool:
        """Whether an agent signed `content` for `purpose`; False for agents that are not known."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        if agent not in self._known:
            return False
        try:
            key = Ed25519PublicKey.from_public_bytes(self._known[agent])
            key.verify(signature, _signed(purpose, content))
        except InvalidSignature:
            return False
        return True


def _signed(purpose: str, content: dict[str, Any]) -> bytes:
    return _DOMAIN + purpose.encode() + b"\0" + canonical(content).encode()
