"""The reference: one round of any chain, message by message. Every backend is held to it.

    g -> gradient parts -> s = Λg -> step parts -> split, share parts -> v_ij = w_ij x_j - share_ij
    -> message parts | x_i <- Σ_{j in N_i} v_ij -> state parts

States are combined before the step is applied (combine-then-adapt), as in the paper's eq.
(proposed_algorithm). In a chain with several exchanges a round, the first one spends the step.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from sottovoce.graphs import Routes
from sottovoce.mechanisms.flow import Clock, Flow
from sottovoce.mechanisms.mechanism import Mechanism

See = Callable[[Tensor], None]
Gather = Callable[[Flow], Tensor]


def take_step(mechanism: Mechanism, flow: Flow) -> None:
    """Turn the gradients in `flow.s` into steps, in place."""
    flow.proving = mechanism.bound is not None
    for part in mechanism.at("gradient"):
        part(flow)
    flow.stepsize.scale_(flow.s, flow.streams, flow.at.round)
    for part in mechanism.at("step"):
        part(flow)


def split_step(mechanism: Mechanism, flow: Flow) -> None:
    """Split the steps over the routes: `flow.shares`, (runs, routes, d)."""
    mechanism.split(flow)
    for part in mechanism.at("shares"):
        part(flow)


def make_messages(mechanism: Mechanism, flow: Flow) -> None:
    """What travels on every route, v_ij = w_ij x_j - share_ij: `flow.v`, (runs, routes, d).

    Multiplication and subtraction stay separate operations, so that one agent alone computes the
    same bits as a simulation of all.
    """
    split_step(mechanism, flow)
    weight = flow.routes.weight.to(flow.x.dtype).unsqueeze(-1)
    flow.v = flow.by_route(flow.x).mul_(weight).sub_(flow.shares)
    for part in mechanism.at("messages"):
        part(flow)


def receive(messages: Tensor, routes: Routes, agents: int) -> Tensor:
    """Sum what arrives at every agent, senders ascending: (runs, agents, d)."""
    state = messages.new_zeros(messages.shape[0], agents, messages.shape[2])
    return state.index_add_(1, routes.receiver, messages)


def settle(mechanism: Mechanism, flow: Flow, total: Tensor) -> None:
    """Make the sum of the received messages the new state: `flow.x`."""
    flow.before, flow.x = flow.x, total
    for part in mechanism.at("state"):
        part(flow)


def by_messages(mechanism: Mechanism, see: See | None = None) -> Gather:
    """What each agent receives, message by message; `see` gets the messages of each exchange."""

    def gather(flow: Flow) -> Tensor:
        make_messages(mechanism, flow)
        if see:
            see(flow.v)
        return receive(flow.v, flow.routes, flow.routes.agents)

    return gather


def exchange(mechanism: Mechanism, flow: Flow, gather: Gather) -> Tensor:
    """The exchanges of a round, from the steps in `flow.s` to the new states, which it returns.

    gather: computes the sum of the messages that each agent receives, (runs, agents, d).
    """
    for inner in range(mechanism.exchanges):
        if inner:
            flow.at, flow.s = Clock(flow.at.round, inner), torch.zeros_like(flow.s)
        settle(mechanism, flow, gather(flow))
    return flow.x
