"""How facts and messages travel between agents: the few things that every way of it must do.

An optimizer needs two things of a transport. Before the first round and where a training resumes,
agents compare small JSON documents: `gather`, and `agree` which rests on it. In every round each
agent sends one message to each neighbour and receives one: `link` hands over the buffers once, then
for every exchange, numbered from 1 on,

    open(n)          offer the buffers in which the messages of exchange n arrive
    send(s, n)       segment s of all outgoing messages is written and stamped: let it travel
    wait(j, s, n)    return when segment s of agent j's message has arrived, whatever it holds
    flush(n)         return when everything that was sent has left

`Exchange` writes headers and checks what arrived; a transport moves bytes and never looks at them.

A second implementation derives from `Transport`, sets the attributes below and writes the abstract
methods. It needs no full mesh: where `gather` gives the documents of the neighbours alone, facts
are agreed link by link, and equality along the links of a connected graph is equality of all. Where
agents start again one at a time, `gather` is answered on behalf of an optimizer that is in the
middle of its training: keep the last document that it gave (or the one of `stand_in`), and its
`journal`, whose retained frames are what a neighbour that fell behind asks for again
(`Journal.frames`). An end of a link
that fails raises `PeerLost`, or waits and joins it again: the optimizer cannot tell.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from sottovoce.distributed.frames import Frame, Inbox
from sottovoce.distributed.handshake import compare
from sottovoce.distributed.journal import Journal
from sottovoce.errors import DistributedError

START = 60.0
"""Seconds that agents wait for each other at the start at least: loading takes unequal times."""


class Identities(Protocol):
    """What this agent signs with, and the public keys of all agents."""

    def sign(self, purpose: str, content: dict[str, Any]) -> bytes:
        """Sign `content` for `purpose` alone, as this agent."""

    def verified(self, agent: int, signature: bytes, purpose: str, content: dict[str, Any]) -> bool:
        """Whether an agent signed `content` for `purpose`; False for agents that are not known."""


class Transport(ABC):
    """The links of one agent.

    agent, agents: who this is, and among how many. device: where messages lie. timeout: seconds
    after which a silent neighbour counts as lost. in_one_piece: whether a message must travel as a
    whole. training: the number of the training where it is known beforehand, else None: the agents
    then take the one that the first of them drew. epoch: the epoch that begins where the agents'
    folders hold nothing, None where the agents count epochs themselves. identities: what agents
    sign with, None where they have no identities. journal: what the optimizer has sent and keeps,
    set by it.
    """

    agent: int
    agents: int
    device: torch.device = torch.device("cpu")
    timeout: float = 60.0
    in_one_piece: bool = False
    training: int | None = None
    epoch: int | None = None
    identities: Identities | None = None
    journal: Journal | None = None

    @property
    def patience(self) -> float:
        """Seconds to wait for documents of others, who may still be loading."""
        return max(self.timeout, START)

    @abstractmethod
    def gather(self, document: Mapping[str, Any], purpose: str) -> dict[int, dict[str, Any]]:
        """The documents of all agents within reach, by agent, with the own one among them.

        They hold what JSON holds. All agents call it in the same order. purpose: what an error
        names.
        """

    def agree(
        self, facts: Mapping[str, Any], offer: Mapping[str, Any] | None = None
    ) -> dict[int, dict[str, Any]]:
        """Compare `facts` with the others' and return what each agent offers, by agent.

        On a mismatch every agent that sees it raises, naming the field and two values. offer:
        public things that differ from agent to agent, such as a key.
        """
        document = {"facts": dict(facts), "offer": dict(offer or {})}
        everybody = self.gather(document, "the start-up check")
        compare({agent: _mapping(said.get("facts")) for agent, said in everybody.items()}, facts)
        wanted = facts["number of agents"]
        if self.agents != wanted:
            raise DistributedError(
                f"the graph has {wanted} agents, but {self.agents} processes were started; start "
                f"{wanted} (torchrun: --nnodes times --nproc-per-node)"
            )
        return {agent: _mapping(said.get("offer")) for agent, said in everybody.items()}

    def stand_in(self, document: Mapping[str, Any], purpose: str) -> None:
        """Say what to answer for this agent, from now on, where a neighbour starts again and asks.

        Its `journal`, where it has one, is replaced by the position at that moment.
        """
        return None

    @abstractmethod
    def link(self, outbox: Mapping[int, Frame], inbox: Mapping[int, Inbox], channel: int) -> None:
        """Take the buffers of all messages, by neighbour; again where a training resumes.

        channel: a number below 2^31 that belongs to the training; messages of two trainings that
        share a connection keep apart by it.
        """

    @abstractmethod
    def open(self, number: int) -> None:
        """Offer the buffers in which the messages of exchange `number` arrive."""

    @abstractmethod
    def send(self, segment: int, number: int, receivers: Sequence[int] | None = None) -> None:
        """Let a segment of the outgoing messages travel; to some receivers alone where given."""

    @abstractmethod
    def wait(self, sender: int, segment: int, number: int, deadline: float) -> None:
        """Return when a segment of a neighbour's message has arrived.

        deadline: the `time.monotonic()` at which the neighbour counts as lost.
        """

    @abstractmethod
    def flush(self, number: int, deadline: float) -> None:
        """Return when everything that was sent has left, so that buffers may be written again."""

    def sum_(self, tensor: Tensor, purpose: str) -> None:
        """Replace `tensor` by its sum over all agents, which reveals it; for studies."""
        raise DistributedError(
            f"{purpose} needs a sum over all agents, which {type(self).__name__} does not offer"
        )

    @abstractmethod
    def close(self) -> None:
        """Return when no agent needs this one any more; a transport may end its connections."""


def _mapping(said: object) -> dict[str, Any]:
    """A part of a document that must be an object; what is none says nothing."""
    return said if isinstance(said, dict) else {}
