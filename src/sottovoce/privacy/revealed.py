"""What protects a record where all is revealed but the noise on the steps: the view of the proofs.

The adversary is given every perturbed step, what is left of Λg once gradient and step parts have
added their noise, and whatever is drawn later: random shares, noise on messages. All messages, all
states and all published models follow from these, so that the next gradients depend on nothing
that it does not see, and rounds compose adaptively. Given what it has seen, a round is

    s = a g + B z        (agents at each coordinate; a, B played, not declared)

with fresh z. That all the rest follows from the steps is played, too: the messages, states and
memory of a round may depend on gradients through its perturbed steps alone. A record of agent i
moves g_i alone. With Σ = B Bᵀ over the agents that are not the
adversary's, the numbers of its own edges left out, its change is seen with the noise multiplier of
a Gaussian of deviation 1 / √(a_i² (Σ^-1)_ii) in the unit of g. Where a round's numbers are asked
for again in another round, or taken back by a later part, or memory carries what the view does not
hold, rounds are not independent and the view proves nothing: `faults` says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from sottovoce.graphs import ring
from sottovoce.mechanisms import Clock, Flow, Part, Place
from sottovoce.mechanisms.reference import by_messages, exchange, take_step
from sottovoce.privacy.columns import Array, Columns, Numbers, ends_of, span
from sottovoce.randomness import Streams
from sottovoce.simulation.transcript import Setting
from sottovoce.stepsizes import Stepsize

_PROBES = 4
"""Coordinates of the numbers that tell rounds of one law from rounds of another."""
_SAME = 1e-9
_EXACT = 1e-11
"""A variance below this fraction of the largest counts as none."""
_SIZES = (1.0, 1e-3, 1e3)
"""Times the gradients with which stepsizes are tried."""
_PART = 1e-5
"""A part of a unit vector shorter than this counts as absent."""
_BESIDE = 1e-7
"""Likewise, of what messages show of gradients beside the steps."""
_MOST = 32
"""Agents up to which messages are played; a ring of 8 stands in for more."""


@dataclass(frozen=True, eq=False)
class Revealed:
    """The noise that hides each agent's gradient in the strongest view.

    noise: (rounds, agents), deviations in the unit of a gradient with Λ at its largest; 0 where a
    gradient is seen as it is, NaN for the adversary's own agents. faults: why rounds do not compose
    as fresh releases; where there are any, `noise` proves nothing.
    """

    noise: Array
    faults: tuple[str, ...] = ()


def reveal(
    setting: Setting, rounds: Sequence[int], own: frozenset[int] = frozenset(), edges: bool = True
) -> Revealed:
    """The noise left in `rounds` against an adversary with agents of its own.

    edges: whether edges' numbers count where the adversary does not hold them. They do not where a
    round is executed again with the same ones.
    """
    played = _Played(setting, own, edges)
    small = setting if setting.graph.agents <= _MOST else replace(setting, graph=ring(8))
    shown = played if small is setting else _Played(small, frozenset(), True)
    classes: list[tuple[list[Tensor], Array]] = []
    noise = np.empty((len(rounds), setting.graph.agents))
    for place, round in enumerate(rounds):
        signature = played.signature(round)
        known = [left for other, left in classes if _alike(signature, other)]
        if not known:
            classes.append((signature, played.noise(round)))
            known = [classes[-1][1]]
            played.faults += shown.beside(round)
        noise[place] = known[0]
    return Revealed(noise, tuple(dict.fromkeys(played.faults)))


def step_noise(setting: Setting, own: frozenset[int] = frozenset()) -> Array:
    """The covariance over agents of the noise on the steps of round 1, (agents, agents).

    In units of the mean stepsize; the numbers of edges that the adversary's own agents hold count
    as known.
    """
    mean = setting.stepsize.mean(1)
    noise = _Played(setting, own, True).rows(1, mean)[:, setting.graph.agents :] / mean
    found: Array = noise @ noise.T
    return found


def _alike(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether two rounds do the same, each thing by its own size: noise may be small."""
    return all(
        torch.allclose(a, b, rtol=_SAME, atol=_SAME * float(torch.maximum(a, b).abs().max()))
        for a, b in zip(one, other, strict=True)
    )


