"""Play a chain on small random numbers and refuse what it claims and does not do."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sottovoce.errors import AlgorithmError
from sottovoce.graphs import Graph, ring
from sottovoce.mechanisms.flow import Clock, Flow, Scope
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.part import Part
from sottovoce.mechanisms.parts import Shares
from sottovoce.mechanisms.reference import by_messages, exchange, take_step
from sottovoce.randomness import DeviceStreams, Streams
from sottovoce.stepsizes import Stepsize, Uniform

_LARGEST = 32
"""A graph of more agents is stood in for by a ring of 8."""
_SHAPE = (2, 5)
"""Runs and coordinates of the numbers played with."""
_TOLERANCE = 1e-9


def check(mechanism: Mechanism, graph: Graph) -> None:
    """Raise `AlgorithmError` unless every part keeps what it claims, with all faults at once."""
    if faults := list(_faults(mechanism, _stand_in(graph))):
        raise AlgorithmError(f"{mechanism}: " + "; ".join(faults))


def shares_edges(mechanism: Mechanism, graph: Graph) -> bool:
    """Whether a part asks for numbers that both ends of an edge hold."""
    return Scope.EDGE in _played(mechanism, _stand_in(graph))[0].asked


def in_blocks(mechanism: Mechanism, graph: Graph) -> bool:
    """Whether the chain may be played on some senders or coordinates at a time.

    It may not where a part keeps something from round to round, or asks for an edge's numbers.
    """
    flow = _played(mechanism, _stand_in(graph))[0]
    return not flow.memory and Scope.EDGE not in flow.asked


def _stand_in(graph: Graph) -> Graph:
    return graph if graph.agents <= _LARGEST else ring(8)


def public_split(mechanism: Mechanism, graph: Graph) -> bool:
    """Whether the coefficients b_ij ask for no private number."""
    x, g = _inputs(graph)
    flow = Flow(x, g, graph.routes(), _numbers(graph), Stepsize(), Clock(1))
    mechanism.split(flow)
    return not flow.asked


def _faults(mechanism: Mechanism, graph: Graph) -> Iterator[str]:
    for part in mechanism.parts:
        alone = replace(mechanism, parts=_shortest(part))
        name = type(part).__name__
        _, first, states = _played(alone, graph)
        _, again, _ = _played(alone, graph)
        if not (torch.isfinite(first).all() and torch.isfinite(states).all()):
            yield f"{name} gives numbers that are not finite"
            continue
        if not torch.equal(first, again):
            yield (
                f"{name} gives other messages for the same private numbers; draw randomness with "
                "flow.uniform or flow.normal only"
            )
            continue
        if part.keeps_average and (fault := _average_fault(alone, graph)):
            yield f"{name} says that it keeps the average, but {fault}"
        if part.linear and not _is_linear(alone, graph):
            yield f"{name} says that it is linear, but twice the input is not twice the output"
        if part.by_coordinate and not _is_by_coordinate(alone, graph):
            yield f"{name} says that it works by coordinate, but one coordinate alters another"


def _shortest(part: Part) -> tuple[Part, ...]:
    return (part,) if part.place == "split" else (Shares("weights"), part)


def _numbers(graph: Graph) -> Streams:
    """Numbers to play with; nothing secret is drawn, so that no cipher is needed."""
    return DeviceStreams(range(_SHAPE[0]), range(graph.agents), 0, torch.device("cpu"))


def _inputs(graph: Graph) -> tuple[Tensor, Tensor]:
    """States and gradients to play with."""
    generator = torch.Generator().manual_seed(0)
    runs, d = _SHAPE
    x, g = torch.randn(2, runs, graph.agents, d, generator=generator, dtype=torch.float64)
    return x, g


def _played(
    mechanism: Mechanism,
    graph: Graph,
    x: Tensor | None = None,
    g: Tensor | None = None,
    loudness: float = 1.0,
) -> tuple[Flow, Tensor, Tensor]:
    """Two rounds: the flow, all messages and the last states."""
    state, gradient = _inputs(graph)
    streams = _Louder(_numbers(graph), loudness)
    routes, seen = graph.routes(), list[Tensor]()
    flow = Flow(
        (state if x is None else x).clone(),
        (gradient if g is None else g).clone(),
        routes,
        streams,
        Stepsize(law=Uniform()),
        Clock(1),
    )
    for round in (1, 2):
        flow.s = (gradient if g is None else g).clone()
        flow.at = Clock(round)
        take_step(mechanism, flow)
        exchange(mechanism, flow, by_messages(mechanism, lambda v: seen.append(v.clone())))
    return flow, torch.stack(seen), flow.x


def _average_fault(mechanism: Mechanism, graph: Graph) -> str:
    x, g = _inputs(graph)
    flow, _, states = _played(mechanism, graph)
    expected = x.mean(1)
    for round in (1, 2):
        step = g.clone()
        flow.stepsize.scale_(step, flow.streams, round)
        expected = expected - step.mean(1)
    moved, wanted = states.mean(1) - x.mean(1), expected - x.mean(1)
    if torch.allclose(moved, wanted, rtol=0, atol=_TOLERANCE):
        return ""
    return (
        f"two rounds moved the average by {float(moved[0, 0]):.4g} where the mean of the steps is "
        f"{float(wanted[0, 0]):.4g} (the shares of an agent must sum to its step; else say "
        "keeps_average = False)"
    )


def _is_linear(mechanism: Mechanism, graph: Graph) -> bool:
    x, g = _inputs(graph)
    _, once, state = _played(mechanism, graph)
    _, twice, doubled = _played(mechanism, graph, 2 * x, 2 * g, 2.0)
    _, other, third = _played(mechanism, graph, x.roll(1, 1), g.flip(1), -1.0)
    _, both, fourth = _played(mechanism, graph, x + x.roll(1, 1), g + g.flip(1), 0.0)
    return _close(2 * once, twice, 2 * state, doubled) and _close(
        once + other, both, state + third, fourth
    )


def _is_by_coordinate(mechanism: Mechanism, graph: Graph) -> bool:
    x, g = _inputs(graph)
    _, first, state = _played(mechanism, graph)
    x[..., 0], g[..., 0] = 1e3 * x[..., 0] + 1, -1e3 * g[..., 0]
    _, second, other = _played(mechanism, graph, x, g)
    return torch.equal(first[..., 1:], second[..., 1:]) and torch.equal(
        state[..., 1:], other[..., 1:]
    )


def _close(*pairs: Tensor) -> bool:
    found = zip(pairs[::2], pairs[1::2], strict=True)
    return all(torch.allclose(a, b, rtol=1e-9, atol=_TOLERANCE) for a, b in found)


class _Louder(Streams):
    """The same private numbers, the Gaussian ones times a factor."""

    def __init__(self, streams: Streams, loudness: float) -> None:
        super().__init__(streams.runs, streams.agents, streams.device)
        self._streams, self._loudness = streams, loudness

    def part(self, runs: slice, agents: slice) -> Streams:
        return _Louder(self._streams.part(runs, agents), self._loudness)

    def renumbered(self, agents: Sequence[int]) -> Streams:
        return _Louder(self._streams.renumbered(agents), self._loudness)

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        return self._streams.uniform(purpose, round, count, dtype)

    def normal(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        return self._streams.normal(purpose, round, count, dtype).mul_(self._loudness)

    def scale_(self, tensor: Tensor, low: float, high: float, purpose: str, round: int) -> None:
        self._streams.scale_(tensor, low, high, purpose, round)

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        self._streams.add_normal_(tensor, deviation * self._loudness, purpose, round)
