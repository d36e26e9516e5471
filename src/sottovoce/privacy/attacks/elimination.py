"""Attacks that remove the state: two messages of one sender, and consecutive rounds of them."""

from typing import ClassVar

import torch
from torch import Tensor

from sottovoce.errors import AttackError
from sottovoce.privacy.adversaries import View
from sottovoce.privacy.attacks.base import (
    Attack,
    Estimate,
    draws_by_coordinate,
    gradient_of,
    inflow,
    ratios,
    rounding_of,
)

_TINY = 1e-300


class Elimination(Attack):
    """Two messages of one sender in one round give Λ_j g_j up to one scalar.

    v_ij / w_ij - v_lj / w_lj = -(b_ij / w_ij - b_lj / w_lj) Λ_j g_j: the state x_j cancels. With
    more than two links all differences are parallel; the leading direction of the messages about
    their mean uses them all. Where b is drawn at every coordinate, so is the factor: magnitudes
    are left, without signs. The state at which the gradient was taken is that of `chain` where the
    adversary saw the rounds for it, else the mean of v_ij / w_ij, which is off by a share.
    """

    name: ClassVar[str] = "elimination"

    def estimate(self, view: View, target: int, round: int) -> Estimate:
        links = self._require_links(view, target, 2)
        self._require_shares(view)
        mean, direction = line_of(view, links, view.position(round, self.name), self.name)
        gradient = gradient_of(view, target, round, direction)
        try:
            state = Chain().estimate(view, target, round).state
        except AttackError:
            state = mean
        rounding = rounding_of(view, target, round, mean.abs())
        return Estimate(
            gradient, False, state, signs_known=not draws_by_coordinate(view), rounding=rounding
        )


class Chain(Attack):
    """Elimination in consecutive rounds: x_j and Λ_j g_j themselves.

    Two links put the state on a line, x^k = p^k + α^k d^k with d^k parallel to s^k = β^k d^k. With
    the visible sums, x^{k+1} = x^k - s^k + received^k - sent^k. Two rounds are then d equations

        p^k + γ^k d^k + received^k - sent^k = p^{k+1} + α^{k+1} d^{k+1},    γ^k = α^k - β^k

    in two unknown scalars, and x^{k+1} follows. With the round before, α^k too, hence
    s^k = (α^k - γ^k) d^k. In round 1 a common starting point takes the place of the round before.
    Needs two links of the target and all its messages in these rounds.
    """

    name: ClassVar[str] = "chain"
    around: ClassVar[tuple[int, int]] = (1, 1)

    def estimate(self, view: View, target: int, round: int) -> Estimate:
        links = self._require_links(view, target, 2)
        self._require_all_links(view, target)
        self._require_shares(view)
        if draws_by_coordinate(view):
            raise AttackError(
                "chain needs one coefficient a link; this algorithm draws one for every coordinate "
                "(`least-squares` takes their mean)"
            )
        at = view.position(round, self.name)
        point, direction = line_of(view, links, at, self.name)
        if round == 1:
            if view.start is None:
                raise AttackError("chain needs a common starting point to attack round 1")
            away = view.start.double() - point
            alpha = (away * direction).sum(1) / direction.square().sum(1)
        else:
            before = view.position(round - 1, self.name)
            _, alpha = self._join(view, target, links, before, at)
        gamma, _ = self._join(view, target, links, at, view.position(round + 1, self.name))
        step = (alpha - gamma)[:, None] * direction
        state = point + alpha[:, None] * direction
        return Estimate(gradient_of(view, target, round, step), True, state, step)

    def _join(
        self, view: View, target: int, links: list[int], now: int, after: int
    ) -> tuple[Tensor, Tensor]:
        """γ of the first round and α of the second, each (runs,)."""
        point, direction = line_of(view, links, now, self.name)
        next_point, next_direction = line_of(view, links, after, self.name)
        right = next_point - point - inflow(view, target, now)
        return _two_scalars(direction, -next_direction, right)


def _two_scalars(first: Tensor, second: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The γ and α of the least |γ first + α second - right|, run by run: (runs,) each.

    Gram and Schmidt by plain sums: a library's solver need not give the same bits twice. Where a
    direction has length 0 its scalar is 0.
    """
    size = first.norm(dim=1, keepdim=True)
    unit = first / size.clamp_min(_TINY)
    across = second - (unit * second).sum(1, keepdim=True) * unit
    alpha = (across * right).sum(1) / across.square().sum(1).clamp_min(_TINY)
    rest = right - alpha[:, None] * second
    gamma = (unit * rest).sum(1) / size[:, 0].clamp_min(_TINY)
    return gamma, alpha


def line_of(view: View, links: list[int], at: int, attack: str) -> tuple[Tensor, Tensor]:
    """The line on which a sender's state lies: a point and a direction, (runs, d) each."""
    found = ratios(view, links, at)
    mean = found.mean(0)
    around = found - mean
    products = [torch.stack([(one * other).sum(1) for other in around], 1) for one in around]
    _, vectors = torch.linalg.eigh(torch.stack(products, 1))
    direction = torch.zeros_like(mean)
    for place, one in enumerate(around):
        direction += vectors[:, place, -1:] * one
    # Rounded messages differ by less than this; a run whose coefficients happen to lie close is
    # attacked all the same, with the digits that are left.
    rounding = torch.finfo(view.messages.dtype).eps * mean.norm(dim=1)
    if bool((direction.norm(dim=1) <= rounding).all()):
        sender = int(view.sender[links[0]])
        raise AttackError(
            f"{attack} finds no difference between the messages of agent {sender} in round "
            f"{view.rounds[at]}: its coefficients b_ij are proportional to w_ij, so that nothing "
            "can be eliminated (`least-squares` takes such coefficients as known)"
        )
    return mean, direction
