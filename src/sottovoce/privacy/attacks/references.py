"""Attacks that know a state, or something near it, and subtract it from a message."""

from typing import ClassVar

import torch
from torch import Tensor

from sottovoce.errors import AttackError
from sottovoce.mechanisms import public_split
from sottovoce.privacy.adversaries import View
from sottovoce.privacy.attacks.base import (
    Attack,
    Estimate,
    draws_by_coordinate,
    expected_shares,
    gradient_of,
    inflow,
    state_from_messages,
)
from sottovoce.privacy.attacks.elimination import Elimination
from sottovoce.privacy.attacks.identities import LeastSquares


class FirstRound(Attack):
    """A common starting point x^1 gives b_ij Λ_j g_j in round 1 from a single message.

    Σ_i (w_ij x^1 - v_ij^1) = (Σ_i b_ij) Λ_j g_j over the seen links; the scalar is unknown where b
    is random, and taken at its expectation.
    """

    name: ClassVar[str] = "first-round"

    def estimate(self, view: View, target: int, round: int) -> Estimate:
        links = self._require_links(view, target, 1)
        self._require_shares(view)
        if round != 1 or view.start is None:
            missing = "a common starting point" if round == 1 else f"round 1, not round {round}"
            raise AttackError(f"first-round needs {missing}")
        return _subtract(self, view, target, round, links, view.start.double())


class KnownState(Attack):
    """Subtract a known state x_j from the messages: Λ_j g_j exactly, or up to one scalar.

    Where all links are seen in round k and x_j is known in k + 1 too, Λ_j g_j = x_j^k - x_j^{k+1} +
    received - sent exactly. From single messages, Σ_i (w_ij x_j - v_ij) = (Σ_i b_ij) Λ_j g_j.
    """

    name: ClassVar[str] = "known-state"
    around: ClassVar[tuple[int, int]] = (0, 1)

    def estimate(self, view: View, target: int, round: int) -> Estimate:
        if view.states is None:
            raise AttackError(
                "known-state needs the target's state; give the adversary knows={'state'}"
            )
        links = self._require_links(view, target, 1)
        at = view.position(round, self.name)
        state = view.states[at][:, target].double()
        if view.sees_all_links_of(target) and view.rounds[at + 1 : at + 2] == [round + 1]:
            after = view.states[at + 1][:, target].double()
            step = state - after + inflow(view, target, at)
            return Estimate(gradient_of(view, target, round, step), True, state, step)
        self._require_shares(view)
        return _subtract(self, view, target, round, links, state)


class OwnState(Attack):
    """A curious neighbour puts its own state in place of the target's: near it by consensus.

    Σ_i (w_ij x_i - v_ij) = Σ_i w_ij (x_i - x_j) + (Σ_i b_ij) Λ_j g_j over its own agents i.
    """

    name: ClassVar[str] = "own-state"

    def estimate(self, view: View, target: int, round: int) -> Estimate:
        self._require_target(view, target)
        receivers = view.receiver.tolist()
        links = [link for link in view.links_from(target) if receivers[link] in view.inside]
        if view.sums is not None:
            self._require_links(view, target, 1)
        if not links:
            raise AttackError(
                f"own-state needs a curious neighbour of agent {target}; the adversary's agents "
                f"are {sorted(view.inside) or 'none'}"
            )
        self._require_shares(view)
        at = view.position(round, self.name)
        states = torch.stack([view.inside[receivers[link]].states[at].double() for link in links])
        return _subtract(self, view, target, round, links, states)


class Averaging(Attack):
    """The mean over all rounds, for a gradient that stays the same, as it does with repeated data.

    Where `elimination` sees the step (`own-state` where one link is seen), every round's direction
    is scaled to length 1 and turned towards that of the wanted round; the private stepsizes of K
    rounds average out like 1/√K. Where coefficients are public or drawn at every coordinate, the
    steps of `least-squares` are summed and divided by the summed stepsizes: consecutive steps are
    differences of the same noise, which telescopes, so that noise that sums to zero over a
    neighbourhood falls like 1/K, and noise on the gradient like 1/√K. Where each round has other
    samples, the mean is a mixture of their gradients.
    """

    name: ClassVar[str] = "averaging"
    around: ClassVar[tuple[int, int]] = (0, 1)

    def estimate(self, view: View, target: int, round: int) -> Estimate:
        if len(view.rounds) < 2:
            raise AttackError(f"averaging needs two rounds; the adversary saw {view.rounds}")
        view.position(round, self.name)
        certain = public_split(view.algorithm, view.graph) or draws_by_coordinate(view)
        if certain and view.sees_all_links_of(target):
            return self._sum_of_steps(view, target, round)
        two = len(view.links_from(target)) >= 2
        single: Attack = Elimination() if two else OwnState()
        first = single.estimate(view, target, round)
        reference = torch.nn.functional.normalize(first.gradient, dim=1)
        total = reference.clone()
        for other in (k for k in view.rounds if k != round):
            found = single.estimate(view, target, other).gradient
            unit = torch.nn.functional.normalize(found, dim=1)
            sign = (unit * reference).sum(1, keepdim=True).sign()
            total += torch.where(sign == 0, 1.0, sign) * unit
        return Estimate(total / len(view.rounds), False, first.state, signs_known=first.signs_known)

    def _sum_of_steps(self, view: View, target: int, round: int) -> Estimate:
        single = LeastSquares()
        state = single.estimate(view, target, round).state
        total, stepsizes = torch.zeros_like(state), 0.0
        for one in view.rounds:
            try:
                gradient = single.estimate(view, target, one).gradient
            except AttackError:
                continue
            mean = view.stepsize.mean(one, target)
            total += mean * gradient
            stepsizes += mean
        return Estimate(total / stepsizes, True, state)


def _subtract(
    attack: Attack, view: View, target: int, round: int, links: list[int], state: Tensor
) -> Estimate:
    """Subtract messages from w_ij x; state: (runs, d), or (links, runs, d), one for each link."""
    at = view.position(round, attack.name)
    weights = view.weights(links)[:, None, None]
    messages = view.messages[at][:, links].transpose(0, 1).double()
    shares = (weights * state - messages).sum(0)
    step = shares / float(expected_shares(view, links).sum())
    certain = public_split(view.algorithm, view.graph) and state.dim() == 2
    guess = state if state.dim() == 2 else state_from_messages(view, target, at)
    gradient = gradient_of(view, target, round, step)
    return Estimate(gradient, certain, guess, step if certain else None)
