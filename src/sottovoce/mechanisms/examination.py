"""Play a chain on small random numbers and refuse what it claims and does not do."""

from collections.abc import Iterator
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
from sottovoce.randomness import DeviceStreams
from sottovoce.stepsizes import Stepsize, Uniform

_LARGEST = 32
"""A graph of more agents is stood in for by a ring of 8."""
_SHAPE = (2, 37)
"""Runs and coordinates of the numbers played with; more than an agent there has links."""
_WIDE = (1 << 16) + 1
"""Coordinates with which a part is played whose coordinates must all be treated alike."""
_WIDEST = 1 << 24
_TOLERANCE = 1e-9
_SIZES = (2.0, 1e-6, 1e6)
"""Times the numbers played with, at which a linear part must do the same."""
_PLAYED = Stepsize(law=Uniform())


def check(mechanism: Mechanism, graph: Graph, stepsize: Stepsize = _PLAYED) -> None:
    """Raise `AlgorithmError` unless every part keeps what it claims, with all faults at once.

    stepsize: the one that is to be used; it decides whether noise cancels between agents.
    """
    graph = _stand_in(graph)
    faults = [*_bound_faults(mechanism), *_faults(mechanism, graph, stepsize)]
    if not (faults or _starts_from_the_flow(mechanism, graph)):
        faults.append(
            "some part keeps numbers from round to round where nobody looks for them, such as on "
            "the part, on the flow or in a global; keep them in flow.memory"
        )
    if faults := faults or list(_unlike(mechanism, graph, _WIDE)):
        raise AlgorithmError(f"{mechanism}: " + "; ".join(faults))


def check_dimension(mechanism: Mechanism, graph: Graph, dimension: int) -> None:
    """Raise unless a chain that bounds samples adds its noise to all coordinates of a model alike.

    `check` has looked at some thousands; a model may have more.
    """
    if dimension > _WIDE and (faults := list(_unlike(mechanism, _stand_in(graph), dimension))):
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
    near = torch.logspace(-1, 1, 401).double() * bound.norm
    norms = torch.cat([torch.zeros(1), torch.logspace(-30, 30, 121), near]).double()
    factors, name = bound.factors(norms.clone()), type(bound).__name__
    most = float((factors * norms).abs().max())
    if not most <= bound.norm * (1 + _TOLERANCE):
        yield (
            f"{name} says that a sample contributes at most {bound.norm:.4g}, but its factors let "
            f"{most:.4g} through"
        )
    alone = torch.cat([bound.factors(norm.clone()) for norm in norms.split(1)])
    if factors.shape != norms.shape or not torch.allclose(factors, alone, rtol=_TOLERANCE, atol=0):
        yield (
            f"{name} gives a sample another factor beside other samples: one record more would "
            "change what all others contribute; a factor may depend on the sample's own norm alone"
        )


def _faults(mechanism: Mechanism, graph: Graph, stepsize: Stepsize) -> Iterator[str]:
    means = [[stepsize.mean(k, agent) for agent in range(graph.agents)] for k in (1, 2)]
    apart = any(len(set(each)) > 1 for each in means)
    for part in mechanism.parts:
        alone = _alone(mechanism, part)
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


def _alone(mechanism: Mechanism, part: Part) -> Mechanism:
    """The part beside what a chain cannot do without."""
    others = mechanism.at("samples") if part.place != "samples" else ()
    shares = () if part.place == "split" else (Shares("weights"),)
    return replace(mechanism, parts=(*others, *shares, part))


def _inputs(graph: Graph) -> tuple[Tensor, Tensor]:
    """States and gradients to play with."""
    generator = torch.Generator().manual_seed(0)
    runs, d = _SHAPE
    x, g = torch.randn(2, runs, graph.agents, d, generator=generator, dtype=torch.float64)
    return x, g


def _flow(
    graph: Graph,
    x: Tensor,
    g: Tensor,
    loudness: float = 1.0,
    stepsize: Stepsize = _PLAYED,
    streams: DeviceStreams | None = None,
) -> Flow:
    streams = streams or _Louder(graph.agents, loudness)
    return Flow(x.clone(), g.clone(), graph.routes(), streams, stepsize, Clock(1))


