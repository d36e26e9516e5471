"""An organisation may compute its agent's gradient with DDP."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import ddp_worker
import launching
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))
import sottovoce.distributed as sd
from sottovoce.storage.tensors import read_tensors, write_tensors
from threaded import Switchboard, ThreadTransport

ROUNDS = 6

pytestmark = pytest.mark.integration


def anna(transport: ThreadTransport, store: Path | None) -> Tensor:
    """With `store` one half of the samples is a worker's; without, this process has both."""
    network = ddp_worker.network()
    if store is not None:
        ddp_worker.group(str(store), 0)
    wrapped = DistributedDataParallel(network) if store is not None else network
    optimizer = sd.DecentralizedSGD(network, "dsgd", "path:2", "0.1", transport=transport)
    halves = [ddp_worker.part(rank) for rank in (0, 1)]
    whole = tuple(torch.cat(parts) for parts in zip(*halves, strict=True))
    while optimizer.round < ROUNDS:
        if store is not None:
            dist.broadcast(optimizer.state_vector, 0)
        optimizer.zero_grad()
        ddp_worker.backward(wrapped, *(whole if store is None else halves[0]))
        optimizer.step()
    return optimizer.state_vector.clone()


def ben(transport: ThreadTransport) -> Tensor:
    network = ddp_worker.network()
    optimizer = sd.DecentralizedSGD(network, "dsgd", "path:2", "0.1", transport=transport)
    while optimizer.round < ROUNDS:
        optimizer.zero_grad()
        ddp_worker.backward(network, torch.ones(1, 3).double(), torch.zeros(1, 1).double())
        optimizer.step()
    return optimizer.state_vector.clone()


def play(store: Path | None) -> list[Any]:
    board, ends = Switchboard(2), [None, None]

    def act(agent: int) -> None:
        transport = ThreadTransport(board, agent)
        ends[agent] = ben(transport) if agent else anna(transport, store)  # type: ignore[call-overload]

    threads = [threading.Thread(target=act, args=(agent,)) for agent in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return ends


def test_gradients_that_an_organisation_averages_give_the_same_training(tmp_path: Path) -> None:
    store, out, begin = tmp_path / "store", tmp_path / "ends", launching.environment()
    programs = [[ddp_worker.__file__, str(store), str(ROUNDS)], [__file__, str(store), str(out)]]
    processes = [subprocess.Popen([sys.executable, *one], env=begin) for one in programs]
    try:
        assert [process.wait(150) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    with_worker = read_tensors(out)[0]
    for agent, alone in enumerate(play(None)):
        torch.testing.assert_close(with_worker[str(agent)], alone, rtol=0, atol=1e-12)


if __name__ == "__main__":
    # A process of its own: it must end as the worker does.
    _, group_store, file = sys.argv
    ends = dict(enumerate(play(Path(group_store))))
    write_tensors(file, {str(agent): end for agent, end in ends.items()})
    ddp_worker.leave()
