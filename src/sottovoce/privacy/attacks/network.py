"""Steps of any agent, near or far, from all that an adversary sees over many rounds."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from sottovoce.errors import AttackError
from sottovoce.privacy.adversaries import View
from sottovoce.privacy.attacks.base import Attack, Estimate, gradient_of
from sottovoce.privacy.attacks.observations import (
    Array,
    Observations,
    about,
    centre_of,
    observe,
    rounding,
    rounds_around,
)

_FLAT = 1e3
"""Prior deviation of a common point that is not known, in units of what is seen about it."""
_RANK = 1e-13
"""Eigenvalues of a covariance below this fraction of the largest count as zero."""
_LEAST = 1e-6
"""The least fraction of a gradient in an estimate that is scaled up."""


class Sizes(NamedTuple):
    """Root mean squares of a gradient's coordinates: of one round's part and of the steady one."""

    fresh: float
    steady: float


@dataclass(frozen=True)
class LongRange(Attack):
    """Least squares over the whole graph: what is seen anywhere, at any time, tells of all agents.

    x^{k+1} = W x^k - B s^k carries the step of a far agent to the adversary within as many rounds
    as there are links between them (Mrini, Cyffers and Bellet 2024). Everything seen is linear in
    the steps: single messages, sums of masked ones, the insides of curious agents. With steps
    taken as Gaussian, random coefficients at their mean with their spread as noise, and the chain's
    own noise at its public size, the posterior mean of a step is one matrix for all coordinates. A
    gradient is a part that an agent keeps over all rounds plus one of the round; how large each is
    is the likeliest given everything seen. Large batches change little from round to round, which
    is what tells far agents apart. The agents' states before the first round follow from `before`
    unseen rounds from a common point. Where neighbours cannot be told apart (the two of a ring's
    agent that sees sums), the estimate is their sum.
    """

    name: ClassVar[str] = "long-range"
    reach: int = 6
    before: int = 12

    def rounds(self, round: int) -> list[int]:
        return list(range(max(1, round - self.reach), round + self.reach + 1))

    def estimate(self, view: View, target: int, round: int) -> Estimate:
        self._require_target(view, target)
        if view.sees_all_links_of(target):
            raise AttackError(
                f"every message from and to agent {target} is seen: others tell nothing more of "
                "its steps (`smoothing` reads its own)"
            )
        view = rounds_around(view, round, self.reach, self.name)
        seen = observe(view, self.before)
        sizes = likeliest_sizes(view, seen)
        prior = prior_deviations(view, seen, sizes, common_deviation(view, seen))
        place = seen.gradients.shape[0] - len(view.rounds) + view.rounds.index(round)
        wanted = np.zeros((2, seen.rows.shape[1]))
        wanted[0, [seen.steady[target], seen.gradients[place, target]]] = 1.0
        wanted[1] = seen.states[place, target]
        weights = (
            wanted @ (prior[:, None] ** 2 * seen.rows.T) @ inverse_covariance(view, seen, prior)
        )
        # A posterior mean holds a fraction of the gradient; the estimate holds all of it.
        weights[0] /= max(float(weights[0] @ seen.rows[:, seen.gradients[place, target]]), _LEAST)
        leak = np.delete(
            weights[0] @ seen.rows[:, seen.gradients.reshape(-1)],
            [place * view.graph.agents + target],
        )
        centre = centre_of(view)
        found, state = torch.einsum("ts,srd->trd", torch.from_numpy(weights), about(seen, centre))
        step = view.stepsize.mean(round, target) * found
        return Estimate(
            gradient_of(view, target, round, step),
            True,
            state + centre,
            others=float((leak**2).sum()),
        )


def common_deviation(view: View, seen: Observations) -> float:
    """The prior deviation of the point common to all agents: 0 where it is known, else wide."""
    if view.start is not None and view.rounds[0] == 1:
        return 0.0
    return _FLAT * math.sqrt(float(about(seen, centre_of(view)).square().mean()))


def prior_deviations(view: View, seen: Observations, sizes: Sizes, common: float) -> Array:
    """Prior deviations of the columns; common: that of the point common to all agents."""
    found = np.ones(seen.rows.shape[1])
    found[1 : seen.steady.min()] = view.private_start
    found[seen.steady] = sizes.steady
    found[seen.gradients], found[seen.spread] = sizes.fresh, math.hypot(sizes.fresh, sizes.steady)
    found[0] = common
    return found


def inverse_covariance(view: View, seen: Observations, prior: Array) -> Array:
    """The inverse of what is seen has as covariance, 0 where it never varies: (seen, seen)."""
    scaled = seen.rows * prior
    values, vectors = np.linalg.eigh(scaled @ scaled.T + rounding(view, seen) * np.eye(len(scaled)))
    kept = values > _RANK * values[-1]
    inverse: Array = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T
    return inverse


def likeliest_sizes(view: View, seen: Observations) -> Sizes:
    """The sizes of a gradient's parts under which everything seen is likeliest."""
    y = about(seen, centre_of(view))
    moments = torch.einsum("srd,trd->st", y, y).numpy() / y[0].numel()
    noise = rounding(view, seen) * np.eye(len(seen.rows))
    common = common_deviation(view, seen)

    def likelihood(sizes: Sizes) -> float:
        scaled = seen.rows * prior_deviations(view, seen, sizes, common)
        values, vectors = np.linalg.eigh(scaled @ scaled.T + noise)
        values = values.clip(_RANK * values[-1])
        energy = ((vectors.T @ moments) * vectors.T).sum(1)
        return -float((np.log(values) + energy / values).sum())

    rough = max((Sizes(size, size) for size in np.geomspace(1e-6, 1e3, 28)), key=likelihood)
    near = [rough.fresh * factor for factor in (0.1, 0.3, 1.0, 3.0)]
    steady = [0.0, *near]
    return max(
        (Sizes(one, other) for one in (1e-3 * near[0], *near) for other in steady), key=likelihood
    )
