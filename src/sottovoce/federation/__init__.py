"""What organisations agree on before their agents talk: keys, cards, agreements, signatures, logs.

Nothing here needs torch or a network. `sottovoce.distributed` trains with it.
"""

from sottovoce.federation.agreement import Agreement, Member, read_agreement
from sottovoce.federation.identity import Card, Identity, read_card

__all__ = ["Agreement", "Card", "Identity", "Member", "read_agreement", "read_card"]
