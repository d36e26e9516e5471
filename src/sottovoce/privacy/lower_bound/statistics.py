"""What tells runs with the canary from runs without: statistics of all agents' perturbed steps."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sottovoce.privacy.columns import Array

_SAME = 1e-9
"""Two numbers closer than this fraction of their size are the same draw."""


@dataclass(frozen=True, eq=False)
class Watched:
    """What is public beside the steps, in units of the mean stepsize.

    agent: whose canary it is. covariance: (agents, agents), of the noise on the steps. effect: how
    far the canary moves a step. rate: how often.
    """

    agent: int
    covariance: Array
    effect: float
    rate: float


class Statistic(ABC):
    """A number for each run that is larger, or smaller, where the canary is."""

    name: ClassVar[str]

    @abstractmethod
    def __call__(self, steps: Tensor, watched: Watched) -> Tensor:
        """The statistic of steps (rounds, runs, agents) in units of the mean stepsize: (runs,)."""


class LikelihoodRatio(Statistic):
    """The exact likelihood ratio under the mechanism's own law: no test has fewer errors.

    Whitening over the agents gives t_k = (Σ^-1 s_k)_j / (Σ^-1)_jj with variance v = 1/(Σ^-1)_jj. A
    round has the canary with probability q, which shifts t by c:

        Σ_k ln(1 - q + q exp((c t_k - c²/2) / v))
    """

    name: ClassVar[str] = "likelihood-ratio"

    def __call__(self, steps: Tensor, watched: Watched) -> Tensor:
        seen, variance = whitened(steps, watched)
        if variance == 0:
            return seen.sum(0)
        shift = watched.effect
        exponent = (shift * seen - shift**2 / 2) / variance
        if watched.rate == 1:
            return exponent.sum(0)
        out, within = math.log1p(-watched.rate), math.log(watched.rate)
        return torch.logaddexp(exponent + within, torch.full_like(exponent, out)).sum(0)


class Energy(Statistic):
    """The sum of squares, which grows with the canary whatever its sign or size."""

    name: ClassVar[str] = "energy"

    def __call__(self, steps: Tensor, watched: Watched) -> Tensor:
        return whitened(steps, watched)[0].square().sum(0)


class Repeats(Statistic):
    """How few numbers come twice among all rounds and agents: noise that was drawn once.

    Reused noise cancels exactly between two steps, unless the canary is in one of them alone. Where
    noise is fresh no two numbers are equal and this tells nothing.
    """

    name: ClassVar[str] = "repeats"

    def __call__(self, steps: Tensor, watched: Watched) -> Tensor:
        values, _ = steps.transpose(0, 1).flatten(1).sort(1)
        size = values.abs().amax(1, keepdim=True)
        equal = (values.diff(dim=1).abs() <= _SAME * size).sum(1)
        return -equal.double()


STATISTICS: tuple[Statistic, ...] = (LikelihoodRatio(), Energy(), Repeats())
"""Every statistic that the audit of a mechanism tries."""


def whitened(steps: Tensor, watched: Watched) -> tuple[Tensor, float]:
    """The best estimate of the agent's own gradient from all steps, (rounds, runs), its variance.

    Where some combination of the steps is free of noise, it is the estimate, of variance 0.
    """
    j, covariance = watched.agent, watched.covariance
    values, vectors = np.linalg.eigh(covariance)
    free = values <= 1e-11 * max(float(values[-1]), 1e-300)
    along = vectors[j]
    if bool((np.abs(along[free]) > 1e-5).any()) or not values.any():
        weights = vectors[:, free] @ along[free]
        weights = weights / (along[free] @ along[free])
        variance = 0.0
    else:
        inverse = (vectors[:, ~free] / values[~free]) @ vectors[:, ~free].T
        weights, variance = inverse[j] / inverse[j, j], float(1 / inverse[j, j])
    return steps.double() @ torch.from_numpy(np.ascontiguousarray(weights)), variance
