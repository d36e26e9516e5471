"""Attacks that solve the update equation, with expected values for private numbers."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from sottovoce.errors import AttackError
from sottovoce.privacy.adversaries import View
from sottovoce.privacy.attacks.base import (
    Attack,
    Estimate,
    expected_shares,
    gradient_of,
    inflow,
    ratios,
    rounding_of,
    state_from_messages,
)

_EXACT = 1e4
"""How much more an equation that holds exactly weighs than one that holds in the mean."""


class Conventional(Attack):
    """The identity of conventional decentralized SGD: exact for DSGD, the paper's attacker.

    x_j^k = v_ij^k / w_ij from any link of j, and g_i^k = (Σ_{j in N_i} w_ij x_j^k - x_i^{k+1}) / λ̄.
    On PDSGD the states contain shares of steps, and λ̄ is only the expectation. There the identity
    returns ((b_ii - w_ii c^k) s^k + c^{k+1} s^{k+1}) / λ̄ with c the mean of b_ji / w_ji over the
    seen links: with equal weights the first factor has mean 0, so that most of what it finds is the
    gradient of the next round.
    """

    name: ClassVar[str] = "conventional"
    around: ClassVar[tuple[int, int]] = (0, 1)

    def estimate(self, view: View, target: int, round: int) -> Estimate:
        self._require_links(view, target, 1)
        received = view.links_to(target)
        if len(received) < len(view.graph.neighbours(target)):
            raise AttackError(
                f"conventional needs every message to agent {target}; the adversary sees "
                f"{len(received)} of {len(view.graph.neighbours(target))}"
            )
        now, after = (view.position(k, self.name) for k in (round, round + 1))
        state = state_from_messages(view, target, now)
        own_weight = float(view.graph.mixing[target, target])
        mixed = view.messages[now][:, received].double().sum(1) + own_weight * state
        later = state_from_messages(view, target, after)
        size = view.messages[now][:, received].double().abs().sum(1)
        size += own_weight * state.abs() + later.abs()
        gradient = gradient_of(view, target, round, mixed - later)
        rounding = rounding_of(view, target, round, size)
        return Estimate(gradient, True, state, rounding=rounding)


class LeastSquares(Attack):
    """All rounds and links of the target jointly, with expected coefficients and stepsizes.

    Unknown are x^k and s^k of every recorded round k. In the mean v_ij^k / w_ij = x^k -
    (b̄ / w_ij) s^k on every seen link; exactly x^{k+1} = x^k - s^k + received - sent where all links
    are seen, and x^1 is the common starting point. The matrix is the same for all coordinates: one
    small pseudo-inverse serves them all. Then g = s / λ̄. Exact for DSGD and NoisyDSGD (up to the
    noise), whose coefficients are public. Where coefficients are drawn at every coordinate, their
    relative spread is all that stays on the step.
    """

    name: ClassVar[str] = "least-squares"
    around: ClassVar[tuple[int, int]] = (1, 1)

    def estimate(self, view: View, target: int, round: int) -> Estimate:
        links = self._require_links(view, target, 1)
        wanted = view.position(round, self.name)
        parts = (expected_shares(view, links) / view.weights(links)).tolist()
        count = len(view.rounds)
        # Weight, coefficients and right-hand side, which is computed when it is needed: all of them
        # together may not fit into memory.
        equations: list[tuple[float, dict[int, float], Callable[[], Tensor]]] = []
        for at, k in enumerate(view.rounds):
            for link, part in zip(links, parts, strict=True):
                seen = partial(ratios, view, [link], at)
                equations.append((1.0, {at: 1.0, count + at: -part}, seen))
            if k == 1 and view.start is not None:
                equations.append((_EXACT, {at: 1.0}, view.start.double))
            if view.sees_all_links_of(target) and view.rounds[at + 1 : at + 2] == [k + 1]:
                update = {at + 1: 1.0, at: -1.0, count + at: 1.0}
                equations.append((_EXACT, update, partial(inflow, view, target, at)))
        system = torch.zeros(len(equations), 2 * count, dtype=torch.float64)
        for row, (weight, entries, _) in enumerate(equations):
            for column, entry in entries.items():
                system[row, column] = weight * entry
        inverse = torch.linalg.pinv(system, rtol=1e-12)
        resolution = (inverse @ system)[count + wanted]
        resolution[count + wanted] -= 1
        if float(resolution.abs().max()) > 1e-6:
            raise AttackError(
                f"least-squares cannot tell the step of agent {target} in round {round} from its "
                "state; it needs rounds k - 1 and k with all links of the target, or the starting "
                f"point, and the adversary saw rounds {view.rounds}"
            )
        state, step = view.messages.new_zeros(2, *view.messages[0, :, 0].shape).double()
        reach = 0.0
        for row, (weight, _, value) in enumerate(equations):
            right = weight * value().reshape(state.shape)
            state += float(inverse[wanted, row]) * right
            step += float(inverse[count + wanted, row]) * right
            reach += weight * abs(float(inverse[count + wanted, row]))
        # No equation adds messages of more than twice the size of a state.
        rounding = rounding_of(view, target, round, 2 * reach * state.abs())
        return Estimate(gradient_of(view, target, round, step), True, state, rounding=rounding)
