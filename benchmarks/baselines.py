"""The plain programs that the simulator is compared with, as a competent user would write them."""

import copy
import time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sottovoce import Graph

Array = NDArray[np.floating]


class NumpyDSGD:
    """DSGD on logistic regression, all agents at once: x <- Wx - λ g.

    features: (agents, n, d) with the label -1 or +1 multiplied in. Nothing is drawn: the caller
    gives the samples' numbers, (agents, batch).
    """

    def __init__(self, features: Array, graph: Graph, regularisation: float) -> None:
        self.features, self.regularisation = features, regularisation
        self.mixing = graph.mixing.toarray().astype(features.dtype)
        self.state = np.zeros((features.shape[0], features.shape[2]), features.dtype)
        self._agent = np.arange(len(features))[:, None]

    def step(self, chosen: NDArray[np.int64], stepsize: float) -> None:
        rows = self.features[self._agent, chosen]
        margin = np.matmul(rows, self.state[:, :, None])
        pull = 1 / (1 + np.exp(margin)) / chosen.shape[1]
        gradient = self.regularisation * self.state
        gradient -= np.matmul(pull.transpose(0, 2, 1), rows)[:, 0]
        self.state = self.mixing @ self.state - stepsize * gradient


class TorchLoop:
    """DSGD with one torch module for each agent and a loop over them.

    data: each agent's inputs and classes. The caller gives the samples' numbers, (agents, batch).
    """

    def __init__(self, model: nn.Module, data: list[tuple[Tensor, Tensor]], graph: Graph) -> None:
        self.data = data
        self.models = [copy.deepcopy(model) for _ in data]
        members = [[agent, *graph.neighbours(agent)] for agent in range(graph.agents)]
        self.mixing = [
            [(other, float(graph.mixing[agent, other])) for other in found]
            for agent, found in enumerate(members)
        ]

    def step(self, chosen: Tensor, stepsize: float) -> None:
        for model, (inputs, classes), numbers in zip(self.models, self.data, chosen, strict=True):
            model.zero_grad(set_to_none=True)
            cross_entropy(model(inputs[numbers]), classes[numbers]).backward()
        with torch.no_grad():
            states = [list(model.parameters()) for model in self.models]
            mixed = [
                [sum(weight * states[j][k] for j, weight in members) for k in range(len(own))]
                for members, own in zip(self.mixing, states, strict=True)
            ]
            for own, values in zip(states, mixed, strict=True):
                for parameter, value in zip(own, values, strict=True):
                    assert parameter.grad is not None
                    parameter.copy_(value).sub_(parameter.grad, alpha=stepsize)


def seconds_of_copying(size: int) -> float:
    """CPU seconds of a bare copy of `size` bytes that lie in no cache."""
    count = max(2, (1 << 28) // max(size, 1))
    source = torch.ones(count, size // 8, dtype=torch.float64)
    target = torch.empty_like(source)
    target.copy_(source)
    begun = time.process_time()
    target.copy_(source)
    return (time.process_time() - begun) / count
