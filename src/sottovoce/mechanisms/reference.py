"""The reference: one round of any chain, message by message. Every backend is held to it.

    g -> gradient parts -> s = Λg -> step parts -> split, share parts -> v_ij = w_ij x_j - share_ij
    -> message parts | x_i <- Σ_{j in N_i} v_ij -> state parts

States are combined before the step is applied (combine-then-adapt), as in the paper's eq.
(proposed_algorithm). In a chain with several exchanges a round, the first one spends the step.
"""

from collections.abc import Callable

from torch import Tensor

from sottovoce.graphs import Routes
from sottovoce.mechanisms.flow import Clock, Flow
from sottovoce.mechanisms.mechanism import Mechanism


def take_step(mechanism: Mechanism, flow: Flow) -> None:
    """Turn the gradients in `flow.s` into steps, in place."""
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


def play(
    mechanism: Mechanism, flow: Flow, see: Callable[[Tensor], None] = lambda messages: None
) -> Tensor:
    """One round of all agents from the gradients in `flow.s`; `see` gets each exchange's messages.

    Returns the new states, (runs, agents, d).
    """
    take_step(mechanism, flow)
    return exchange(mechanism, flow, see)


def exchange(
    mechanism: Mechanism, flow: Flow, see: Callable[[Tensor], None] = lambda messages: None
) -> Tensor:
    """The exchanges of a round from the steps in `flow.s` on."""
    for inner in range(mechanism.exchanges):
        flow.at = Clock(flow.at.round, inner)
        if inner:
            flow.s = flow.s.new_zeros(flow.s.shape)
        make_messages(mechanism, flow)
        see(flow.v)
        settle(mechanism, flow, receive(flow.v, flow.routes, flow.routes.agents))
    return flow.x
