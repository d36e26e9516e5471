"""The training of `sottovoce train` by one member of a federation."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sottovoce.distributed.federated.session import Federation
from sottovoce.distributed.launch import Training, torch_device
from sottovoce.distributed.task import task_for
from sottovoce.distributed.weights import save_weights
from sottovoce.errors import DistributedError
from sottovoce.federation.agreement import Agreement


def train_task(
    federation: Federation, training: Training, first: Agreement
) -> Iterator[dict[str, Any]]:
    """Train to the last agreed round, and give a report after each epoch.

    training: model, loss and data; the facts `data` and `partition` of the agreement come before
    its own; a file of code is taken from nobody but this member. first: the edition by whose
    numbers images are divided, the same at every start.
    """
    facts = federation.facts
    training = replace(
        training,
        data=agreed(facts, "data", training.data),
        partition=agreed(facts, "partition", training.partition),
        batch_size=federation.batch or training.batch_size,
    )
    device, agent = torch_device(training.device), first.agent(federation.name)
    task = task_for(training, agent, len(first.members), device)
    model, (inputs, targets) = task.model, task.samples
    optimizer = federation.optimizer(model)
    while optimizer.round < federation.rounds:
        optimizer.zero_grad()
        if optimizer.algorithm.bound:
            batch = optimizer.poisson_sample(len(inputs)).to(device)
            optimizer.backward(model, task.loss, inputs[batch], targets[batch])
        else:
            batch = optimizer.samples(training.batch_size, len(inputs)).to(device)
            task.loss(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
        if optimizer.round % task.rounds == 0 or optimizer.round == federation.rounds:
            epoch = -(-optimizer.round // task.rounds)
            yield {"epoch": epoch, "agent": federation.agent, **task.scores()}
    if training.out:
        with torch.no_grad():
            save_weights(model, Path(training.out) / f"{federation.name}.safetensors")


def agreed(facts: Mapping[str, str], name: str, own: str) -> str:
    """What the agreement says of the data, or this member's own word; never a file to run."""
    said = facts.get(name, own)
    if ".py" in said and said != own:
        raise DistributedError(
            f"the agreement names the file of code {said!r} as its {name}; what others "
            f"wrote is not run here: leave it out of the agreement, and give --{name} yourself"
        )
    return said
