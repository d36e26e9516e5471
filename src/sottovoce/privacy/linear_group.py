"""The linear algebra behind `LinearView`: one group of agents joined by links that nobody sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.graphs import Graph

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Start = Literal["known", "unknown"] | float
Prior = Literal["unknown"] | float

_RANK = 1e-9
"""Singular values below this fraction of the largest count as zero."""
_EXACT = 1e-11
"""A variance below this fraction of the noise that enters is knowledge without error."""
_PART = 1e-5
"""A part of a unit vector shorter than this counts as absent."""


@dataclass(frozen=True, eq=False)
class ShareModel:
    """The mean and the noise of shares: b_ij (s_j + λ̄_j τ_j ξ_j) + λ̄_j σ_j n_ij.

    coefficients: b, (routes,) in the order of `graph.routes()`; zero_sum: σ, (agents,); on_step: τ,
    (agents,). Both are in units of a gradient.
    """

    coefficients: Array
    zero_sum: Array
    on_step: Array


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
    """Agents joined by unseen links: x <- Fx - Gs - noise + received, y = Cx - Ds - noise.

    Everything is in units of a gradient: rows of y are divided by their sender's λ̄ and the unknowns
    are s / λ̄. Of the messages that one agent sends in one round only those combinations are kept
    that carry its state, its step or the sum of its noise; the others are independent of all that
    is unknown.

    agents: the group, ascending; links: (receiver, sender) of every seen link; means: λ̄ of the
    group, (rounds, agents).
    """

    def __init__(
        self,
        graph: Graph,
        shares: ShareModel,
        links: Sequence[tuple[int, int]],
        agents: list[int],
        rounds: list[int],
        means: Array,
        start: Start,
        prior: Prior,
    ) -> None:
        self.agents, self.rounds, self.means = agents, rounds, means
        self.start, self.prior = start, prior
        self.local = {agent: place for place, agent in enumerate(agents)}
        at = {link: place for place, link in enumerate(links)}
        self.received = np.array([[float(i == agent) for i, _ in links] for agent in agents])
        routes = graph.routes()
        ends = zip(routes.receiver.tolist(), routes.sender.tolist(), strict=True)
        numbers = zip(routes.weight.tolist(), shares.coefficients.tolist(), strict=True)
        sent: dict[int, list[tuple[int, float, float]]] = {agent: [] for agent in agents}
        for (i, j), (w, b) in zip(ends, numbers, strict=True):
            if j in sent:
                sent[j].append((i, w, b))
        kept = [np.zeros((0, len(links)))]
        for j in agents:
            seen = [(at[i, j], w, b) for i, w, b in sent[j] if (i, j) in at]
            directions = np.array([[w, b, shares.zero_sum[j] > 0] for _, w, b in seen])
            basis = _range(directions.reshape(-1, 3))
            kept.append(np.zeros((basis.shape[1], len(links))))
            kept[-1][:, [place for place, _, _ in seen]] = basis.T
        self.senders = np.repeat(np.arange(len(agents)), [len(rows) for rows in kept[1:]])
        self.kept = np.concatenate(kept)
        c, size = len(agents), len(agents) + len(self.kept)
        on_state, on_step = np.zeros((size, c)), np.zeros((size, c))
        self.noise = np.zeros((c, size, size))
        for place, j in enumerate(agents):
            enters = np.zeros((size, len(sent[j])))
            for column, (i, _, _) in enumerate(sent[j]):
                if (i, j) in at:
                    enters[c:, column] = self.kept[:, at[i, j]]
                else:
                    enters[self.local[i], column] = 1.0
            on_state[:, place] = enters @ [w for _, w, _ in sent[j]]
            on_step[:, place] = enters @ [b for _, _, b in sent[j]]
            centred = enters - enters.mean(1, keepdims=True)
            self.noise[place] = shares.zero_sum[j] ** 2 * centred @ centred.T
            self.noise[place] += shares.on_step[j] ** 2 * np.outer(*[on_step[:, place]] * 2)
        self.F, self.C = on_state[:c], on_state[c:]
        self.G, self.D = on_step[:c], on_step[c:]
        self.scale = 1.0 / means[:, self.senders]

    @cached_property
    def on_start(self) -> Array:
        """How y depends on the states in the first round: (entries, agents)."""
        rows, power = [], self.C
        for scale in self.scale:
            rows.append(scale[:, None] * power)
            power = power @ self.F
        return np.concatenate(rows)

    @cached_property
    def on_steps(self) -> Array:
        """How y depends on the steps in units of λ̄: (entries, rounds, agents)."""
        rounds, c = self.means.shape
        found = np.zeros((rounds, len(self.kept), rounds, c))
        response, power = -self.D, -self.C
        for lag in range(rounds):
            later, now = np.arange(lag, rounds), np.arange(rounds - lag)
            found[later, :, now] = response * self.scale[later, :, None] * self.means[now, None]
            response, power = power @ self.G, power @ self.F
        return found.reshape(self.scale.size, rounds, c)

    @cached_property
    def noise_covariance(self) -> Array:
        """The covariance of the noise in y: (entries, entries)."""
        rounds, c = self.means.shape
        found = np.zeros((rounds, len(self.kept), rounds, len(self.kept)))
        state = np.zeros((c, c))
        for now in range(rounds):
            fresh = np.einsum("j,jab->ab", self.means[now] ** 2, self.noise)
            found[now, :, now] = self.C @ state @ self.C.T + fresh[c:, c:]
            cross = self.F @ state @ self.C.T + fresh[:c, c:]
            for later in range(now + 1, rounds):
                found[later, :, now] = self.C @ cross
                found[now, :, later] = found[later, :, now].T
                cross = self.F @ cross
            state = self.F @ state @ self.F.T + fresh[:c, :c]
        flat = self.scale.ravel()
        return found.reshape(flat.size, flat.size) * np.outer(flat, flat)

    @cached_property
    def _solved(self) -> tuple[Array, Array, Array, Array]:
        """What every agent's solution shares.

        The pseudo-inverse of the matrix of flat unknowns (flat, entries) and a basis of its rows
        (flat, rank); the covariance of y about them, and that covariance's inverse among the
        combinations free of them, (entries, entries) each.
        """
        covariance = self.noise_covariance
        steps = self.on_steps.reshape(self.scale.size, self.means.size)
        flat = [np.zeros((self.scale.size, 0))]
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
        """What is left unknown of each step for whoever knows every other step and all starts."""
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
        """Turn weights on y into weights on messages, (targets, rounds, links), and on the start.

        Row by row y = kept · v - C x̂ with x̂ <- F x̂ + received from the public starting point on.
        """
        scaled = weights.reshape(len(weights), *self.scale.shape) * self.scale
        found = np.zeros((len(weights), len(self.rounds), self.kept.shape[1]))
        carried = np.zeros((len(weights), len(self.agents)))
        for k in reversed(range(len(self.rounds))):
            found[:, k] = scaled[:, k] @ self.kept + carried @ self.received
            carried = carried @ self.F - scaled[:, k] @ self.C
        return found, carried.sum(1)


def _range(matrix: Array) -> Array:
    """An orthonormal basis of the columns' span."""
    left, values, _ = np.linalg.svd(matrix, full_matrices=False)
    return left[:, values > _RANK * values.max(initial=0.0)]


def _largest(covariance: Array) -> float:
    return float(np.diag(covariance).max(initial=0.0))