class _Played:
    """One chain, played round by round with everything known but the round's own numbers."""

    def __init__(self, setting: Setting, own: frozenset[int], edges: bool) -> None:
        self.mechanism, self.stepsize = setting.algorithm, setting.stepsize
        self.routes, self.own = setting.graph.routes(), own
        self.agents = setting.graph.agents
        held = zip(self.routes.edge.tolist(), ends_of(self.routes), strict=True)
        self.held = frozenset(edge for edge, end in held if not edges or own.intersection(end))
        self.asked = _Asked()
        self.probes = _Probes(range(self.agents), self.asked, len(self.routes.sender))
        self.memory: dict[str, Tensor] = {}
        self.faults = [
            f"{type(part).__name__} {fault}, and stands where noise is added"
            for part in (*self.mechanism.at("gradient"), *self.mechanism.at("step"))
            for fault in (_lacking(part),)
            if fault
        ]

    def flow(self, round: int, width: int, streams: Streams, stepsize: float) -> Flow:
        """A round about to begin: states and memory are known and stand at 0."""
        x = torch.zeros(1, self.agents, width, dtype=torch.float64)
        at = _Fixed(
            self.stepsize.schedule,
            self.stepsize.law,
            self.stepsize.per,
            self.stepsize.deviation,
            stepsize,
        )
        memory = {name: one.new_zeros(*one.shape[:-1], width) for name, one in self.memory.items()}
        return Flow(x, torch.zeros_like(x), self.routes, streams, at, Clock(round), memory)

    def columns(self, round: int, numbers: Numbers, stepsize: float) -> Flow:
        """The same with a column for each gradient and each number."""
        width = self.agents + len(numbers.columns)
        flow = self.flow(round, width, Columns(range(self.agents), numbers), stepsize)
        flow.s = torch.eye(self.agents, width, dtype=torch.float64).unsqueeze(0)
        return flow

    def signature(self, round: int) -> list[Tensor]:
        """What a round does to fixed numbers per unit of stepsize, and how far stepsizes range.

        Noise behind Λ, all noise, and what becomes of gradients are told apart.
        """
        streams, mean = self.probes, self.stepsize.mean(round) or 1.0
        gradients = streams.table("gradient", _PROBES)[None, : self.agents]
        steps = []
        for stepsize, part in ((0.0, 0.0), (mean, 0.0), (mean, 1.0)):
            flow = self.flow(round, _PROBES, streams, stepsize)
            flow.s = part * gradients
            self.asked.begin(round, "step")
            take_step(self.mechanism, flow)
            steps.append(flow.s[0] / mean)
        self.asked.begin(round, "later")
        exchange(self.mechanism, flow, by_messages(self.mechanism))
        self.memory = flow.memory
        self.faults += self._stepsize_faults(round, gradients)
        self.faults += self.asked.faults
        self.asked.faults.clear()
        steps[2] -= steps[1]
        return [*steps, torch.tensor(self.ranges(round)) / mean]

    def _stepsize_faults(self, round: int, gradients: Tensor) -> list[str]:
        """Whether stepsizes leave their public range, or follow the gradients."""
        low, high = torch.tensor(self.ranges(round)).unsqueeze(-1)
        found = []
        for some in (gradients, gradients.flip(1), gradients.flip(-1)):
            for size in _SIZES:
                steps = size * some
                self.stepsize.scale_(steps, self.probes, round)
                found.append(steps / (size * some))
        each, spare = torch.cat(found), _SAME * high
        faults = []
        if not bool(((each >= low - spare) & (each <= high + spare)).all()):
            faults.append("stepsizes turn gradients into steps outside their public range")
        if bool(((each - each[:1]).abs() > spare).any()):
            faults.append("stepsizes depend on the gradients")
        return faults

    def ranges(self, round: int) -> Array:
        """The smallest and the largest stepsize of every agent: (2, agents)."""
        return np.array(
            [stepsize_range(self.stepsize, round, agent) for agent in range(self.agents)]
        ).T

    def noise(self, round: int) -> Array:
        """The noise left on each agent's gradient in a round: (agents,)."""
        without, unit = self.rows(round, 0.0), self.rows(round, 1.0)
        low, high = self.ranges(round)
        return self._left(without, unit - without, low, high)

    def rows(self, round: int, stepsize: float) -> Array:
        """The perturbed steps over gradients and numbers: (agents, agents + numbers)."""
        numbers = Numbers(self.agents, self.held)
        for _ in range(2):
            flow = self.columns(round, numbers, stepsize)
            take_step(self.mechanism, flow)
        rows: Array = flow.s[0].numpy()
        if np.abs(rows[:, : self.agents] - np.diag(np.diag(rows[:, : self.agents]))).max() > _SAME:
            self.faults.append("an agent's step depends on another agent's gradient")
        return rows

    def beside(self, round: int) -> list[str]:
        """What shows more of the gradients than the perturbed steps of a round do, as faults.

        Behind parts that are not linear columns say nothing: of such a chain only what the step
        itself leaves in states and memory is looked at.
        """
        places: tuple[Place, ...] = ("shares", "messages", "state")
        linear = all(part.linear for place in places for part in self.mechanism.at(place))
        numbers, first = Numbers(self.agents, frozenset()), 0
        for last in (False, True):
            flow = self.columns(round, numbers, 1.0)
            take_step(self.mechanism, flow)
            first = first if last else self.agents + len(numbers.columns)
            steps, shown = flow.s[0, :, :first].numpy().copy(), list[Tensor]()
            if linear:
                exchange(self.mechanism, flow, by_messages(self.mechanism, shown.append))
        lengths = np.linalg.norm(steps, axis=1, keepdims=True)
        basis = span((steps / np.where(lengths > 0, lengths, 1.0)).T)

        def adds(tensors: Iterable[Tensor]) -> bool:
            rows = [one.flatten(0, -2).numpy()[:, :first] for one in tensors]
            return any(
                np.abs(one - one @ basis @ basis.T).max(initial=0.0) > _BESIDE for one in rows
            )

        found = []
        if adds((*shown, flow.x)):
            found.append("messages or states show more of gradients than the perturbed steps do")
        if adds(flow.memory.values()):
            found.append("memory carries over what the perturbed steps do not show")
        return found

    def _left(self, without: Array, unit: Array, low: Array, high: Array) -> Array:
        """Noise with Λ anywhere in its range: s = without + Λ unit, row by row."""
        m, honest = self.agents, [i for i in range(self.agents) if i not in self.own]
        gain, before, after = np.diag(unit[:, :m]), unit[:, m:], without[:, m:]
        left = np.full(m, np.nan)
        if (low == high).all():
            left[honest] = _deviations(after + low[:, None] * before, low * gain, honest)
        elif not before.any():
            left[honest] = _deviations(after, high * gain, honest)
        elif not after.any():
            # Λ only processes what is protected already.
            left[honest] = _deviations(before, gain, honest)
        elif _crossed(before) or np.abs(before @ after.T).max() > _SAME:
            self.faults.append(
                "random stepsizes stand between numbers of noise that must cancel between agents"
            )
        else:
            # More of an agent's own noise hides others better, and a larger step hides itself less.
            for place, agent in enumerate(honest):
                at = np.where(np.arange(m) == agent, high, low)
                noise = after + at[:, None] * before
                left[agent] = _deviations(noise, at * gain, honest)[place]
        return left


