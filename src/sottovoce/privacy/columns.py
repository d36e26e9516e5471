"""Playing a chain on unit columns: the reference writes down its own linear law.

In place of a number every state, gradient and message is a row over columns: one for each start,
gradient and seen message, and one for each Gaussian number that a part asks for. Playing the chain
then gives the messages as rows of [A B R] in O = A G + B Z + R V, with gradients G, Gaussian
numbers Z and messages V that were seen before. Stepsizes and other uniform numbers stand at their
mean, random shares at the mean that their rule states: they get no credit as noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.errors import PrivacyError
from sottovoce.graphs import Routes
from sottovoce.mechanisms import Clock, Flow, Split
from sottovoce.mechanisms.reference import (
    by_messages,
    exchange,
    make_messages,
    settle,
    take_step,
)
from sottovoce.randomness import Streams
from sottovoce.simulation.transcript import Setting

Array = NDArray[np.float64]
Start = Literal["known", "unknown"] | float
Prior = Literal["unknown"] | float
_RANK = 1e-9
"""Singular values below this fraction of the largest count as zero."""


@dataclass(frozen=True, eq=False)
class Seen:
    """What an adversary sees and knows.

    rounds: those that are seen, one after the other. links: (receiver, sender) of the seen links,
    in the order of every estimator's columns. start: what is known of the states in the first of
    the rounds: "known" (a common public point), "unknown" (nothing), or the standard deviation of
    private numbers around a public point. prior: "unknown" (nothing is known about any step) or a
    number τ: gradients are Gaussian of mean 0 and standard deviation τ. own: the adversary's
    agents, who hold the numbers of their edges. published: the agents' states after the last round
    are seen, too.
    """

    setting: Setting
    rounds: list[int]
    links: list[tuple[int, int]]
    start: Start = "unknown"
    prior: Prior = "unknown"
    own: frozenset[int] = frozenset()
    published: bool = False

    def __post_init__(self) -> None:
        for name, value, words in (
            ("start", self.start, ("known", "unknown")),
            ("prior", self.prior, ("unknown",)),
        ):
            number = not isinstance(value, str)
            if value not in words and not (number and 0 <= float(value) < math.inf):
                raise PrivacyError(
                    f"{name} is {value!r}; accepted: {', '.join(words)} or a standard deviation"
                )

    @cached_property
    def stepsizes(self) -> Array:
        """The public means λ̄, (rounds, agents), all above 0."""
        agents, stepsize = range(self.setting.graph.agents), self.setting.stepsize
        means = np.array([[stepsize.mean(k, j) for j in agents] for k in self.rounds])
        if not (np.isfinite(means).all() and (means > 0).all()):
            raise PrivacyError("a mean stepsize is not positive; the accountant needs all above 0")
        return means.astype(np.float64)


@dataclass(frozen=True)
class AtMean(Split):
    """The same split with every coefficient at its public mean."""

    split: Split

    def coefficients(self, flow: Flow) -> Tensor:
        return self.mean(flow.routes).expand(len(flow.s), -1).unsqueeze(-1)

    def mean(self, routes: Routes) -> Tensor:
        return self.split.mean(routes)


class Columns(Streams):
    """Streams whose Gaussian numbers are unit columns, and whose uniform ones are their mean.

    numbers: the column of each Gaussian number by (purpose, round, agent or edge); known: the
    numbers in place of agents whose draws the observer holds, which count as 0.
    """

    def __init__(
        self, agents: Sequence[int], numbers: Numbers, known: frozenset[int] = frozenset()
    ) -> None:
        super().__init__(range(1), agents, torch.device("cpu"))
        self._numbers, self._known = numbers, known

    def part(self, runs: slice, agents: slice) -> Columns:
        return Columns(self.agents[agents], self._numbers)

    def renumbered(self, agents: Sequence[int]) -> Columns:
        return Columns(agents, self._numbers, self._numbers.known_edges)

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        return torch.full((1, len(self.agents), count), 0.5, dtype=dtype)

    def normal(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        found = torch.zeros(1, len(self.agents), count, dtype=dtype)
        self.add_normal_(found, 1.0, purpose, round)
        return found

    def exact_normal(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        # Where numbers are columns, nothing is rounded and one column serves for the sum.
        return self.normal(purpose, round, count, dtype)

    def scale_(self, tensor: Tensor, low: float, high: float, purpose: str, round: int) -> None:
        tensor.mul_((low + high) / 2)

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        for row, agent in enumerate(self.agents):
            if agent not in self._known:
                column = self._numbers.column((purpose, round, agent))
                if column < tensor.shape[-1]:
                    tensor[0, row, column] += deviation


@dataclass
class Numbers:
    """Which column belongs to which Gaussian number; when each was asked for."""

    first: int
    known_edges: frozenset[int]
    columns: dict[tuple[str, int, int], int] = field(default_factory=dict)
    now: int = 0
    since: list[int] = field(default_factory=list)
    """For each number the exchange that asked for it first, or -1 if a later one asked again."""

    def column(self, key: tuple[str, int, int]) -> int:
        if key not in self.columns:
            self.columns[key] = self.first + len(self.columns)
            self.since.append(self.now)
        place = self.columns[key] - self.first
        if self.since[place] != self.now:
            self.since[place] = -1
        return self.columns[key]


@dataclass(frozen=True)
class Block:
    """Rows of the law that come from one sender's messages of one exchange.

    rows: where they stand. exchange: its number from 0 on. links: positions of the links among
    those that are seen. basis: (links, rows), which combinations of the messages were kept.
    """

    rows: slice
    sender: int
    exchange: int
    links: list[int]
    basis: Array


@dataclass(frozen=True)
class PlayedLaw:
    """The rows of one group's messages, then of its published states, and what they depend on.

    on_start: (rows, agents); on_gradients: (rows, rounds, agents); on_seen: (rows, exchanges, links
    into the group), which are `received` among the seen links; on_noise: (rows, numbers).
    """

    blocks: list[Block]
    on_start: Array
    on_gradients: Array
    on_seen: Array
    received: list[int]
    on_noise: Array


def play(seen: Seen, agents: list[int]) -> PlayedLaw:
    """The law of the messages that a group of agents sends, given all that is seen.

    agents: those joined by links that nobody sees, ascending.
    """
    group = _Group(seen, agents)
    # The first time tells how many columns there are, and when each is asked for.
    group.play(group.fixed)
    return group.play(group.fixed + len(group.numbers.columns), list(group.numbers.since))


def ends_of(routes: Routes) -> list[tuple[int, int]]:
    """(receiver, sender) of every route."""
    return list(zip(routes.receiver.tolist(), routes.sender.tolist(), strict=True))


class _Group:
    """What is played: the routes of some agents, and which of their messages are seen."""

    def __init__(self, seen: Seen, agents: list[int]) -> None:
        mechanism, everyone = seen.setting.algorithm, seen.setting.graph.routes()
        strange = [part for part in mechanism.parts if not (part.linear and part.by_coordinate)]
        if strange:
            raise PrivacyError(
                f"{mechanism} has parts that are not linear at every coordinate alike "
                f"({', '.join(type(part).__name__ for part in strange)}); the law of messages is "
                "known for linear chains only"
            )
        self.mechanism = mechanism.with_split(AtMean(mechanism.split))
        self.stepsize, self.rounds = seen.setting.stepsize, seen.rounds
        self.published = seen.published
        self.agents, self.routes = agents, everyone.of(agents)
        at = {link: place for place, link in enumerate(seen.links)}
        local = {agent: place for place, agent in enumerate(agents)}
        ends = [(i, agents[j]) for i, j in ends_of(self.routes)]
        self.shown: dict[int, list[tuple[int, int]]] = {j: [] for j in range(len(agents))}
        for route, (i, j) in enumerate(ends):
            if (i, j) in at:
                self.shown[local[j]].append((route, at[i, j]))
        hidden = [route for route, end in enumerate(ends) if end not in at]
        self.hidden = torch.tensor(hidden, dtype=torch.long)
        self.to = torch.tensor([local[ends[route][0]] for route in hidden], dtype=torch.long)
        self.into = [(local[i], place) for (i, _), place in at.items() if i in local]
        """Which agent each seen link leads to, and its position among the seen links."""
        self.exchanges = len(seen.rounds) * mechanism.exchanges
        self.gradients = len(agents)
        self.received = self.gradients + len(seen.rounds) * len(agents)
        self.fixed = self.received + self.exchanges * len(self.into)
        edges = zip(everyone.edge.tolist(), ends_of(everyone), strict=True)
        held = frozenset(edge for edge, end in edges if seen.own.intersection(end))
        self.numbers = Numbers(self.fixed, held)

    def play(self, width: int, since: Sequence[int] | None = None) -> PlayedLaw:
        c, streams = len(self.agents), Columns(self.agents, self.numbers)
        x = torch.eye(c, width, dtype=torch.float64).unsqueeze(0)
        flow = Flow(x, torch.zeros_like(x), self.routes, streams, self.stepsize, Clock(1))
        blocks, rows, number = list[Block](), [np.zeros((0, width))], 0
        for place, round in enumerate(self.rounds):
            flow.at, flow.s = Clock(round), torch.zeros(1, c, width, dtype=torch.float64)
            first = self.gradients + place * c
            flow.s[0, :, first : first + c] = torch.eye(c, dtype=torch.float64)
            self.numbers.now = number
            take_step(self.mechanism, flow)
            for inner in range(self.mechanism.exchanges):
                if inner:
                    flow.at, flow.s = Clock(round, inner), torch.zeros_like(flow.s)
                self.numbers.now = number
                make_messages(self.mechanism, flow)
                total = torch.zeros_like(flow.x)
                total.index_add_(1, self.to, flow.v[:, self.hidden])
                first = self.received + number * len(self.into)
                for column, (agent, _) in enumerate(self.into, first):
                    total[0, agent, column] += 1.0
                messages = flow.v[0]
                settle(self.mechanism, flow, total)
                fresh = self.fixed + np.flatnonzero(np.asarray(since or ()) == number)
                kept = torch.cat([flow.x[0], *(one.flatten(0, -2) for one in flow.memory.values())])
                for j, shown in self.shown.items():
                    if shown and since is not None:
                        sent = messages[[route for route, _ in shown]].numpy()
                        others = messages[self.routes.sender != j]
                        basis = _sufficient(sent, torch.cat([kept, others]).numpy(), fresh)
                        begin = sum(map(len, rows))
                        rows.append(basis.T @ sent)
                        where = slice(begin, begin + basis.shape[1])
                        links = [link for _, link in shown]
                        blocks.append(Block(where, j, number, links, basis))
                number += 1
        if self.published:
            rows.append(flow.x[0].numpy())
        law, T = np.concatenate(rows), len(self.rounds)
        return PlayedLaw(
            blocks,
            law[:, :c],
            law[:, self.gradients : self.received].reshape(-1, T, c),
            law[:, self.received : self.fixed].reshape(-1, self.exchanges, len(self.into)),
            [link for _, link in self.into],
            law[:, self.fixed :],
        )


def one_round(setting: Setting) -> tuple[Array, Array]:
    """How the states after round 1 depend on those before, and on the round's Gaussian numbers.

    Returns (agents, agents) and (agents, numbers).
    """
    agents, mechanism = setting.graph.agents, setting.algorithm
    mechanism = mechanism.with_split(AtMean(mechanism.split))
    numbers = Numbers(agents, frozenset())
    for _ in range(2):
        x = torch.eye(agents, agents + len(numbers.columns), dtype=torch.float64).unsqueeze(0)
        streams = Columns(range(agents), numbers)
        routes = setting.graph.routes()
        flow = Flow(x, torch.zeros_like(x), routes, streams, setting.stepsize, Clock(1))
        take_step(mechanism, flow)
        state = exchange(mechanism, flow, by_messages(mechanism))[0].numpy()
    return state[:, :agents], state[:, agents:]


def _sufficient(sent: Array, elsewhere: Array, fresh: NDArray[np.int64]) -> Array:
    """The combinations of one sender's messages that say all there is to say: (messages, kept).

    What is discarded is noise that is independent of everything else: it has no part in any other
    column, none in what is kept of the messages, and none `elsewhere`, in the states and the other
    senders' messages.
    """
    if len(sent) <= 3:
        return np.eye(len(sent))
    noise = sent[:, fresh]
    rest = sent.copy()
    rest[:, fresh] = 0.0
    basis = span(np.concatenate([rest, noise @ elsewhere[:, fresh].T], 1))
    while True:
        larger = span(np.concatenate([basis, noise @ (noise.T @ basis)], 1))
        if larger.shape[1] == basis.shape[1]:
            return basis
        basis = larger


def span(matrix: Array) -> Array:
    """An orthonormal basis of the columns' span."""
    # The triangular factor of the transpose has the same left vectors, and few columns.
    triangle: Array = np.asarray(np.linalg.qr(matrix.T, mode="r"))
    left, values, _ = np.linalg.svd(triangle.T, full_matrices=False)
    return left[:, values > _RANK * values.max(initial=0.0)]
