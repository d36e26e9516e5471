"""Figures about all agents together. Each call reveals something to everybody: none is automatic.

All agents must make the same call in the same round. A sum over all agents lets any m - 1 of them
who pool what they know compute the last one's model: use these for studies, not in production.
"""

import torch
from torch import Tensor

from sottovoce.distributed.optimizer import DecentralizedSGD


def mean_model(optimizer: DecentralizedSGD) -> Tensor:
    """The average x̄ of all agents' parameters: (d,), in the order of the parameters.

    Reveals x̄ to every agent, and on the way partial sums of models to single agents.
    """
    total = optimizer.state_vector.to(optimizer.transport.device, copy=True)
    optimizer.transport.sum_(total, "the mean of the models")
    return total.div_(optimizer.graph.agents).to(optimizer.state_vector.device)


def consensus_error(optimizer: DecentralizedSGD) -> float:
    """How far the agents are apart: sqrt(mean_i ||x_i - x̄||²).

    Reveals x̄ (it is computed on the way) and the agents' distances from it in partial sums.
    """
    distance = optimizer.state_vector.double() - mean_model(optimizer).double()
    total = distance.square().sum().to(optimizer.transport.device).reshape(1)
    optimizer.transport.sum_(total, "the consensus error")
    return float(torch.sqrt(total / optimizer.graph.agents))
