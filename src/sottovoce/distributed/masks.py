"""Masked links: a codec that shows a receiver the sum of its neighbours' messages and no message.

    sent_ij = round(v_ij 2^20) + Σ_{l > j} m_ijl - Σ_{l < j} m_ijl   (mod 2^32),   l, j send to i

m_ijl is a keystream that j and l share for receiver i and this round alone; each occurs once with
either sign, so that they cancel in the sum that i takes. To everybody else a message is uniformly
random. What rounding takes away stays in v_jj (`mechanisms.fixed_point`). Behind the numbers of a
message come a few masked zeros: a sum in which they do not come out as zeros was masked for other
members, another round or another epoch, and is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sottovoce.distributed.mask_keys import (
    KeyAgreement,
    PairKeys,
    Senders,
    Session,
    agree_on_keys,
    require_pairs,
)
from sottovoce.distributed.transport import Transport
from sottovoce.errors import DistributedError, MessageError
from sottovoce.graphs import Graph
from sottovoce.mechanisms.fixed_point import STEP, beyond, largest, to_steps
from sottovoce.randomness.keystream import MOST_WORDS, Keystream, new_room

CHECK_WORDS = 2
"""Masked zeros behind the numbers of every message."""


class MaskedLinks:
    """One agent's codec for all its links: exchanges, then blocks of numbers in ascending order.

    agent: this one. senders: for each neighbour all who send to it. keys: shared with them, needed
    when an exchange begins.
    """

    def __init__(self, agent: int, senders: Senders, keys: PairKeys | None = None) -> None:
        self.agent, self.keys = agent, keys
        self.senders = require_pairs(agent, senders)
        self._number = 0
        self._room, self._desk = new_room(), torch.empty(3, 0)
        self._streams: list[list[tuple[int, Keystream]]] = []
        limits = [largest(len(members)) for members in self.senders.values()]
        self._limits = torch.tensor(limits, dtype=torch.float64)

    def __repr__(self) -> str:
        return f"MaskedLinks(agent={self.agent}, neighbours={list(self.senders)})"

    def begin(self, number: int) -> None:
        """Make ready to encode the messages of an exchange; it can be begun once, ever."""
        if self.keys is None:
            raise DistributedError(f"agent {self.agent} has no keys for masks; agree on keys first")
        keys = self.keys.take(number)
        self._number = number
        self._streams = [
            [
                (1 if self.agent < other else -1, Keystream(keys[receiver, other]))
                for other in members
                if other != self.agent
            ]
            for receiver, members in self.senders.items()
        ]

    def encode(self, messages: Tensor, own: Tensor, out: Tensor) -> None:
        """Write the next n numbers of all messages to `out`, masked, and to `own` what is left.

        messages: (neighbours, n) in ascending order of neighbours. own: (n,), v_jj of the same
        numbers, to which the remainders are added. out: (neighbours, n) int32.
        """
        kept, whole, rest = self._scratch(own)
        kept.zero_()
        for place, (message, target) in enumerate(zip(messages, out, strict=True)):
            to_steps(message, (whole, rest))
            if bool(beyond(whole, self._limits[place])):
                out.zero_()
                raise self._too_large(place)
            kept.add_(rest)
            target.copy_(whole)
        own.add_(kept.mul_(STEP))
        self._mask(out)

    def seal(self, out: Tensor) -> None:
        """Write the masked zeros that end each message: (neighbours, CHECK_WORDS) int32."""
        self._mask(out.zero_())
        self._streams = []

    def decode(self, total: Tensor, own: Tensor) -> Tensor:
        """Turn v_jj in `own` into the new state; total: the sum of what came, (n,) int32.

        Returns the numbers of the sum, (n,), which the next call overwrites.
        """
        numbers = self._scratch(own)[0].copy_(total).mul_(STEP)
        own.add_(numbers)
        return numbers

    def check(self, total: Tensor, round: int) -> None:
        """Raise unless the sum of the masked zeros, (CHECK_WORDS,) int32, is zero."""
        if bool(total.any()):
            raise MessageError(
                f"agent {self.agent} refused the sum of its neighbours' messages in round {round}: "
                "their masks do not cancel, so that a neighbour masked for other members, another "
                "round or another epoch; its own state is as before the round"
            )

    def _mask(self, out: Tensor) -> None:
        """Add this agent's share of the masks of the next words of every message."""
        if len(self._streams) != len(out):
            raise DistributedError(
                f"agent {self.agent} has no masks ready; begin an exchange before its messages"
            )
        for row, streams in zip(out, self._streams, strict=True):
            for sign, stream in streams:
                for part in row.split(MOST_WORDS):
                    words = torch.from_numpy(stream.read(len(part), self._room))
                    part.add_(words.to(part.device), alpha=sign)

    def _scratch(self, like: Tensor) -> Tensor:
        """Room for three vectors, used again for every block: (3, n)."""
        desk, size = self._desk, len(like)
        if desk.shape[1] < size or desk.dtype != like.dtype or desk.device != like.device:
            self._desk = torch.empty(3, size, dtype=like.dtype, device=like.device)
        return self._desk[:, :size]

    def _too_large(self, place: int) -> DistributedError:
        receiver, senders = list(self.senders.items())[place]
        limit = float(self._limits[place]) * STEP
        return DistributedError(
            f"the message of agent {self.agent} to agent {receiver} in exchange {self._number} is "
            "not finite or leaves the range of masked links; accepted: numbers up to "
            f"±{limit:.6g}, because the sum of {len(senders)} messages is taken modulo 2^32. "
            "None of them was sent. A smaller stepsize is the usual cure"
        )


