"""The best linear estimate of a step from many rounds, with what is known about the others."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sottovoce.errors import AttackError
from sottovoce.mechanisms import Clock, Flow, Mechanism, ZeroSumNoise, public_split
from sottovoce.privacy.adversaries import View
from sottovoce.privacy.attacks.base import Attack, Estimate, gradient_of, state_from_messages
from sottovoce.privacy.attacks.identities import LeastSquares
from sottovoce.privacy.message_law import MessageLaw
from sottovoce.randomness import private_streams

_SAMPLES = 2000
SPREAD = "spread of coefficients"
"""The purpose of noise that stands for it."""
_LEAST_PRIOR = 1e-3
"""Gradients are taken to be at least this fraction of the noise, so that a prior always exists."""


@dataclass(frozen=True)
class Smoothing(Attack):
    """The posterior mean of the step given all messages of rounds k - `reach` to k + `reach`.

    Shares and steps are taken as Gaussian (`MessageLaw`): noise at its public size, the spread of
    private coefficients as noise in proportion to the step, other steps as numbers of mean 0. How
    large gradients are is read off the messages first: an estimate that knows nothing
    about steps has their variance plus that of its own error. Where noise outweighs the steps,
    states drift slowly and many rounds tell where the target was before and after its step. Rounds
    of several exchanges are part of the same law.
    """

    name: ClassVar[str] = "smoothing"
    several: ClassVar[bool] = True
    reach: int = 6

    def rounds(self, round: int) -> list[int]:
        return list(range(max(1, round - self.reach), round + self.reach + 1))

    def estimate(self, view: View, target: int, round: int) -> Estimate:
        self._require_links(view, target, 1)
        if strange := [type(part).__name__ for part in view.algorithm.parts if not part.linear]:
            raise AttackError(
                f"{self.name} reads messages whose law is Gaussian; {view.algorithm} has "
                f"{', '.join(strange)}"
            )
        at = view.position(round, self.name)
        deviations = coefficient_deviations(view)
        typical = self._typical_gradient(view, target, round, deviations)
        law = MessageLaw.of(view, algorithm=with_spread(view, typical, deviations), prior=typical)
        step = law.estimator(target, [round]).apply(view.messages, view.start)[0]
        # A posterior mean holds a fraction of the gradient; the estimate holds all of it.
        left = law.posterior_sd(target, round) / view.stepsize.mean(round, target)
        held = max(1 - (left / typical) ** 2, _LEAST_PRIOR**2)
        step /= held
        try:
            state = LeastSquares().estimate(view, target, round).state
        except AttackError:
            state = state_from_messages(view, target, at)
        others = float((law.leak(target, round) ** 2).sum()) / held**2
        return Estimate(gradient_of(view, target, round, step), True, state, others=others)

    def _typical_gradient(self, view: View, target: int, round: int, deviations: Tensor) -> float:
        """The root mean square of a gradient's coordinates, from messages alone."""
        mean = view.stepsize.mean(round, target)
        law = MessageLaw.of(view, algorithm=with_spread(view, 1.0, deviations))
        rough = law.estimator(target, [round])
        if not bool(rough.identified[0]):
            raise AttackError(
                f"smoothing cannot tell the step of agent {target} in round {round} from its "
                f"state; it needs messages of the target in consecutive rounds, and the adversary "
                f"saw rounds {view.rounds}"
            )
        seen = float(rough.apply(view.messages, view.start).square().mean()) / mean**2
        noise = (law.posterior_sd(target, round) / mean) ** 2
        if bool(deviations.any()) and not MessageLaw.of(view).noisy:
            # The spread of coefficients scales with the steps: seen = typical² (1 + noise).
            return math.sqrt(seen / (1 + noise))
        return math.sqrt(max(seen - noise, _LEAST_PRIOR**2 * seen))


def coefficient_deviations(view: View) -> Tensor:
    """The standard deviation of each sender's own private coefficient b_jj: (agents,).

    Drawn from the public law; 0 where coefficients are public.
    """
    graph, mechanism = view.graph, view.algorithm
    if public_split(mechanism, graph):
        return torch.zeros(graph.agents, dtype=torch.float64)
    routes = graph.routes()
    streams = private_streams(_SAMPLES, graph.agents, insecure_seed=0)
    ones = torch.ones(_SAMPLES, graph.agents, 1, dtype=torch.float64)
    flow = Flow(ones, ones, routes, streams, view.stepsize, Clock(view.rounds[0]))
    mechanism.split(flow)
    return flow.shares[..., 0].std(0)[routes.own]


def with_spread(view: View, typical: float, deviations: Tensor) -> Mechanism:
    """The chain in which the spread of coefficients counts as noise that sums to zero."""
    if not bool(deviations.any()):
        return view.algorithm
    # n_ij has the variance 1 - 1/|N_j|.
    spread = typical * deviations / (1 - 1 / view.graph.routes().members.double()).sqrt()
    return view.algorithm + ZeroSumNoise(tuple(spread.tolist()), SPREAD)