def _lacking(part: Part) -> str:
    """What a part does not say of itself and a proof needs, nothing where it says all."""
    if not part.linear:
        return "is not linear"
    return "" if part.by_coordinate else "does not work by coordinate"


def _crossed(noise: Array) -> bool:
    covariance = noise @ noise.T
    return bool(np.abs(covariance - np.diag(np.diag(covariance))).max() > _SAME)


def _deviations(noise: Array, gain: Array, agents: list[int]) -> Array:
    """1 / √(a_i² (Σ^-1)_ii) for these agents, 0 where a combination without noise shows g_i."""
    rows = noise[agents]
    # Each agent's noise in its own unit: large noise of one must not pass for that of others.
    unit = np.linalg.norm(rows, axis=1)
    unit = np.where(unit > 0, unit, 1.0)
    rows = rows / unit[:, None]
    variances, vectors = np.linalg.eigh(rows @ rows.T)
    noisy = variances > _EXACT * variances.max(initial=0.0)
    bare = (vectors[:, ~noisy] ** 2).sum(1) > _PART**2
    precision = (vectors[:, noisy] ** 2 / variances[noisy]).sum(1)
    size = np.abs(gain[agents]) / unit
    with np.errstate(divide="ignore"):
        seen = np.where(size > 0, 1.0 / (size * np.sqrt(precision)), np.inf)
    return np.where(bare & (size > 0), 0.0, seen)


