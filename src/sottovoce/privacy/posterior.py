"""The linear algebra behind `MessageLaw`: what messages leave unknown about a group's steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sottovoce.privacy.columns import Array, Seen, play

Flags = NDArray[np.bool_]

_RANK = 1e-9
"""Singular values below this fraction of the largest count as zero."""
_EXACT = 1e-11
"""A variance below this fraction of the noise that enters is knowledge without error."""
_PART = 1e-5
"""A part of a unit vector shorter than this counts as absent."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is left unknown about one agent's steps s^1, ..., s^T once the messages are seen.

    sd: (rounds,), the standard deviation that is left for each step, infinite where the messages
    leave it undetermined and 0 where they give it away. precision: (rounds, rounds), the inverse of
    the joint covariance, 0 along undetermined combinations of rounds. exact: some combination of
    the steps is known without error; the precision then covers the others alone.
    """

    rounds: list[int]
    sd: Array
    precision: Array
    exact: bool


class Group:
    """Agents joined by unseen links, and the rows y of their played law.

    Rows are in units of a gradient, divided by their sender's mean stepsize, and so are the
    unknowns: gradients s / λ̄.
    """

    def __init__(self, seen: Seen, agents: list[int]) -> None:
        self.agents, self.rounds = agents, seen.rounds
        self.start, self.prior = seen.start, seen.prior
        self.means, self._links = seen.stepsizes[:, agents], len(seen.links)
        self.local = {agent: place for place, agent in enumerate(agents)}
        self._law = play(seen, agents)
        exchanges = seen.setting.algorithm.exchanges
        # Published states come last and stand in the unit of the last step.
        self._scale = np.full(len(self._law.on_start), 1.0 / self.means[-1].mean())
        for block in self._law.blocks:
            self._scale[block.rows] = 1.0 / self.means[block.exchange // exchanges, block.sender]
        self.on_start: Array = self._scale[:, None] * self._law.on_start
        self.on_steps: Array = self._scale[:, None, None] * self._law.on_gradients
        noise = self._scale[:, None] * self._law.on_noise
        self.noise_covariance: Array = noise @ noise.T
        self.noisy = bool(noise.any())

    @cached_property
    def _solved(self) -> tuple[Array, Array, Array, Array]:
        """What every agent's solution shares.

        The pseudo-inverse of the matrix of flat unknowns (flat, entries) and a basis of its rows
        (flat, rank); the covariance of y about them, and that covariance's inverse among the
        combinations free of them, (entries, entries) each.
        """
        covariance = self.noise_covariance
        steps = self.on_steps.reshape(len(self._scale), self.means.size)
        flat = [np.zeros((len(self._scale), 0))]
        if self.start == "unknown":
            flat.append(self.on_start)
        elif self.start != "known":
            covariance = covariance + self.start**2 * self.on_start @ self.on_start.T
        if isinstance(self.prior, str):
            flat.append(steps)
        else:
            covariance = covariance + self.prior**2 * steps @ steps.T
        matrix = np.concatenate(flat, 1)
        wide = matrix.shape[1] >= matrix.shape[0]
        left, values, right = np.linalg.svd(matrix, full_matrices=not wide)
        rank = int((values > _RANK * values.max(initial=0.0)).sum())
        rows, free = right[:rank].T, left[:, rank:]
        inverse = (rows / values[:rank]) @ left[:, :rank].T
        size, vectors = np.linalg.eigh(free.T @ covariance @ free)
        # What never varies tells nothing more, so its inverse counts as 0.
        noisy = size > _EXACT * _largest(covariance)
        across = free @ vectors[:, noisy]
        return inverse, rows, covariance, (across / size[noisy]) @ across.T

    def _columns(self, agent: int) -> NDArray[np.int64]:
        """Where the agent's steps stand among the flat unknowns."""
        first = len(self.agents) if self.start == "unknown" else 0
        return first + np.arange(len(self.rounds)) * len(self.agents) + self.local[agent]

    def solution(self, agent: int) -> tuple[Array, Flags]:
        """E with ŝ / λ̄ = E y, (rounds, entries), and which rounds it determines.

        With A the flat unknowns' matrix, V the covariance about them and N a basis of what is free
        of them: E = A⁺ (1 - V N (NᵀVN)⁺ Nᵀ) for flat steps, Cov(s, y) N (NᵀVN)⁺ Nᵀ for a prior.
        """
        inverse, rows, covariance, within = self._solved
        if isinstance(self.prior, str):
            mine = self._columns(agent)
            missing = 1.0 - (rows[mine] ** 2).sum(1)
            plain = inverse[mine]
            return plain - plain @ covariance @ within, missing < _PART
        steps = self.on_steps[:, :, self.local[agent]].T
        return self.prior**2 * steps @ within, np.ones(len(steps), dtype=np.bool_)

    def posterior(self, agent: int) -> Posterior:
        """What the messages leave unknown about the agent's steps."""
        weights, determined = self.solution(agent)
        _, rows, about, _ = self._solved
        covariance = weights @ about @ weights.T
        known = np.eye(len(weights))
        if isinstance(self.prior, str):
            mine = rows[self._columns(agent)]
            parts, vectors = np.linalg.eigh(mine @ mine.T)
            known = vectors[:, parts > 1.0 - _PART]
        else:
            cross = self.prior**2 * weights @ self.on_steps[:, :, self.local[agent]]
            covariance += self.prior**2 * known - cross - cross.T
        least = _EXACT * max(_largest(about), _largest(covariance))
        variances, vectors = np.linalg.eigh(known.T @ covariance @ known)
        noisy = variances > least
        across = known @ vectors[:, noisy]
        diagonal = np.diag(covariance)
        left = np.sqrt(np.where(diagonal > least, diagonal, 0.0))
        return self._of_steps(
            agent,
            np.where(determined, left, np.inf),
            (across / variances[noisy]) @ across.T,
            not noisy.all(),
        )

    @cached_property
    def _noise_directions(self) -> tuple[Array, Array]:
        return np.linalg.eigh(self.noise_covariance)

    def given_all_else(self, agent: int) -> Posterior:
        """What is left unknown of each step where all other steps and all starts are known."""
        variances, vectors = self._noise_directions
        noisy = variances > _EXACT * _largest(self.noise_covariance)
        seen = self.on_steps[:, :, self.local[agent]].T @ vectors
        bare = np.abs(seen[:, ~noisy]).max(1, initial=0.0) > _PART
        precision = (seen[:, noisy] / variances[noisy]) @ seen[:, noisy].T
        with np.errstate(divide="ignore"):
            left = np.where(bare, 0.0, 1.0 / np.sqrt(np.diag(precision)))
        return self._of_steps(agent, left, precision, bool(bare.any()))

    def _of_steps(self, agent: int, sd: Array, precision: Array, exact: bool) -> Posterior:
        """Turn s / λ̄ into s."""
        mean = self.means[:, self.local[agent]]
        return Posterior(self.rounds, mean * sd, precision / np.outer(mean, mean), bool(exact))

    def on_messages(self, weights: Array) -> tuple[Array, Array]:
        """Turn weights on y into weights on messages and on the start.

        Returns (targets, exchanges, links) and (targets,): y is what was sent less what the chain
        would have sent from the public start and the seen messages alone.
        """
        scaled = weights * self._scale
        found = np.zeros((len(weights), self._law.on_seen.shape[1], self._links))
        found[:, :, self._law.received] = -np.einsum("tr,rel->tel", scaled, self._law.on_seen)
        for block in self._law.blocks:
            found[:, block.exchange, block.links] += scaled[:, block.rows] @ block.basis.T
        return found, -(scaled @ self._law.on_start).sum(1)


def _largest(covariance: Array) -> float:
    return float(np.diag(covariance).max(initial=0.0))
