"""The best linear estimate of a step from many rounds, with what is known about the others."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from sottovoce.errors import AttackError
from sottovoce.mechanisms import ZeroSumDSGD
from sottovoce.privacy.adversaries import View
from sottovoce.privacy.attacks.base import Attack, Estimate, gradient_of, state_from_messages
from sottovoce.privacy.attacks.identities import LeastSquares
from sottovoce.privacy.linear_group import ShareModel
from sottovoce.privacy.linear_view import LinearView, share_model
from sottovoce.randomness import private_streams

_SAMPLES = 2000
_LEAST_PRIOR = 1e-3
"""Gradients are taken to be at least this fraction of the noise, so that a prior always exists."""


@dataclass(frozen=True)
class Smoothing(Attack):
    """The posterior mean of the step given all messages of rounds k - `reach` to k + `reach`.

    Shares and steps are taken as Gaussian (`LinearView`): zero-sum noise at its public size, the
    spread of private coefficients as noise in proportion to the step, other steps as numbers of
    mean 0. How large gradients are is read off the messages first: an estimate that knows nothing
    about steps has their variance plus that of its own error. Where noise outweighs the steps,
    states drift slowly and many rounds tell where the target was before and after its step.
    """

    name: ClassVar[str] = "smoothing"
    needs: ClassVar[str] = "messages of the target in consecutive rounds"
    reach: int = 6

    def rounds(self, round: int) -> list[int]:
        return list(range(max(1, round - self.reach), round + self.reach + 1))

    def estimate(self, view: View, target: int, round: int) -> Estimate:
        self._require_links(view, target, 1)
        at = view.position(round, self.name)
        deviations = coefficient_deviations(view)
        typical = self._typical_gradient(view, target, round, deviations)
        step = self._posterior_mean(view, target, round, typical, deviations)
        try:
            state = LeastSquares().estimate(view, target, round).state
        except AttackError:
            state = state_from_messages(view, target, at)
        return Estimate(gradient_of(view, target, round, step), True, state)

    def _posterior_mean(
        self, view: View, target: int, round: int, typical: float, deviations: Tensor
    ) -> Tensor:
        model = LinearView.of(view, shares=_with_spread(view, typical, deviations), prior=typical)
        found = model.estimator(target, [round]).apply(view.messages, view.start)
        return found[0]

    def _typical_gradient(self, view: View, target: int, round: int, deviations: Tensor) -> float:
        """The root mean square of a gradient's coordinates, from messages alone."""
        mean = view.stepsize.mean(round, target)
        model = LinearView.of(view, shares=_with_spread(view, 1.0, deviations))
        rough = model.estimator(target, [round])
        if not bool(rough.identified[0]):
            raise AttackError(
                f"smoothing cannot tell the step of agent {target} in round {round} from its "
                f"state; it needs {self.needs}, and the adversary saw rounds {view.rounds}"
            )
        own_noise = bool(getattr(view.algorithm, "noise", 0.0))
        seen = float(rough.apply(view.messages, view.start).square().mean()) / mean**2
        noise = (model.posterior_sd(target, round) / mean) ** 2
        if bool(deviations.any()) and not own_noise:
            # The spread of coefficients scales with the steps: seen = typical² (1 + noise).
            return math.sqrt(seen / (1 + noise))
        return math.sqrt(max(seen - noise, _LEAST_PRIOR**2 * seen))


def coefficient_deviations(view: View) -> Tensor:
    """The standard deviation of the private coefficients b_ij of each sender: (agents,).

    Drawn from the public law; 0 where coefficients are public.
    """
    agents = view.graph.agents
    if view.algorithm.coefficients_are_public:
        return torch.zeros(agents, dtype=torch.float64)
    routes = view.graph.routes()
    streams = private_streams(_SAMPLES, agents, insecure_seed=0)
    ones = torch.ones(_SAMPLES, agents, 1, dtype=torch.float64)
    algorithm = view.algorithm
    if isinstance(algorithm, ZeroSumDSGD):
        algorithm = replace(algorithm, noise=0.0)
    drawn = algorithm.shares(ones, routes, streams, view.rounds[0], view.stepsize)[..., 0]
    return drawn.std(0)[routes.own]


def _with_spread(view: View, typical: float, deviations: Tensor) -> ShareModel:
    """The share model in which the spread of coefficients counts as zero-sum noise."""
    shares = share_model(view.graph, view.algorithm)
    if not bool(deviations.any()):
        return shares
    members = torch.bincount(view.graph.routes().sender, minlength=view.graph.agents).double()
    # n_ij has the variance 1 - 1/|N_j|.
    spread = typical * deviations / (1 - 1 / members).sqrt()
    sizes = torch.hypot(spread, torch.from_numpy(shares.zero_sum))
    return ShareModel(shares.coefficients, sizes.numpy(), shares.on_step)
