"""One agent for each process, on torch.distributed, started by torchrun.

    import sottovoce.distributed as sd

    sd.connect()
    optimizer = sd.DecentralizedSGD(model.parameters(), PDSGD(), ring(5))
    ...
    loss.backward()
    optimizer.step()

torch.distributed neither encrypts nor authenticates: use a network that is trusted or tunnelled.
"""

from sottovoce.distributed.checkpoint import Checkpoint
from sottovoce.distributed.connection import connect
from sottovoce.distributed.diagnostics import consensus_error, mean_model
from sottovoce.distributed.federated import Departed, Federation, federation
from sottovoce.distributed.optimizer import DecentralizedSGD
from sottovoce.distributed.recording import join_recordings
from sottovoce.distributed.transport import Transport
from sottovoce.distributed.weights import load_weights, save_weights
from sottovoce.errors import DistributedError, MessageError, PeerLost

__all__ = [
    "Checkpoint",
    "DecentralizedSGD",
    "Departed",
    "DistributedError",
    "Federation",
    "MessageError",
    "PeerLost",
    "Transport",
    "connect",
    "consensus_error",
    "federation",
    "join_recordings",
    "load_weights",
    "mean_model",
    "save_weights",
]
