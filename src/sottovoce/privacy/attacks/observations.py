"""Everything that an adversary sees over many rounds, as linear equations in all unknowns."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.errors import AttackError
from sottovoce.mechanisms import Clock, Flow, Mechanism
from sottovoce.mechanisms.reference import make_messages, receive, settle, take_step
from sottovoce.privacy.adversaries import Sums, View
from sottovoce.privacy.attacks.smoothing import SPREAD, coefficient_deviations, with_spread
from sottovoce.privacy.columns import AtMean, Columns, Numbers
from sottovoce.simulation.transcript import Truth

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Observations:
    """Everything seen, as rows y = A u: the same matrix serves every coordinate.

    The columns u are a point common to all agents at the start, private starting numbers, what
    each agent's gradients share, the rest of one gradient s / λ̄ for each agent and round, and the
    Gaussian numbers of the chain. rows: (seen, columns); states: (rounds, agents, columns); values:
    (seen, runs, d); steady: (agents,), the columns of what gradients share; gradients: (rounds,
    agents), those of the rest, rounds before the first seen one in front; spread: those of noise in
    proportion to a gradient, which the spread of private coefficients causes.
    """

    rows: Array
    states: Array
    values: Tensor
    steady: NDArray[np.int64]
    gradients: NDArray[np.int64]
    spread: NDArray[np.int64]


def rounds_around(view: View, round: int, reach: int, attack: str) -> View:
    """The part of a view from round - reach to round + reach; refused where rounds are missing."""
    view.position(round, attack)
    wanted = [k for k in view.rounds if abs(k - round) <= reach]
    if wanted != list(range(wanted[0], wanted[-1] + 1)):
        raise AttackError(f"{attack} needs rounds without a gap; the adversary saw {wanted[:8]}")
    first = view.rounds.index(wanted[0])
    kept = slice(first, first + len(wanted))
    sums = view.sums and Sums(view.sums.receivers, view.sums.senders, view.sums.values[kept])
    return replace(
        view,
        rounds=wanted,
        messages=view.messages[kept],
        inside={j: Truth(*(x[kept] for x in vars(one).values())) for j, one in view.inside.items()},
        states=None if view.states is None else view.states[kept],
        stepsizes=None if view.stepsizes is None else view.stepsizes[kept],
        sums=sums,
    )


def observe(view: View, before: int) -> Observations:
    """Play the chain on unit columns and keep the rows of what the view holds.

    Where round 1 is seen and the starting point is public, nothing happened before it.
    """
    first, known = view.rounds[0], view.start is not None and view.rounds[0] == 1
    early = 0 if known else min(before, first - 1)
    rounds = list(range(first - early, view.rounds[-1] + 1))
    agents, routes = view.graph.agents, view.graph.routes()
    private = agents if known and view.private_start else 0
    ends = torch.stack([routes.edge, routes.receiver, routes.sender], 1).tolist()
    held = frozenset(edge for edge, *end in ends if set(view.inside).intersection(end))
    numbers = Numbers(1 + private + (1 + len(rounds)) * agents, held)
    mechanism = with_spread(view, 1.0, coefficient_deviations(view))
    chain = mechanism.with_split(AtMean(mechanism.split))
    _play(view, chain, rounds, private, numbers)
    rows, states = _play(view, chain, rounds, private, numbers)
    steady = 1 + private + np.arange((1 + len(rounds)) * agents).reshape(-1, agents)
    values = [one for at in range(len(view.rounds)) for one in _values(view, at)]
    spread = [at for (purpose, *_), at in numbers.columns.items() if purpose.startswith(SPREAD)]
    return Observations(
        rows, states, torch.stack(values), steady[0], steady[1:], np.array(spread, dtype=int)
    )


def _play(
    view: View, chain: Mechanism, rounds: list[int], private: int, numbers: Numbers
) -> tuple[Array, Array]:
    """Rows of everything seen in the view's rounds, and of all states."""
    routes, agents = view.graph.routes(), view.graph.agents
    ends = list(zip(routes.receiver.tolist(), routes.sender.tolist(), strict=True))
    place = {end: at for at, end in enumerate(ends)}
    links = [place[end] for end in view.ends()]
    sums = view.sums and [
        [place[i, j] for j in senders]
        for i, senders in zip(view.sums.receivers, view.sums.senders, strict=True)
    ]
    width = numbers.first + len(numbers.columns)
    x = torch.zeros(1, agents, width, dtype=torch.float64)
    x[..., 0] = 1.0
    x[0, :, 1 : 1 + private] += torch.eye(agents, private, dtype=torch.float64)
    streams = Columns(range(agents), numbers)
    flow = Flow(x, torch.zeros_like(x), routes, streams, view.stepsize, Clock(rounds[0]))
    rows, states, own = [], [], sorted(view.inside)
    for at, round in enumerate(rounds):
        flow.at, flow.s = Clock(round), torch.zeros_like(x)
        for first in (1 + private, 1 + private + (1 + at) * agents):
            flow.s[0, :, first : first + agents] = torch.eye(agents, dtype=torch.float64)
        states.append(flow.x[0].numpy().copy())
        take_step(chain, flow)
        make_messages(chain, flow)
        if round in view.rounds:
            rows.append(flow.v[0, links])
            rows += [flow.v[0, of].sum(0, keepdim=True) for of in sums or []]
            rows += [flow.x[0, own], flow.s[0, own]]
        settle(chain, flow, receive(flow.v, routes, agents))
    return torch.cat(rows).numpy(), np.stack(states)


def _values(view: View, at: int) -> list[Tensor]:
    """What was seen in a round, in the order of the rows: (runs, d) each."""
    found = [*view.messages[at].double().unbind(1)]
    if view.sums is not None:
        found += view.sums.values[at].double().unbind(1)
    for kind in ("states", "steps"):
        found += [getattr(view.inside[i], kind)[at].double() for i in sorted(view.inside)]
    return found


def rounding(view: View, seen: Observations) -> float:
    """The variance of what rounding left on a message."""
    size = float(seen.values.square().mean())
    return size * torch.finfo(view.messages.dtype).eps ** 2 / 3


def centre_of(view: View) -> Tensor:
    """A point near all states: the public start, or what is seen in the first round, (runs, d)."""
    if view.start is not None and view.rounds[0] == 1:
        return view.start.double()
    if view.inside:
        return next(iter(view.inside.values())).states[0].double()
    if view.sums is not None:
        graph, receivers, senders = view.graph, view.sums.receivers, view.sums.senders
        weight = sum(float(graph.mixing[receivers[0], j]) for j in senders[0])
        return view.sums.values[0][:, 0].double() / weight
    return view.messages[0][:, 0].double() / view.weights([0])


def about(seen: Observations, centre: Tensor) -> Tensor:
    """What was seen less what a common point explains: (seen, runs, d)."""
    return seen.values - torch.from_numpy(seen.rows[:, 0])[:, None, None] * centre
