"""Attacks that take the update at its word, with expectations in place of private numbers."""

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
    needs: ClassVar[str] = "all links to the target and one from it, in rounds k and k + 1"

    def rounds(self, round: int) -> list[int]:
        return [round, round + 1]

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
        step = mixed - state_from_messages(view, target, after)
        return Estimate(gradient_of(view, target, round, step), True, state)


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
    needs: ClassVar[str] = "rounds k - 1 and k with all links of the target, or the starting point"

    def rounds(self, round: int) -> list[int]:
        return [k for k in (round - 1, round, round + 1) if k >= 1]

    def estimate(self, view: View, target: int, round: int) -> Estimate:
        links = self._require_links(view, target, 1)
        wanted = view.position(round, self.name)
        parts = (expected_shares(view, links) / view.weights(links)).tolist()
        count = len(view.rounds)
        rows: list[dict[int, float]] = []
        values: list[tuple[str, int, int]] = []
        for at, k in enumerate(view.rounds):
            for place, part in enumerate(parts):
                rows.append({at: 1.0, count + at: -part})
                values.append(("message", at, place))
            if k == 1 and view.start is not None:
                rows.append({at: _EXACT})
                values.append(("start", at, 0))
            if view.sees_all_links_of(target) and view.rounds[at + 1 : at + 2] == [k + 1]:
                rows.append({at + 1: _EXACT, at: -_EXACT, count + at: _EXACT})
                values.append(("update", at, 0))
        system = torch.zeros(len(rows), 2 * count, dtype=torch.float64)
        for row, entries in enumerate(rows):
            for column, entry in entries.items():
                system[row, column] = entry
        inverse = torch.linalg.pinv(system, rtol=1e-12)
        resolution = (inverse @ system)[count + wanted]
        resolution[count + wanted] -= 1
        if float(resolution.abs().max()) > 1e-6:
            raise AttackError(
                f"least-squares cannot tell the step of agent {target} in round {round} from its "
                f"state; it needs {self.needs}, and the adversary saw rounds {view.rounds}"
            )
        state, step = (
            sum(
                float(inverse[unknown, row]) * _value(view, target, links, *value)
                for row, value in enumerate(values)
            )
            for unknown in (wanted, count + wanted)
        )
        assert isinstance(state, Tensor)
        assert isinstance(step, Tensor)
        return Estimate(gradient_of(view, target, round, step), True, state)


def _value(view: View, target: int, links: list[int], kind: str, at: int, place: int) -> Tensor:
    """The right-hand side of one equation: (runs, d)."""
    if kind == "message":
        return ratios(view, links[place : place + 1], at)[0]
    if kind == "start":
        assert view.start is not None
        return _EXACT * view.start.double()
    return _EXACT * inflow(view, target, at)
