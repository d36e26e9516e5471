"""One agent of `sottovoce train`: torchrun starts this module, once for each agent."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sottovoce.distributed import DecentralizedSGD, connect
from sottovoce.distributed.launch import FAULT, REPORT, Training, torch_device
from sottovoce.distributed.task import task_for
from sottovoce.distributed.weights import save_weights
from sottovoce.errors import PrivacyError, SottovoceError
from sottovoce.graphs import parse_graph
from sottovoce.mechanisms import Mechanism, parse_algorithm
from sottovoce.stepsizes import Power, Stepsize, parse_stepsize


def run(training: Training) -> None:
    """Train as one agent and report loss and accuracy after each epoch."""
    device, group = _places(training.device)
    agent = connect(group, timeout=max(training.timeout, 60.0))
    graph = parse_graph(training.graph, training.weights)
    algorithm = parse_algorithm(training.algorithm)
    task = task_for(training, agent, graph.agents, device)
    model, (inputs, targets), rounds = task.model, task.samples, task.rounds
    optimizer = DecentralizedSGD(
        model.named_parameters(),
        algorithm,
        graph,
        stepsize_of(training.stepsize, algorithm, rounds),
        private_start=training.private_start,
        timeout=training.timeout,
        insecure_seed=training.insecure_seed,
        links=training.links,
        same_start=True,
        batch=training.batch_size,
        poisson=algorithm.bound is not None,
    )
    if training.checkpoint:
        # Agents that torchrun starts again must not remove what they have written since.
        first = not _starts_before()
        optimizer.resume(
            training.checkpoint,
            journal=training.journal,
            start_over=training.start_over and first,
        )
    if algorithm.bound and training.delta * len(inputs) >= 1:
        raise PrivacyError(
            f"delta is {training.delta:g} and this agent has more records than 1/delta: publishing "
            "one of them whole would pass as private; give a smaller delta"
        )
    if algorithm.bound and optimizer.executions.otherwise:
        raise PrivacyError(
            f"{training.checkpoint} tells of rounds that were executed under another algorithm, "
            "stepsize, batch or seed: what they cost cannot be told from the settings of this "
            "training. Give it a folder of its own, and add both up in a ledger"
        )
    while optimizer.round < training.epochs * rounds:
        optimizer.zero_grad()
        if algorithm.bound:
            batch = optimizer.poisson_sample(len(inputs))
            optimizer.backward(model, task.loss, inputs[batch], targets[batch])
        else:
            batch = optimizer.samples(training.batch_size, len(inputs))
            task.loss(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
        if optimizer.round % rounds == 0:
            epoch = optimizer.round // rounds
            report: dict[str, Any] = {"epoch": epoch, "agent": agent, **task.scores()}
            if algorithm.bound:
                report["charged"] = _charged(optimizer, training, rounds)
            sys.stdout.write(f"{REPORT}{json.dumps(report)}\n")
            sys.stdout.flush()
            if training.checkpoint:
                optimizer.save(training.checkpoint)
    optimizer.close()
    if training.out:
        file = Path(training.out) / f"agent-{agent}.safetensors"
        save_weights(model, file, {"agent": agent, "rounds": optimizer.round})
    dist.destroy_process_group()


def _charged(optimizer: DecentralizedSGD, training: Training, rounds: int) -> dict[str, int]:
    """What an accountant needs of this agent; the number of its samples is agreed, not private.

    Without a checkpoint nobody knows how far agents came before torchrun started them again: every
    start before this one counts as a whole training.
    """
    done, starts = optimizer.executions, 0 if training.checkpoint else _starts_before()
    return {
        "training": optimizer.training,
        "rounds": done.rounds,
        "redone": done.redone + starts * training.epochs * rounds,
        "samples": done.samples,
    }


def _starts_before() -> int:
    """How often torchrun has started the agents of this training before."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _places(text: str) -> tuple[torch.device, str]:
    """The device of this agent's model, and the one that decides how agents are connected.

    NCCL serves one agent a GPU; agents that share a GPU exchange messages through the CPU.
    """
    device = torch_device(text)
    if device.type != "cuda":
        return device, "cpu"
    local, here = (int(os.environ[name]) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    count = torch.cuda.device_count()
    if text == "cuda":
        device = torch.device("cuda", local % count)
        return device, str(device) if here <= count else "cpu"
    return device, str(device) if here == 1 else "cpu"


def stepsize_of(text: str | None, algorithm: Mechanism, rounds: int) -> Stepsize:
    """The stepsize of `text`, k counting epochs of `rounds` unless it says otherwise.

    A schedule that falls over a number of rounds counts rounds.
    """
    if text is None:
        return replace(algorithm.default_stepsize, schedule=Power(0.3, block=rounds))
    counts = "block=" in text or "falling=" in text
    return parse_stepsize(text if counts else f"{text}:block={rounds}")


def main() -> None:
    """Train, or say in a line what is wrong; an error that is not ours keeps its traceback."""
    try:
        run(Training(**json.loads(sys.argv[1])))
    except Exception as error:
        told, agent = type(error).__name__, os.environ["RANK"]
        ours = isinstance(error, SottovoceError)
        text = f"{told}: {error}" if ours else f"{told}, its traceback is above"
        sys.stdout.write(f"{FAULT}{json.dumps({'agent': agent, 'kind': told, 'text': text})}\n")
        sys.stdout.flush()
        if not ours:
            raise
        sys.stderr.write(f"agent {agent}: {text}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
