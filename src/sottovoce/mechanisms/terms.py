"""Gaussian noise as terms of a sum, which a GPU's kernel draws where it adds them.

The numbers are those that `Flow.normal` and `Flow.exact_normal` give to the reference. Noise of a
simulator protects nobody: it is drawn in one place, by a generator that is not cryptographic.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from sottovoce.kernels.noise import Terms, add_normals_
from sottovoce.mechanisms.flow import Flow, Scope
from sottovoce.randomness import DeviceStreams

_TERMS = 4
"""Draws of which one exact normal number is half the sum (`Streams.exact_normal`)."""


def add_exact_noise(
    flow: Flow, scope: Scope, purpose: str, sizes: Tensor, rounds: Mapping[int, float]
) -> None:
    """Add to the steps `sizes` times exact normal numbers, of an agent or of its edges with signs.

    sizes: (senders, 1) float64; rounds: whose numbers, each with its weight.
    """
    flow.asked.add(scope)
    routes, device = flow.routes, sizes.device
    agents = torch.tensor(list(flow.streams.agents), device=device)
    if scope is Scope.EDGE:
        between = (~routes.own).nonzero().flatten()
        between = between[torch.argsort(routes.sender[between], stable=True)]
        row, number, sign = routes.sender[between], routes.edge[between], routes.sign[between]
        purpose = f"{purpose}, edge"
    else:
        row, number, sign = torch.arange(len(agents), device=device), agents, sizes.new_ones(1)
    weight = 0.5 * sizes.squeeze(-1)[row] * sign
    names = [f"{flow.named(purpose)}, term {term} of {_TERMS}" for term in range(1, _TERMS + 1)]
    keys = _keys(flow, names, torch.float64)
    each = len(rounds) * _TERMS
    clock = torch.tensor(list(rounds), device=row.device).repeat_interleave(_TERMS)
    by_round = sizes.new_tensor(list(rounds.values())).repeat_interleave(_TERMS)
    terms = Terms(
        row.repeat_interleave(each),
        keys.repeat(len(rounds) * len(row)),
        clock.repeat(len(row)),
        number.repeat_interleave(each),
        weight.repeat_interleave(each) * by_round.repeat(len(row)),
        torch.float64,
    )
    add_normals_(flow.s, terms, flow.streams.runs)


def subtract_zero_sum(flow: Flow, purpose: str, sizes: Tensor, total: Tensor) -> None:
    """Take from what agents receive noise on the shares that sums to zero over a neighbourhood.

    A receiver i loses Σ_j sizes_j (z_ij - mean_{l in N_j} z_lj). sizes: (senders, 1).
    """
    flow.asked.add(Scope.LINK)
    routes, device = flow.routes, total.device
    names = [f"{flow.named(purpose)}, slot {slot}" for slot in range(routes.slots)]
    members = routes.members[routes.sender]
    route = torch.arange(len(members), device=device).repeat_interleave(members)
    first = members.cumsum(0) - members
    slot = torch.arange(len(route), device=device) - first[route]
    sender = routes.sender[route]
    own = (slot == routes.slot[route]).double()
    terms = Terms(
        routes.receiver[route],
        _keys(flow, names, torch.float32)[slot],
        torch.full_like(route, flow.at.round),
        torch.tensor(list(flow.streams.agents), device=device)[sender],
        sizes.double().squeeze(-1)[sender] * (1.0 / members[route] - own),
        torch.float32,
    )
    add_normals_(total, terms, flow.streams.runs)


def _keys(flow: Flow, purposes: list[str], dtype: torch.dtype) -> Tensor:
    streams = flow.streams
    assert isinstance(streams, DeviceStreams)
    found = [streams.key(purpose, flow.s.shape[-1], dtype) for purpose in purposes]
    return torch.tensor(found, device=flow.s.device)
