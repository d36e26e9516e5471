"""How the neighbours of one receiver come to share keys in pairs, though they may not be linked.

Receiver i shall learn the sum of its neighbours' messages alone. Each pair (j, l) of them shares a
key; j adds to its message what l subtracts (Bonawitz et al., Practical Secure Aggregation, CCS
2017; Segal et al.). Every agent announces one ephemeral X25519 key, and every agent relays its
neighbours' announcements to one another:

    seed = HKDF(X25519(j, l), info = purpose, training, epoch, receiver, both agents and their keys)

The relay is the very agent that must not learn the seeds. With Ed25519 identities announcements are
signed, and it can do no more than pass them on. Without, it could put keys of its own in their
place: unsigned announcements protect against an agent that is curious but keeps to the protocol.
Nobody ever reveals a seed for an agent that is missing, so the second mask of Bonawitz et al. is
not needed: a round with a missing agent waits, or a new epoch begins with fresh keys.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.distributed.keys import KEY_BYTES, Ephemeral, Ratchet
from sottovoce.distributed.transport import Identities, Transport
from sottovoce.errors import DistributedError

_PURPOSE = "sottovoce masks 1"
_FIELD = "masks"
MOST_ANNOUNCED = 1024
"""No announcement is longer, in bytes."""

Senders = Mapping[int, Sequence[int]]
"""For each neighbour of an agent all who send to it, the agent among them."""


@dataclass(frozen=True)
class Session:
    """What keys are for: a training and an epoch of it; other keys serve another epoch."""

    training: int
    epoch: int = 0


class KeyAgreement:
    """One agent's part in the agreement on keys: bytes out, bytes in, whatever carries them.

    Send `announcement` to every neighbour; give what they sent to `relay`, and send the result to
    every neighbour; give what they sent to `keys`. Three calls, two messages a link and direction.
    It serves once: a repeated agreement takes another object and another epoch. root: what the
    agent's key of this epoch follows from; fresh unless given.
    """

    def __init__(
        self,
        agent: int,
        senders: Senders,
        session: Session,
        identities: Identities | None = None,
        root: bytes | None = None,
    ) -> None:
        self.agent, self.senders, self.session = agent, require_pairs(agent, senders), session
        self._pair, self._identities = Ephemeral(root, _FIELD), identities
        self._heard, self._is_over = {agent: self._pair.public}, False
        self._signature = b""
        if identities:
            signed = self._signed(agent, self._pair.public)
            self._signature = identities.sign(_PURPOSE, signed)

    def __repr__(self) -> str:
        return f"KeyAgreement(agent={self.agent}, epoch={self.session.epoch})"

    @property
    def announcement(self) -> bytes:
        """This agent's ephemeral key, for every neighbour to see and to relay."""
        own = {"agent": self.agent, "key": self._pair.public}
        return json.dumps({**own, "signature": self._signature.hex()}).encode()

    def relay(self, announcements: Mapping[int, bytes]) -> bytes:
        """The announcements of all neighbours, each checked, as one message for every neighbour."""
        if set(announcements) != set(self.senders):
            raise self._error(
                f"announcements of agents {sorted(announcements)} came; those of its neighbours "
                f"{sorted(self.senders)} are needed"
            )
        for neighbour, content in announcements.items():
            agent, self._heard[neighbour] = self._read(content)
            if agent != neighbour:
                raise self._error(f"agent {neighbour} announced a key in another agent's name")
        return json.dumps([content.decode() for content in announcements.values()]).encode()

    def keys(self, relayed: Mapping[int, bytes]) -> "PairKeys":
        """The keys with all who share a receiver with this agent, once."""
        if self._is_over:
            raise self._error("its keys were made already; another agreement needs another epoch")
        found = dict(self._heard)
        for receiver, senders in self.senders.items():
            heard = dict(self._read(one) for one in self._list(receiver, relayed))
            if missing := sorted(set(senders) - set(heard)):
                raise self._error(f"agent {receiver} did not relay the keys of agents {missing}")
            for other in senders:
                if found.setdefault(other, heard[other]) != heard[other]:
                    raise self._error(
                        f"two different keys of agent {other} came; it announced twice in this "
                        "epoch, or one of its neighbours replaced its key"
                    )
        if len(set(found.values())) < len(found):
            raise self._error("two agents announced the same key")
        seeds = {
            (receiver, other): self._seed(receiver, other, found)
            for receiver, senders in self.senders.items()
            for other in senders
            if other != self.agent
        }
        self._is_over = True
        return PairKeys(self.agent, seeds)

    def _signed(self, agent: int, key: str) -> dict[str, Any]:
        """What an agent signs: nothing of another training or epoch passes for it."""
        session = {"training": self.session.training, "epoch": self.session.epoch}
        return {**session, "agent": agent, "key": key}

    def _read(self, content: bytes) -> tuple[int, str]:
        """Agent and key of an announcement that is well formed and, with identities, signed."""
        try:
            if len(content) > MOST_ANNOUNCED:
                raise ValueError
            parts = json.loads(content.decode())
            agent, key = parts["agent"], bytes.fromhex(parts["key"]).hex()
            signature = bytes.fromhex(parts["signature"])
            if type(agent) is not int or agent < 0 or len(key) != 2 * KEY_BYTES:
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise self._error("a neighbour sent an announcement that cannot be read") from None
        known, signed = self._identities, self._signed(agent, key)
        if known and not known.verified(agent, signature, _PURPOSE, signed):
            raise self._error(
                f"the key in the name of agent {agent} is not signed by it for this training and "
                f"epoch {self.session.epoch}"
            )
        return agent, key

    def _list(self, receiver: int, relayed: Mapping[int, bytes]) -> Iterable[bytes]:
        """The announcements that a neighbour relayed."""
        most = (MOST_ANNOUNCED + 2) * len(self.senders[receiver]) * 2
        try:
            content = relayed[receiver]
            parts = json.loads(content) if len(content) <= most else None
            if not isinstance(parts, list) or len(parts) != len(self.senders[receiver]):
                raise ValueError
            return [one.encode() for one in parts]
        except (ValueError, KeyError, AttributeError, RecursionError):
            raise self._error(f"agent {receiver} relayed no list of its neighbours' keys") from None

    def _seed(self, receiver: int, other: int, keys: Mapping[int, str]) -> bytes:
        """The secret that this agent and another share for a receiver and all who send to it."""
        members = self.senders[receiver]
        pair = [(agent, keys[agent]) for agent in sorted((self.agent, other))]
        session = (self.session.training, self.session.epoch)
        try:
            return self._pair.secret(keys[other], _PURPOSE, *session, receiver, members, pair)
        except DistributedError:
            raise self._error(f"the key of agent {other} is not a usable X25519 key") from None

    def _error(self, reason: str) -> DistributedError:
        return DistributedError(
            f"agent {self.agent} cannot agree on the keys of masks: {reason}. Nothing was sent"
        )


