"""A worker inside an organisation: `ddp_worker.py STORE ROUNDS`. It never sees the federation."""

import os
import sys
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import vector_to_parameters

SAMPLES, D = 8, 3


def group(store: str, rank: int) -> None:
    """Join the organisation's own process group: the agent is rank 0, the worker rank 1."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)


def network() -> nn.Module:
    """The same numbers in every process and thread; a seed would be shared between threads."""
    found = nn.Linear(D, 1).double()
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.copy_(torch.arange(1.0, parameter.numel() + 1).view_as(parameter) / 10)
    return found


def part(rank: int) -> tuple[Tensor, Tensor]:
    """Half of the organisation's samples."""
    numbers = torch.arange(SAMPLES * D, dtype=torch.float64).view(SAMPLES, D).sin()
    return numbers[rank::2], numbers.sum(1, keepdim=True)[rank::2]


def backward(model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    nn.functional.mse_loss(model(inputs), targets).backward()


def work(rounds: int) -> None:
    """Add the gradient of this worker's samples in every round."""
    model = network()
    wrapped = DistributedDataParallel(model)
    vector = torch.empty(sum(one.numel() for one in model.parameters()), dtype=torch.float64)
    for _ in range(rounds):
        dist.broadcast(vector, 0)
        vector_to_parameters(vector, model.parameters())
        model.zero_grad()
        backward(wrapped, *part(1))


def leave() -> NoReturn:
    """End the group when nobody uses it any more, and with it this process, at once.

    Gloo's threads outlive the group where DDP used it, and an interpreter that takes its time to
    end aborts now and then under them ("terminate called without an active exception").
    """
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    group(sys.argv[1], 1)
    work(int(sys.argv[2]))
    leave()
