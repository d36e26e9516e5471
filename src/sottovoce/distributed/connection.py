"""Join the other agents' process group, on loopback unless torchrun names another address."""

import json
import os
import socket
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from sottovoce.errors import DistributedError

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SECONDS_BETWEEN_LOOKS = 0.05


def connect(device: torch.device | str = "cpu", timeout: float = 300.0) -> int:
    """Join the process group that torchrun describes and return this process's agent number.

    NCCL where the model lies on a GPU, Gloo otherwise. Where torchrun's address is loopback, Gloo
    listens on loopback alone; elsewhere it listens on the interface of the host name, or on the
    one that GLOO_SOCKET_IFNAME names. Gloo connects two agents when they first exchange something,
    so that links between agents that are not neighbours may be closed, unless TORCH_GLOO_LAZY_INIT
    says otherwise. timeout: seconds to wait for the other agents.

    Use it in place of `init_process_group` under `torchrun --max-restarts`: torchrun keeps one
    key-value store over all restarts, and Gloo would find there the addresses of dead processes.
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
    os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    wait = timedelta(seconds=timeout)
    store, agent, agents = next(rendezvous("env://", timeout=wait))
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=_meet(store, agent, agents, timeout),
        rank=agent,
        world_size=agents,
        timeout=wait,
    )
    return int(agent)


def _meet(store: Store, agent: int, agents: int, timeout: float) -> Store:
    """A part of the store that only processes alive now have seen.

    Every process announces itself with a fresh number. Agent 0 invites the numbers that it finds
    under a fresh token, again whenever one of them changed, until all have accepted.
    """
    own = os.urandom(8).hex()
    names = [f"sottovoce/agent/{other}" for other in range(agents)]
    store.set(names[agent], own)
    deadline = time.monotonic() + timeout
    token, invited = "", [""]
    while time.monotonic() < deadline:
        if agent == 0 and store.check(names):
            present = [store.get(name).decode() for name in names]
            if present != invited:
                token, invited = os.urandom(8).hex(), present
                store.set("sottovoce/invitation", json.dumps([token, invited]))
        elif agent != 0 and store.check(["sottovoce/invitation"]):
            token, invited = json.loads(store.get("sottovoce/invitation"))
        if len(invited) == agents and invited[agent] == own:
            store.set(f"sottovoce/{token}/{agent}", "accepted")
            accepted = [f"sottovoce/{token}/{other}" for other in range(agents)]
            if agent == 0 and store.check(accepted):
                store.set(f"sottovoce/{token}/start", "yes")
            if store.check([f"sottovoce/{token}/start"]):
                return PrefixStore(f"sottovoce/{token}", store)
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    missing = [str(other) for other in range(agents) if not store.check([names[other]])]
    raise DistributedError(
        f"not all of the {agents} agents came together within {timeout:g} s; "
        f"never seen: {', '.join(missing) or 'none, but some did not answer'}"
    )
