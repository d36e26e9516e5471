"""One agent with masked links, for `test_masked.py`: `masked_agent.py <folder>`."""

import json
import os
import sys
import warnings
from pathlib import Path

import masked_cases
import torch
import torch.distributed as dist
from torch import nn

import sottovoce.distributed as sd
from sottovoce.distributed import arithmetic, frames
from sottovoce.errors import SottovoceError
from sottovoce.randomness import InsecureSeedWarning, private_streams
from sottovoce.storage.tensors import write_tensors


def train(folder: Path, name: str, case: masked_cases.Case) -> None:
    """Train for some rounds, recorded, in segments and blocks as if the vector were long."""
    agent = dist.get_rank()
    frames.SEGMENT_BYTES, arithmetic.BLOCK = case.cut
    problem, streams = case.problem, private_streams(1, 4, insecure_seed=masked_cases.SEED)
    everybody = problem.start(range(1), streams)
    point = nn.Parameter(everybody[0, agent].clone())
    optimizer = sd.DecentralizedSGD(
        [point],
        case.algorithm,
        case.graph,
        case.stepsize,
        private_start=masked_cases.PRIVATE_START,
        record=True,
        insecure_seed=masked_cases.SEED,
        links="masked",
    )
    for round in range(1, masked_cases.ROUNDS + 1):
        everybody[0, agent] = point.detach()
        out = torch.zeros_like(everybody)
        point.grad = problem.gradient(everybody, streams, round, out)[0, agent].clone()
        optimizer.step()
    optimizer.save_recording(folder / f"{name}-{agent}")
    size = torch.tensor([optimizer.bytes_per_message])
    tensors = {"x": point.detach(), "bytes": size}
    write_tensors(folder / f"{name}-{agent}-final.safetensors", tensors)


def refusals(folder: Path) -> None:
    """What agents that do not fit together say; agent 1 differs from the others."""
    agent, seen = dist.get_rank(), {}
    for name, graph, links in [
        ("links", "complete:4", "plain" if agent == 1 else "masked"),
        ("degree", "star:4", "masked"),
        ("word", "complete:4", "sealed"),
    ]:
        try:
            point = nn.Parameter(torch.zeros(3))
            sd.DecentralizedSGD([point], "dsgd", graph, "0.1", links=links)
        except SottovoceError as error:
            seen[name] = str(error)
    point = nn.Parameter(torch.zeros(3))
    optimizer = sd.DecentralizedSGD([point], "pdsgd", "complete:4", "1", links="masked", timeout=2)
    point.grad = torch.full((3,), 1e7 if agent == 1 else 0.0)
    try:
        optimizer.step()
    except SottovoceError as error:
        seen["range"] = str(error)
    (folder / f"refusals-{agent}.json").write_text(json.dumps(seen))


def main() -> None:
    warnings.simplefilter("ignore", InsecureSeedWarning)
    folder = Path(sys.argv[1])
    sd.connect(timeout=60)
    agent = dist.get_rank()
    posted: list[tuple[str, int, bytes]] = []
    plain = dist.batch_isend_irecv

    def listening(operations: list[dist.P2POp]) -> list[dist.Work]:
        for one in operations:
            if one.op is dist.isend:
                posted.append((name, one.peer, one.tensor.numpy().tobytes()))
        return plain(operations)

    dist.batch_isend_irecv = listening  # type: ignore[assignment]
    for name, case in masked_cases.cases().items():
        train(folder, name, case)
    for number, (name, peer, content) in enumerate(posted):
        (folder / f"{name}-{agent}-to-{peer}-{number:04d}.bin").write_bytes(content)
    dist.barrier()
    refusals(folder)
    # Gloo may wait for ever for the messages of an agent that was lost.
    os._exit(0)


if __name__ == "__main__":
    main()
