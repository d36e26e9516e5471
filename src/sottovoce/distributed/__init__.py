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
from sottovoce.distributed.optimizer import DecentralizedSGD
from sottovoce.distributed.recording import join_recordings
from sottovoce.errors import DistributedError, MessageError, PeerLost

__all__ = [
    "Checkpoint",
    "DecentralizedSGD",
    "DistributedError",
    "MessageError",
    "PeerLost",
    "connect",
    "consensus_error",
    "join_recordings",
    "mean_model",
]
