"""Who leaves, joins or is dropped: the next edition of an agreement, derived alike by everybody.

- A *leave* is a notice that the leaving member signs.
- A *late join* and a *drop* are editions that all their members sign: for a drop those are all who
  remain, for a join the one who comes as well.

The links of those who stay remain, W follows by the rule of the terms, and a change after which the
graph is not connected is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sottovoce.errors import FederationError, GraphError
from sottovoce.federation.agreement import Agreement, Member
from sottovoce.federation.identity import Identity, is_signed

_LEAVE = "leave"


@dataclass(frozen=True)
class Leave:
    """The signed wish of a member to leave the edition with this digest."""

    agreement: str
    name: str
    signature: str

    @classmethod
    def of(cls, agreement: Agreement, identity: Identity) -> "Leave":
        """Sign that this member leaves."""
        agreement.agent_of_key(identity.card.public_key)
        content = _leaving(agreement.digest, identity.name)
        return cls(agreement.digest, identity.name, identity.sign(_LEAVE, content).hex())

    @classmethod
    def from_json(cls, said: object, agreement: Agreement) -> "Leave":
        """The notice in a document; refused unless the member signed it for this edition."""
        try:
            if not isinstance(said, Mapping):
                raise ValueError
            found = cls(str(said["agreement"]), str(said["name"]), str(said["signature"]))
            key = agreement.members[agreement.agent(found.name)].card.public_key
            content = _leaving(agreement.digest, found.name)
            signature = bytes.fromhex(found.signature)
        except (KeyError, ValueError):
            raise FederationError("a notice to leave cannot be read") from None
        if found.agreement != agreement.digest or not is_signed(key, signature, _LEAVE, content):
            raise FederationError(
                f"a notice to leave in the name of {found.name} is not signed by it for edition "
                f"{agreement.edition}"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        return {"agreement": self.agreement, "name": self.name, "signature": self.signature}


def without(agreement: Agreement, names: Sequence[str], how: str) -> Agreement:
    """The next edition, in which these members are missing; how: "leaves" or "is dropped"."""
    gone = {agreement.agent(name) for name in names}
    stay = [agent for agent in range(len(agreement.members)) if agent not in gone]
    if len(stay) < 2:
        raise FederationError(
            f"{' and '.join(names)} cannot go: {len(stay)} member would be left, and a training "
            "among organisations needs two. End the training instead"
        )
    number = {agent: place for place, agent in enumerate(stay)}
    pairs = [(number[i], number[j]) for i, j in agreement.graph.links if not gone & {i, j}]
    members = [agreement.members[agent] for agent in stay]
    return _next(agreement, members, pairs, f"{' and '.join(names)} {how}")


def with_member(agreement: Agreement, member: Member, neighbours: Sequence[str]) -> Agreement:
    """The next edition, in which a member joins and is linked to these."""
    if not neighbours:
        raise FederationError(
            f"{member.name} is linked to nobody; name the members that it talks to"
        )
    new = len(agreement.members)
    linked = sorted({agreement.agent(name) for name in neighbours})
    pairs = [*agreement.graph.links, *((agent, new) for agent in linked)]
    return _next(agreement, [*agreement.members, member], pairs, f"{member.name} joins")


def require_follows(current: Agreement, proposed: Agreement) -> None:
    """Raise unless an edition differs from the one before it in nothing but who takes part.

    Those who stay keep their keys, and what is trained, under which protection, stays as it was.
    """
    kept = [one for one in proposed.members if one.name in current.names]
    came = [one.name for one in proposed.members if one.name not in current.names]
    if (
        (proposed.training, proposed.previous) != (current.training, current.digest)
        or proposed.edition != current.edition + 1
        or replace(proposed.terms, graph=current.terms.graph) != current.terms
        or kept != [one for one in current.members if one in kept]
        or len(came) > 1
    ):
        raise FederationError(
            f"{proposed.change!r} does not follow edition {current.edition}: it is of another "
            "training or edition, or changes terms or keys that were agreed on. Accepted: what "
            "`sottovoce invite --into` and `sottovoce drop` make"
        )


def _next(
    agreement: Agreement,
    members: Sequence[Member],
    pairs: Sequence[tuple[int, int]],
    change: str,
) -> Agreement:
    edition = agreement.edition + 1
    linked = {agent for pair in pairs for agent in pair}
    if alone := [one.name for agent, one in enumerate(members) if agent not in linked]:
        raise FederationError(
            f"refused: {change}, and then {', '.join(alone)} would have no neighbour: the graph "
            "must stay connected"
        )
    try:
        graph = "links:" + ",".join(f"{i}-{j}" for i, j in pairs)
        terms = replace(agreement.terms, graph=graph)
        return Agreement(
            training=agreement.training,
            members=tuple(members),
            terms=terms,
            edition=edition,
            previous=agreement.digest,
            change=change,
        )
    except (GraphError, FederationError) as error:
        raise FederationError(f"refused: {change}, and then {error}") from None


def _leaving(digest: str, name: str) -> dict[str, str]:
    return {"agreement": digest, "name": name}
