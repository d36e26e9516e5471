"""Play a chain on small random numbers and refuse what it claims and does not do."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from sottovoce.errors import AlgorithmError
from sottovoce.graphs import Graph, ring
from sottovoce.mechanisms.flow import Clock, Flow, Scope
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.parts import Shares
from sottovoce.mechanisms.reference import by_messages, exchange, take_step
from sottovoce.randomness import DeviceStreams
from sottovoce.stepsizes import Stepsize, Uniform

_LARGEST = 32
"""A graph of more agents is stood in for by a ring of 8."""
_SHAPE = (2, 5)
"""Runs and coordinates of the numbers played with."""
_TOLERANCE = 1e-9
_PLAYED = Stepsize(law=Uniform())


def check(mechanism: Mechanism, graph: Graph, stepsize: Stepsize = _PLAYED) -> None:
    """Raise `AlgorithmError` unless every part keeps what it claims, with all faults at once.

    stepsize: the one that is to be used; it decides whether noise cancels between agents.
    """
    if faults := [*_bound_faults(mechanism), *_faults(mechanism, _stand_in(graph), stepsize)]:
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


def public_split(mechanism: Mechanism, graph: Graph) -> bool:
    """Whether the coefficients b_ij ask for no private number."""
    flow = _flow(graph, *_inputs(graph))
    mechanism.split(flow)
    return not flow.asked


def _stand_in(graph: Graph) -> Graph:
    return graph if graph.agents <= _LARGEST else ring(8)


def _bound_faults(mechanism: Mechanism) -> Iterator[str]:
    if (bound := mechanism.bound) is None:
        return
    norms = torch.cat([torch.zeros(1), torch.logspace(-30, 30, 121)]).double()
    most = float((bound.factors(norms.clone()) * norms).max())
    if not most <= bound.norm * (1 + _TOLERANCE):
        yield (
            f"{type(bound).__name__} says that a sample contributes at most {bound.norm:.4g}, but "
            f"its factors let {most:.4g} through"
        )


def _faults(mechanism: Mechanism, graph: Graph, stepsize: Stepsize) -> Iterator[str]:
    means = [[stepsize.mean(k, agent) for agent in range(graph.agents)] for k in (1, 2)]
    apart = any(len(set(each)) > 1 for each in means)
    for part in mechanism.parts:
        others = () if part.place == "split" else (Shares("weights"),)
        alone = replace(mechanism, parts=(*others, part))
        name = type(part).__name__
        flow, once = _played(alone, graph)
        if not torch.isfinite(once).all():
            yield f"{name} gives numbers that are not finite"
            continue
        if not torch.equal(once, _played(alone, graph)[1]):
            yield (
                f"{name} gives other messages for the same private numbers; draw randomness with "
                "flow.uniform or flow.normal only"
            )
            continue
        if part.keeps_average and (fault := _average_fault(flow, graph)):
            yield f"{name} says that it keeps the average, but {fault}"
        elif part.keeps_average and apart:
            flow, _ = _played(alone, graph, stepsize=stepsize)
            if fault := _average_fault(flow, graph):
                yield (
                    f"{name} keeps the average only where all agents have the same mean stepsize, "
                    f"which is between {min(means[0]):.4g} and {max(means[0]):.4g} in round 1; "
                    "give all agents one schedule"
                )
        if part.linear and not _is_linear(alone, graph, once):
            yield f"{name} says that it is linear, but twice the input is not twice the output"
        if part.by_coordinate and not _is_by_coordinate(alone, graph, once):
            yield f"{name} says that it works by coordinate, but one coordinate alters another"
        if part.place == "split" and not _is_timeless_if_said(alone, graph):
            yield (
                f"{name} says that it is timeless, but the coefficients of three rounds at once "
                "are not those of each round (else say timeless = False)"
            )


def _inputs(graph: Graph) -> tuple[Tensor, Tensor]:
    """States and gradients to play with."""
    generator = torch.Generator().manual_seed(0)
    runs, d = _SHAPE
    x, g = torch.randn(2, runs, graph.agents, d, generator=generator, dtype=torch.float64)
    return x, g


def _flow(
    graph: Graph, x: Tensor, g: Tensor, loudness: float = 1.0, stepsize: Stepsize = _PLAYED
) -> Flow:
    streams = _Louder(graph.agents, loudness)
    return Flow(x.clone(), g.clone(), graph.routes(), streams, stepsize, Clock(1))


def _played(
    mechanism: Mechanism,
    graph: Graph,
    given: tuple[Tensor, Tensor] | None = None,
    loudness: float = 1.0,
    stepsize: Stepsize = _PLAYED,
) -> tuple[Flow, Tensor]:
    """Two rounds: the flow, and all messages and the last states as rows, (rows, coordinates)."""
    x, g = given or _inputs(graph)
    flow, seen = _flow(graph, x, g, loudness, stepsize), list[Tensor]()
    for round in (1, 2):
        flow.at, flow.s = Clock(round), g.clone()
        take_step(mechanism, flow)
        exchange(mechanism, flow, by_messages(mechanism, lambda v: seen.append(v.clone())))
    return flow, torch.cat([one.flatten(0, 1) for one in (*seen, flow.x)])


def _average_fault(flow: Flow, graph: Graph) -> str:
    x, g = _inputs(graph)
    expected = x.mean(1)
    for round in (1, 2):
        step = g.clone()
        flow.stepsize.scale_(step, flow.streams, round)
        expected = expected - step.mean(1)
    moved, wanted = flow.x.mean(1) - x.mean(1), expected - x.mean(1)
    if torch.allclose(moved, wanted, rtol=0, atol=_TOLERANCE):
        return ""
    return (
        f"two rounds moved the average by {float(moved[0, 0]):.4g} where the mean of the steps is "
        f"{float(wanted[0, 0]):.4g} (the shares of an agent must sum to its step; else say "
        "keeps_average = False)"
    )


def _is_linear(mechanism: Mechanism, graph: Graph, once: Tensor) -> bool:
    x, g = _inputs(graph)
    x2, g2 = x.roll(1, 1), g.flip(1)
    _, twice = _played(mechanism, graph, (2 * x, 2 * g), 2.0)
    _, other = _played(mechanism, graph, (x2, g2), -1.0)
    _, both = _played(mechanism, graph, (x + x2, g + g2), 0.0)
    pairs = ((2 * once, twice), (once + other, both))
    return all(torch.allclose(a, b, rtol=1e-9, atol=_TOLERANCE) for a, b in pairs)


def _is_by_coordinate(mechanism: Mechanism, graph: Graph, once: Tensor) -> bool:
    x, g = _inputs(graph)
    x[..., 0], g[..., 0] = 1e3 * x[..., 0] + 1, -1e3 * g[..., 0]
    _, other = _played(mechanism, graph, (x, g))
    return torch.equal(once[:, 1:], other[:, 1:])


def _is_timeless_if_said(mechanism: Mechanism, graph: Graph) -> bool:
    if not mechanism.split.timeless:
        return True
    flow = _flow(graph, *_inputs(graph))
    found = []
    for round in (1, 2, 3):
        flow.at = Clock(round)
        found.append(mechanism.split.coefficients(flow))
    return torch.equal(torch.cat(found), mechanism.split.coefficients(flow.of_rounds(1, 3)))


class _Louder(DeviceStreams):
    """Repeatable numbers, the Gaussian ones times a factor; none is secret, so no cipher serves."""

    def __init__(self, agents: int, loudness: float) -> None:
        super().__init__(range(_SHAPE[0]), range(agents), 0, torch.device("cpu"))
        self._loudness = loudness

    def normal(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        return super().normal(purpose, round, count, dtype).mul_(self._loudness)

    def exact_normal(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        return self.normal(purpose, round, count, dtype)

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        super().add_normal_(tensor, deviation * self._loudness, purpose, round)
