"""Who leaves and who joins after a round: all agents hear the same wishes and decide alike."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sottovoce.errors import FederationError
from sottovoce.federation.agreement import Agreement, agreement_of
from sottovoce.federation.changes import Leave, require_follows, without
from sottovoce.federation.signatures import Signatures
from sottovoce.federation.state import StateFolder

Wishes = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What a meeting decided.

    agreement: the next edition, None where nothing changes. leaves: the notices that it rests on.
    signatures: of all its members, where it rests on those. refusals: why a wish was not granted.
    """

    agreement: Agreement | None = None
    leaves: tuple[Leave, ...] = ()
    signatures: Signatures | None = None
    refusals: tuple[str, ...] = field(default_factory=tuple)


def own_wishes(state: StateFolder, current: Agreement, round: int) -> Wishes:
    """What this member brings to the meeting after `round`: the same after a restart."""
    if (kept := state.wishes(round, current.digest)) is not None:
        return kept
    wishes: Wishes = {}
    if leave := state.leaving(current):
        wishes["leave"] = leave.to_json()
    if (found := state.proposed(current)) and is_join(current, found[0]):
        agreement, signatures = found
        wishes["join"] = {"agreement": agreement.content, "signatures": signatures.by_name}
    state.keep_wishes(round, current.digest, wishes)
    return wishes


def is_join(current: Agreement, proposed: Agreement) -> bool:
    """Whether nobody is missing in an edition; a drop takes effect when agents start."""
    return set(current.names) <= set(proposed.names)


def decide_changes(current: Agreement, said: Mapping[int, Mapping[str, Any]]) -> Outcome:
    """A late join that all have signed, or else everybody's leaves that keep the graph connected.

    said: the wishes of all agents. A wish that cannot be granted is left out, and the reason kept.
    """
    refusals: list[str] = []
    joins: dict[str, Signatures] = {}
    leaves: dict[str, Leave] = {}
    for agent in sorted(said):
        wish = said[agent]
        try:
            if "leave" in wish:
                leave = Leave.from_json(wish["leave"], current)
                leaves[leave.name] = leave
            if "join" in wish:
                _collect(joins, wish["join"], current)
        except FederationError as error:
            refusals.append(f"a wish that {current.names[agent]} brought: {error}")
    for digest in sorted(joins):
        found = joins[digest]
        if not found.missing:
            return Outcome(found.agreement, (), found, tuple(refusals))
        waiting = ", ".join(found.missing)
        refusals.append(f"{found.agreement.change}: the signatures of {waiting} are missing")
    gone: list[str] = []
    agreement = None
    for name in sorted(leaves):
        try:
            agreement = without(current, [*gone, name], "leaves")
            gone.append(name)
        except FederationError as error:
            refusals.append(str(error))
    granted = tuple(leaves[name] for name in gone)
    return Outcome(agreement, granted, None, tuple(refusals))


def _collect(joins: dict[str, Signatures], wish: object, current: Agreement) -> None:
    """Add the signatures of a proposed edition to those that others brought."""
    if not isinstance(wish, Mapping) or not isinstance(wish.get("signatures"), Mapping):
        raise FederationError("it cannot be read")
    agreement = agreement_of(wish.get("agreement", {}), "the proposed edition")
    require_follows(current, agreement)
    if not is_join(current, agreement):
        raise FederationError(f"{agreement.change!r} takes effect when agents start")
    found = joins.setdefault(agreement.digest, Signatures(agreement))
    for name, signature in wish["signatures"].items():
        found.add(name, signature)


def latest_round(said: Mapping[int, Mapping[str, Any]], names: list[str], rounds: int) -> int:
    """The last round that a member finished, from what all say at the beginning of an edition."""
    found = []
    for agent, one in said.items():
        round = one.get("round")
        if round is not None:
            if type(round) is not int or not 0 <= round <= rounds:
                raise FederationError(f"{names[agent]} does not say after which round it stands")
            found.append(round)
    if not found:
        raise FederationError("no member says after which round the edition begins")
    if max(found) - min(found) > len(names):
        # Neighbours are never further apart than one round.
        raise FederationError(
            f"the members stand after rounds {min(found)} to {max(found)}, which cannot be"
        )
    return max(found)
