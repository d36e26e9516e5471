"""One agent of `sottovoce train`: torchrun starts this module, once for each agent."""

import json
import sys
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from sottovoce.distributed import DecentralizedSGD, connect
from sottovoce.distributed.launch import REPORT, Training
from sottovoce.errors import DistributedError
from sottovoce.graphs import parse_graph
from sottovoce.mechanisms import Mechanism, parse_algorithm
from sottovoce.problems.data.models import small_cnn
from sottovoce.problems.data.partitions import parse_partition
from sottovoce.problems.data.sets import load
from sottovoce.stepsizes import Power, Stepsize, parse_stepsize

_SHARED_SEED = 0
"""Partition and initial weights are public and the same for all agents."""


def run(training: Training) -> None:
    """Train as one agent and report the accuracy after each epoch."""
    agent = connect(timeout=max(training.timeout, 60.0))
    graph = parse_graph(training.graph, training.weights)
    algorithm = parse_algorithm(training.algorithm)
    data = load(training.data)
    parts = parse_partition(training.partition)(data.training.labels, graph.agents, _SHARED_SEED)
    rounds = max(parts.sizes) // training.batch_size
    if not rounds:
        raise DistributedError(
            f"a batch of {training.batch_size} images is more than the {max(parts.sizes)} that an "
            "agent holds; give a smaller batch size"
        )
    own = data.training.subset(parts.indices[agent])
    images, labels = own.standardised(), own.labels
    unseen, truth = data.validation.standardised(), data.validation.labels
    model = small_cnn(seed=_SHARED_SEED)
    optimizer = DecentralizedSGD(
        model.parameters(),
        algorithm,
        graph,
        stepsize_of(training.stepsize, algorithm, rounds),
        private_start=training.private_start,
        timeout=training.timeout,
        insecure_seed=training.insecure_seed,
    )
    if training.checkpoint:
        optimizer.resume(training.checkpoint)
    while optimizer.round < training.epochs * rounds:
        batch = optimizer.samples(training.batch_size, len(images))
        optimizer.zero_grad()
        cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        if optimizer.round % rounds == 0:
            with torch.no_grad():
                accuracy = float((model(unseen).argmax(1) == truth).double().mean())
            report = {"epoch": optimizer.round // rounds, "agent": agent, "accuracy": accuracy}
            sys.stdout.write(f"{REPORT}{json.dumps(report)}\n")
            sys.stdout.flush()
            if training.checkpoint:
                optimizer.save(training.checkpoint)
    dist.barrier()
    dist.destroy_process_group()


def stepsize_of(text: str | None, algorithm: Mechanism, rounds: int) -> Stepsize:
    """The stepsize of `text`, k counting epochs of `rounds` unless it says otherwise."""
    if text is None:
        return replace(algorithm.default_stepsize, schedule=Power(0.3, block=rounds))
    return parse_stepsize(text if "block=" in text else f"{text}:block={rounds}")


if __name__ == "__main__":
    run(Training(**json.loads(sys.argv[1])))
