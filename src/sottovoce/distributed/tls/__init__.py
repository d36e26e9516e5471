"""Links between agents of different organisations: TLS 1.3, mutually authenticated by pinned keys.

from sottovoce.distributed.tls import Peer, Settings, TlsTransport, Training

transport = TlsTransport(0, peers, [1, 2], private_key, Training(number, epoch))
optimizer = DecentralizedSGD(model, "pdsgd", graph, transport=transport)
"""

from sottovoce.distributed.mask_keys import Session as Training
from sottovoce.distributed.tls.certificates import Peer, certificate
from sottovoce.distributed.tls.transport import Settings, TlsTransport

__all__ = ["Peer", "Settings", "TlsTransport", "Training", "certificate"]