def stepsize_range(stepsize: Stepsize, round: int, agent: int) -> tuple[float, float]:
    """The smallest and the largest stepsize that an agent can use in a round."""
    low, high = stepsize.interval(round, agent)
    deviation = stepsize.deviation
    spread = deviation.spread if deviation and round <= deviation.rounds else 0.0
    return low * (1 - spread), high * (1 + spread)


@dataclass(frozen=True)
class _Fixed(Stepsize):
    """The same public means with one fixed number in place of Λ."""

    value: float = 1.0

    def scale_(self, gradient: Tensor, streams: Streams, round: int) -> None:
        gradient.mul_(self.value)


@dataclass
class _Asked:
    """Which numbers were asked for, when, and what that means for a proof."""

    first: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)
    now: tuple[int, str] = (0, "")
    faults: list[str] = field(default_factory=list)

    def begin(self, round: int, phase: str) -> None:
        self.now = round, phase

    def normal(self, purpose: str, round: int) -> None:
        before = self.first.setdefault((purpose, round), self.now)
        if before != self.now and "step" in (before[1], self.now[1]):
            again = "by a later part" if before[0] == self.now[0] else "in another round"
            self.faults.append(f"the numbers of the {purpose!r} are asked for again {again}")

    def single(self, purpose: str) -> None:
        if self.now[1] == "step":
            self.faults.append(
                f"the numbers of the {purpose!r} are single draws, whose low bits show what they "
                "are added to; draw them with flow.exact_normal and add them with flow.add_exactly"
            )

    def uniform(self, purpose: str) -> None:
        if self.now[1] == "step":
            self.faults.append(f"the uniform numbers of the {purpose!r} stand where noise is added")


class _Probes(Streams):
    """Numbers that depend on the purpose and not on the round, and a note of all that is asked."""

    def __init__(self, agents: Sequence[int], asked: _Asked, most: int) -> None:
        super().__init__(range(1), agents, torch.device("cpu"))
        self._asked, self._most = asked, most
        self._tables: dict[tuple[str, int], Tensor] = {}

    def table(self, purpose: str, count: int) -> Tensor:
        """Fixed standard normal numbers: (agents or edges, count)."""
        if (purpose, count) not in self._tables:
            seed = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=7).digest())
            draw = torch.Generator().manual_seed(seed)
            shape = self._most, count
            self._tables[purpose, count] = torch.randn(shape, generator=draw, dtype=torch.float64)
        return self._tables[purpose, count]

    def normal(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        self._asked.single(purpose)
        return self.exact_normal(purpose, round, count, dtype)

    def exact_normal(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        self._asked.normal(purpose, round)
        return self.table(purpose, count)[None, list(self.agents)].to(dtype)

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        tensor.add_(self.normal(purpose, round, tensor.shape[-1], tensor.dtype), alpha=deviation)

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        self._asked.uniform(purpose)
        return torch.full((1, len(self.agents), count), 0.5, dtype=dtype)

    def scale_(self, tensor: Tensor, low: float, high: float, purpose: str, round: int) -> None:
        self._asked.uniform(purpose)
        tensor.mul_((low + high) / 2)