class PairKeys:
    """The keys that an agent shares for each receiver with each other agent that sends to it.

    Every exchange has keys of its own, which are erased once they were taken: what is stolen later
    opens no mask that was used before. number: the next exchange.
    """

    def __init__(self, agent: int, seeds: Mapping[tuple[int, int], bytes], number: int = 1) -> None:
        self.agent, self.number = agent, number
        self._ratchets = {pair: Ratchet(number, key=seed) for pair, seed in seeds.items()}

    def __repr__(self) -> str:
        return f"PairKeys(agent={self.agent}, number={self.number})"

    def take(self, number: int) -> dict[tuple[int, int], bytes]:
        """The keys of an exchange, by receiver and other agent, once: they are erased here."""
        if number < self.number:
            raise DistributedError(
                f"agent {self.agent} has made the masks of exchange {number} before and has erased "
                "their keys; masks that are used twice give messages away. Accepted: exchange "
                f"{self.number} and later ones, or the bytes that were sent before"
            )
        taken = {pair: ratchet.key(number) for pair, ratchet in self._ratchets.items()}
        self.number = number + 1
        for ratchet in self._ratchets.values():
            ratchet.erase_before(self.number)
        return taken

    def to_state(self) -> dict[str, Any]:
        """All keys, as JSON, for a file that this agent alone can read."""
        found = {pair: one.from_round(self.number)[1] for pair, one in self._ratchets.items()}
        seeds = [[*pair, key.hex()] for pair, key in found.items()]
        return {"agent": self.agent, "number": self.number, "seeds": seeds}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "PairKeys":
        """Keys as `to_state` gave them."""
        seeds = {(i, other): bytes.fromhex(seed) for i, other, seed in state["seeds"]}
        return cls(int(state["agent"]), seeds, int(state["number"]))


def agree_on_keys(agreement: KeyAgreement, transport: Transport) -> PairKeys:
    """Play an agreement to its end; all agents call it at once."""
    senders, epoch = agreement.senders, agreement.session.epoch
    own = {_FIELD: agreement.announcement.decode()}
    said = transport.gather(own, f"the exchange of mask keys in epoch {epoch}")
    relayed = agreement.relay({j: _content(said.get(j)) for j in senders})
    said = transport.gather({_FIELD: relayed.decode()}, f"the relay of mask keys in epoch {epoch}")
    return agreement.keys({i: _content(said.get(i)) for i in senders})


def _content(document: Mapping[str, Any] | None) -> bytes:
    """What a document of another agent says, empty where it says nothing."""
    content = (document or {}).get(_FIELD)
    return content.encode() if isinstance(content, str) else b""


def require_pairs(agent: int, senders: Senders) -> dict[int, tuple[int, ...]]:
    """Who sends to each neighbour, ascending; refused where an agent would send to one alone."""
    found = {receiver: tuple(sorted(senders[receiver])) for receiver in sorted(senders)}
    for receiver, members in found.items():
        if agent not in members or receiver in members or len(set(members)) < len(members):
            raise DistributedError(
                f"agents {list(members)} send to agent {receiver}; accepted: different agents, "
                f"agent {agent} among them and agent {receiver} not"
            )
        if len(members) < 2:
            raise DistributedError(
                f"agent {agent} would be the only one that sends to agent {receiver}, and a sum of "
                "one message is the message; accepted: two senders (which protects them from that "
                "receiver alone) or more"
            )
    return found