class Masks:
    """The masks of one agent over a training: keys for every epoch, and the codec that uses them.

    transport: over which the agents agree on keys; its identities, where it has any, sign them.
    """

    def __init__(self, transport: Transport, graph: Graph) -> None:
        senders = {i: graph.neighbours(i) for i in graph.neighbours(transport.agent)}
        self.codec, self._transport = MaskedLinks(transport.agent, senders), transport
        self._session = Session(0)

    def enter(self, training: int, epoch: int, state: Mapping[str, Any] | None = None) -> None:
        """Begin an epoch without keys, or go on in one with those of a `state`."""
        self._session = Session(training, epoch)
        self.codec.keys = PairKeys.from_state(state) if state else None

    def agree(self, root: bytes | None = None) -> None:
        """Agree on the keys of the epoch, unless they are there; all agents call it at once.

        root: what this agent's key follows from; fresh unless given.
        """
        if self.codec.keys is None:
            agent, identities = self._transport.agent, self._transport.identities
            agreement = KeyAgreement(agent, self.codec.senders, self._session, identities, root)
            self.codec.keys = agree_on_keys(agreement, self._transport)

    def to_state(self) -> dict[str, Any] | None:
        """The keys of exchanges to come, as JSON, for a file that this agent alone can read."""
        return self.codec.keys.to_state() if self.codec.keys else None


def sum_(arrived: Sequence[Tensor], out: Tensor) -> Tensor:
    """The sum of integers modulo 2^32, in the beginning of `out`: (n,)."""
    first, *others = arrived
    total = out[: len(first)].copy_(first)
    for one in others:
        total.add_(one)
    return total


def encode(
    links: MaskedLinks, number: int, messages: Mapping[int, Tensor], own: Tensor
) -> tuple[dict[int, Tensor], Tensor]:
    """A whole exchange at once: what to send to each neighbour, (d + CHECK_WORDS,) int32, and v_jj.

    messages: (d,) by neighbour. own: (d,), left as it is; the v_jj returned holds the remainders.
    """
    kept, d = own.clone(), len(own)
    rows = torch.stack([messages[receiver] for receiver in links.senders])
    out = torch.empty(len(rows), d + CHECK_WORDS, dtype=torch.int32, device=own.device)
    links.begin(number)
    links.encode(rows, kept, out[:, :d])
    links.seal(out[:, d:])
    return dict(zip(links.senders, out, strict=True)), kept


def decode(links: MaskedLinks, round: int, arrived: Sequence[Tensor], kept: Tensor) -> Tensor:
    """The new state, (d,): what came from all neighbours, and what this agent kept."""
    total = sum_(arrived, torch.empty_like(arrived[0]))
    links.check(total[len(kept) :], round)
    state = kept.clone()
    links.decode(total[: len(kept)], state)
    return state
