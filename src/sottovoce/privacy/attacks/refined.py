"""Known records subtracted: the steps of other rounds and agents are predicted and taken away.

What is seen is linear in all steps, y = Σ_c a_c g_c + noise (`observations`). Each step whose
record is found among candidates is predicted by the record's gradient at the estimated state. What
is left of y then speaks of the remaining steps alone: noise that sums to zero telescopes over
rounds, so that the more neighbouring steps are known, the less of it is left on the one that is
attacked.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from sottovoce.errors import AttackError
from sottovoce.privacy.adversaries import View
from sottovoce.privacy.attacks.base import Attack, Estimate, gradient_of
from sottovoce.privacy.attacks.network import (
    Sizes,
    common_deviation,
    inverse_covariance,
    likeliest_sizes,
    prior_deviations,
)
from sottovoce.privacy.attacks.observations import (
    Array,
    Observations,
    about,
    centre_of,
    observe,
    rounds_around,
)
from sottovoce.privacy.knowledge import Candidates, Knowledge
from sottovoce.privacy.matched_filter import WIDE_SPREAD, Matcher, Sight

_WIDE = 30.0
"""How much wider than their size gradients count at first, so that none is taken for another."""
_EXACT = 0.02
"""The least error of a predicted gradient, relative to its size: states are estimates, too."""
_NEAR = 0.2
"""States of one run share candidates' gradients within this; predictions are made at their own."""
_COUPLED, _TWIN = 0.3, 0.99
"""How much of a column leaks into another that waits for it, or cannot be told from it."""
_MOST_NUMBERS = 5 * 10**8
"""Of all candidates' gradients together: beyond it a sweep takes many minutes."""
_SIGNIFICANT = 10.0
"""How far above chance, in nats, a record's likelihood must lie to be subtracted."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """What is left of one round's steps in one run: gradients and states, (agents, d) each.

    noise: (agents,), the deviation of a coordinate's error; others: (agents,), as in `Estimate`.
    """

    gradients: Tensor
    states: Tensor
    noise: Array
    others: Array


@dataclass(frozen=True)
class Refined(Attack):
    """Find the records of all agents' neighbouring steps among candidates, and subtract them.

    In every sweep each step is estimated from everything seen less the predictions of all others,

        ĝ_c = m_c + aᵀ S⁻¹ (y - A m) / aᵀ S⁻¹ a,        variance 1 / aᵀ S⁻¹ a - v_c,

    with S the covariance of y, m the predicted gradients and v the variances of their errors: all
    that is said of g_c beside its own prediction. Candidates are then scored anew (`identify`); the
    best one, where it is likelier than chance explains, becomes the prediction. The estimate of the
    attacked step never uses a prediction of itself.
    """

    name: ClassVar[str] = "refined"
    reach: int = 6
    before: int = 12
    sweeps: int = 4

    def informed(self, knowledge: Knowledge, candidates: Candidates, spread: float) -> Attack:
        return _Informed(self, knowledge, candidates, spread)

    def rounds(self, round: int) -> list[int]:
        return list(range(max(1, round - self.reach), round + self.reach + 1))

    def estimate(self, view: View, target: int, round: int) -> Estimate:
        self._require_target(view, target)
        raise AttackError(
            f"{self.name} needs a model and candidates; give them with informed(knowledge, "
            "candidates, spread)"
        )


class _Informed(Attack):
    """`Refined` with its knowledge; all agents of a round are decoded together, once."""

    name: ClassVar[str] = Refined.name

    def __init__(
        self, settings: Refined, knowledge: Knowledge, candidates: Candidates, spread: float
    ) -> None:
        self.settings, self.knowledge, self.candidates = settings, knowledge, candidates
        self.sight = Sight(spread=spread)
        self._found: WeakKeyDictionary[View, dict[int, list[Decoded]]] = WeakKeyDictionary()

    def rounds(self, round: int) -> list[int]:
        return self.settings.rounds(round)

    def estimate(self, view: View, target: int, round: int) -> Estimate:
        self._require_target(view, target)
        if not self.sight.plain:
            raise AttackError(
                f"{self.name} predicts steps, which stepsizes of std/mean {self.sight.spread:.2g} "
                f"hide; accepted: up to {WIDE_SPREAD} (`chain` and `elimination` predict none)"
            )
        size = len(self.candidates) * view.messages.shape[-1]
        if size > _MOST_NUMBERS:
            raise AttackError(
                f"{self.name} computes {len(self.candidates)} gradients of "
                f"{view.messages.shape[-1]} numbers in every sweep, {size:.2g} in all; accepted: "
                f"{_MOST_NUMBERS:.2g}; give fewer candidates"
            )
        found = self._found.setdefault(view, {})
        if round not in found:
            near = rounds_around(view, round, self.settings.reach, self.name)
            found[round] = self._decode(near, round)
        runs = found[round]
        if not all(np.isfinite(one.noise[target]) for one in runs):
            raise AttackError(
                f"{self.name} sees nothing of agent {target} in round {round}; it needs messages "
                "that the step reaches"
            )
        mean = view.stepsize.mean(round, target)
        step = mean * torch.stack([one.gradients[target] for one in runs])
        state = torch.stack([one.states[target] for one in runs])
        others = max(float(one.others[target]) for one in runs)
        return Estimate(gradient_of(view, target, round, step), True, state, others=others)

    def _decode(self, view: View, round: int) -> list[Decoded]:
        seen = observe(view, self.settings.before)
        size = float(np.hypot(*likeliest_sizes(view, seen)))
        prior = prior_deviations(view, seen, Sizes(size, 0.0), common_deviation(view, seen))
        centre = centre_of(view)
        values = about(seen, centre)
        at = view.rounds.index(round)
        return [
            _Run(self, view, seen, values[:, run], centre[run]).decode(prior, size, at)
            for run in range(values.shape[1])
        ]


class _Told(NamedTuple):
    """What everything but its own prediction says of each column.

    gradients, states: (columns, d); noise: (columns,), the deviation of a gradient's coordinates;
    leak: (columns, columns), how much of another column's gradient is in each estimate.
    """

    gradients: Tensor
    states: Tensor
    noise: Array
    leak: Array


class _Run:
    """The steps of one run, sweep by sweep; columns are (rounds, agents) of the view, flat."""

    def __init__(
        self, attack: _Informed, view: View, seen: Observations, values: Tensor, centre: Tensor
    ) -> None:
        self.attack, self.view, self.seen = attack, view, seen
        self.values, self.centre = values, centre
        self.matcher = Matcher(attack.knowledge, attack.candidates, _NEAR)
        shown, agents = len(view.rounds), view.graph.agents
        self.columns = seen.gradients[-shown:].reshape(-1)
        self.states = seen.states[-shown:].reshape(shown * agents, -1)
        self.agents = agents
        self.predicted = torch.zeros(len(self.columns), values.shape[1], dtype=torch.float64)

    def decode(self, prior: Array, size: float, at: int) -> Decoded:
        error = np.full(len(self.columns), _WIDE * size)
        self.chosen = [-1] * len(error)
        told = self._estimate(prior, error)
        mean = self.matcher.interference(told.states[at * self.agents]).mean.double().cpu()
        self.predicted += mean
        told = self._estimate(prior, error)
        error[:] = size
        for sweep in range(self.attack.settings.sweeps):
            changed = self._predict(told, error, mean, size)
            told = self._estimate(prior, error)
            if sweep and not changed:
                break
        wanted = slice(at * self.agents, (at + 1) * self.agents)
        # Columns that cannot be told apart are estimated as their sum.
        twins = torch.from_numpy((told.leak > _TWIN).astype(float))
        twins.fill_diagonal_(0)
        gradients = told.gradients + twins @ (self.predicted - mean)
        others = self._others(told, error, size) + twins.sum(1).numpy()
        return Decoded(gradients[wanted], told.states[wanted], told.noise[wanted], others[wanted])

    def _estimate(self, prior: Array, error: Array) -> _Told:
        prior = prior.copy()
        prior[self.columns] = error
        inverse = inverse_covariance(self.view, self.seen, prior)
        rows = self.seen.rows
        own = rows[:, self.columns]
        told = inverse @ own
        q = np.einsum("sc,sc->c", own, told)
        rest = self.values - torch.from_numpy(own) @ self.predicted
        with np.errstate(divide="ignore", invalid="ignore"):
            weights = np.where(q > 0, told / q, 0.0)
            noise = np.sqrt(np.where(q > 0, (1 / q - error**2).clip(0), np.inf))
        gradients = self.predicted + torch.from_numpy(weights.T) @ rest
        unknown = (self.states * prior**2) @ rows.T @ inverse
        states = torch.from_numpy(unknown) @ rest + self.centre
        states += torch.from_numpy(self.states[:, self.columns]) @ self.predicted
        return _Told(gradients, states, noise, weights.T @ own)

    def _others(self, told: _Told, error: Array, size: float) -> Array:
        """How much of other gradients, as far as they are not predicted, is in each estimate."""
        found: Array = (told.leak - np.diag(np.diag(told.leak))) ** 2 @ (error / size) ** 2
        return found

    def _predict(self, told: _Told, error: Array, mean: Tensor, size: float) -> bool:
        """Put the best candidates' gradients in place of predictions; say whether any changed.

        Of columns that leak into one another the surest is decided in a sweep; the others are
        estimated anew without it first.
        """
        attack, among = self.attack, self.attack.candidates
        leak = told.leak - np.diag(np.diag(told.leak))
        others = torch.from_numpy(self._others(told, error, size))
        batch = attack.knowledge.inputs.batch_size
        scores = self.matcher.scores(
            told.states, told.gradients, attack.sight, batch - 1 + batch * others
        )
        score, best = scores.max(1)
        held = np.zeros(len(error), dtype=bool)
        changed = False
        for c in score.argsort(descending=True).tolist():
            if held[c] or not np.isfinite(told.noise[c]):
                continue
            held |= (np.abs(leak[:, c]) > _COUPLED) | (np.abs(leak[c]) > _COUPLED)
            sure = float(score[c]) > np.log(len(among)) + _SIGNIFICANT
            choice = int(best[c]) if sure else -1
            changed |= choice != self.chosen[c]
            self.chosen[c], error[c] = choice, size
            self.predicted[c] = mean
            if sure:
                record = among.inputs[[choice]], among.labels[[choice]]
                row = next(self.matcher.gradients.rows(told.states[c], *record))[0].double().cpu()
                self.predicted[c] = row
                left = float((told.gradients[c] - row).square().mean()) - told.noise[c] ** 2
                error[c] = min(size, max(left, (_EXACT * size) ** 2) ** 0.5)
        return changed
