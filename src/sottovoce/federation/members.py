"""What an agent signs with in a training, and the keys of all members by their numbers."""

from typing import Any

from sottovoce.federation.agreement import Agreement
from sottovoce.federation.identity import Identity, is_signed


class MemberKeys:
    """The identities of one agreement, as `distributed.transport.Identities` wants them."""

    def __init__(self, identity: Identity, agreement: Agreement) -> None:
        agreement.agent_of_key(identity.card.public_key)
        self._identity = identity
        self._keys = [member.card.public_key for member in agreement.members]

    def sign(self, purpose: str, content: dict[str, Any]) -> bytes:
        """Sign `content` for `purpose` alone, as this agent."""
        return self._identity.sign(f"agent: {purpose}", content)

    def verified(self, agent: int, signature: bytes, purpose: str, content: dict[str, Any]) -> bool:
        """Whether an agent signed `content` for `purpose`; False for agents that are not known."""
        if not 0 <= agent < len(self._keys):
            return False
        return is_signed(self._keys[agent], signature, f"agent: {purpose}", content)
