"""Join the other agents' process group, on loopback unless torchrun names another address."""

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist

from sottovoce.errors import DistributedError

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def connect(device: torch.device | str = "cpu", timeout: float = 60.0) -> int:
    """Join the process group that torchrun describes and return this process's agent number.

    NCCL where the model lies on a GPU, Gloo otherwise. Where torchrun's address is loopback, Gloo
    listens on loopback alone; elsewhere it listens on the interface of the host name, or on the
    one that GLOO_SOCKET_IFNAME names.
    """
    address = os.environ.get("MASTER_ADDR")
    if address is None or "RANK" not in os.environ:
        raise DistributedError(
            "this process was not started by torchrun; start it as "
            "`torchrun --standalone --nproc-per-node 5 script.py`"
        )
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if address in _LOOPBACK:
        interfaces = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interfaces[0] if interfaces else "lo")
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    return dist.get_rank()