def _played(
    mechanism: Mechanism,
    graph: Graph,
    given: tuple[Tensor, Tensor] | None = None,
    loudness: float = 1.0,
    stepsize: Stepsize = _PLAYED,
    streams: DeviceStreams | None = None,
) -> tuple[Flow, Tensor]:
    """Two rounds: the flow, and all messages and the last states as rows, (rows, coordinates)."""
    x, g = given or _inputs(graph)
    flow = _flow(graph, x, g, loudness, stepsize, streams)
    seen = [_round(mechanism, flow, round, g) for round in (1, 2)]
    return flow, torch.cat([*seen, flow.x.flatten(0, 1)])


def _round(mechanism: Mechanism, flow: Flow, round: int, g: Tensor) -> Tensor:
    """Play a round; its messages as rows, (rows, coordinates)."""
    seen = list[Tensor]()
    flow.at, flow.s = Clock(round), g.clone()
    take_step(mechanism, flow)
    exchange(mechanism, flow, by_messages(mechanism, lambda v: seen.append(v.clone())))
    return torch.cat([one.flatten(0, 1) for one in seen])


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
    # What only large or only small numbers meet, such as a threshold, shows at other sizes.
    for size in _SIZES:
        _, scaled = _played(mechanism, graph, (size * x, size * g), size)
        if not torch.allclose(size * once, scaled, rtol=1e-9, atol=size * _TOLERANCE):
            return False
    _, other = _played(mechanism, graph, (x2, g2), -1.0)
    _, both = _played(mechanism, graph, (x + x2, g + g2), 0.0)
    return torch.allclose(once + other, both, rtol=1e-9, atol=_TOLERANCE)


def _starts_from_the_flow(mechanism: Mechanism, graph: Graph) -> bool:
    """Whether a round follows from states, gradients and memory, whatever was played before it."""
    x, g = _inputs(graph)
    flow = _flow(graph, x, g)
    _round(mechanism, flow, 1, g)
    later, other = _flow(graph, flow.x, g), _flow(graph, -x, g)
    later.memory = {name: one.clone() for name, one in flow.memory.items()}
    first = _round(mechanism, flow, 2, g)
    _round(mechanism, other, 1, 3 * g.flip(1))
    return torch.equal(first, _round(mechanism, later, 2, g))


def _is_by_coordinate(mechanism: Mechanism, graph: Graph, once: Tensor) -> bool:
    x, g = _inputs(graph)
    x[..., 0], g[..., 0] = 1e3 * x[..., 0] + 1, -1e3 * g[..., 0]
    _, other = _played(mechanism, graph, (x, g), streams=_OtherFirst(graph.agents, 1.0))
    return torch.equal(once[:, 1:], other[:, 1:])


def _unlike(mechanism: Mechanism, graph: Graph, dimension: int) -> Iterator[str]:
    """Parts that do not treat coordinates alike, where a proof counts on the noise of a step."""
    if mechanism.bound is None:
        return
    for part in (*mechanism.at("gradient"), *mechanism.at("step")):
        alone = _alone(mechanism, part)
        one, many = (_step_of_one(alone, graph, d) for d in (1, min(dimension, _WIDEST)))
        if not torch.allclose(one.expand_as(many), many, rtol=1e-9, atol=_TOLERANCE):
            yield (
                f"{type(part).__name__} does not treat all of {dimension:,} coordinates alike, or "
                "not as it treats one alone, so that no proof could count on its noise"
            )


def _step_of_one(mechanism: Mechanism, graph: Graph, dimension: int) -> Tensor:
    """The steps of agent 0 in two rounds, all coordinates being equal: (rows, coordinates)."""
    x, g = (one[:1, :1, :1].repeat(1, 1, dimension) for one in _inputs(graph))
    flow = Flow(x, g, graph.routes(0), _Equal(1, 1.0, dimension), _PLAYED, Clock(1))
    seen = list[Tensor]()
    for round in (1, 2):
        flow.at, flow.s = Clock(round), g.clone()
        take_step(mechanism, flow)
        seen.append(flow.s[0])
    return torch.cat(seen)


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


class _OtherFirst(_Louder):
    """The same numbers but for those of the first coordinate."""

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        found = super().uniform(purpose, round, count, dtype)
        if count == _SHAPE[1]:
            found[..., 0] = (found[..., 0] + 0.5) % 1.0
        return found


class _Equal(_Louder):
    """One number for all coordinates, the same for any number of them."""

    def __init__(self, agents: int, loudness: float, dimension: int) -> None:
        super().__init__(agents, loudness)
        self.runs, self._dimension = range(1), dimension

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        if count != self._dimension:
            return super().uniform(purpose, round, count, dtype)
        return super().uniform(purpose, round, 1, dtype).repeat(1, 1, count)
