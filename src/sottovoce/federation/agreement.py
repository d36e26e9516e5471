"""The agreement of a federation: who takes part, on which graph, and everything that all share.

`federation.toml` holds it as text. What members sign is a digest of its content, so that comments
and spaces do not matter and every value does. A later *edition* of an agreement changes the members
of a training that is under way (`changes`); it names the digest of the edition before it.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce.errors import FederationError, GraphError, SottovoceError
from sottovoce.federation.identity import AGREEMENT_DIGITS, Card, card_of, grouped
from sottovoce.federation.toml import read_toml, to_toml
from sottovoce.graphs import Graph, agents_of, parse_graph
from sottovoce.graphs.mixing import WEIGHT_RULES
from sottovoce.storage.files import write_atomic

if TYPE_CHECKING:
    from sottovoce.simulation.options import Links

_FORMAT = 1
_FACT = re.compile(r"[a-z][a-z0-9_-]{0,30}")
_GRAPH = re.compile(r"links:[0-9,-]{3,100000}|[a-z-]{2,30}(:[0-9x.]{1,20}){1,3}")
_MOST_EDITIONS = 1 << 32
_MOST_MEMBERS = 32
"""What members pass on to one another holds everybody's signatures, and a document has a limit."""
_LONGEST = 500


@dataclass(frozen=True)
class Member:
    """One organisation of a federation: its card, and the signature by its own key."""

    card: Card
    signature: str

    @property
    def name(self) -> str:
        return self.card.name


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What all members train alike.

    graph: as text, such as ring:3 or links:0-1,1-2. weights: the rule for W. stepsize: the
    algorithm's own where it is empty. links: plain or masked. rounds: how many are trained. batch,
    poisson, private_start, same_start, norm_bound: as for `DecentralizedSGD`; 0 where there is
    none. meet_every: after how many rounds agents tell each other who wants to leave or join.
    delta: the δ of the accountant. facts: words that a script reads, such as the data set.
    """

    graph: str
    rounds: int
    weights: str = "metropolis"
    algorithm: str = "pdsgd"
    stepsize: str = ""
    links: "Links" = "plain"
    batch: int = 0
    poisson: bool = False
    private_start: float = 0.0
    same_start: bool = False
    norm_bound: float = 0.0
    meet_every: int = 20
    delta: float = 1e-5
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Members, terms, and the number of the training.

    training: 16 hexadecimal digits. members: agent 0, agent 1, ... edition, previous, change:
    which edition this is, the digest of the one before it and what became different.
    """

    training: str
    members: tuple[Member, ...]
    terms: Terms
    edition: int = 0
    previous: str = ""
    change: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{16}", self.training):
            raise FederationError("the number of the training is not 16 hexadecimal digits")
        if len(self.members) > _MOST_MEMBERS:
            raise FederationError(
                f"there are {len(self.members)} members; accepted: up to {_MOST_MEMBERS}, because "
                "members pass everybody's signatures on to one another"
            )
        for what in ("name", "public_key", "listen"):
            found = [getattr(one.card, what) for one in self.members]
            twice = sorted({one for one in found if one is not None and found.count(one) > 1})
            if twice:
                raise FederationError(f"two members have the {what.replace('_', ' ')} {twice[0]}")
        _require_edition(self)
        _require_terms(self.terms)
        _require_graph(self)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that is agreed, 64 hexadecimal digits."""
        text = json.dumps(self.content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def fingerprint(self) -> str:
        """60 digits: members that compare them agree on every key and every term."""
        return grouped(bytes.fromhex(self.digest), AGREEMENT_DIGITS)

    @cached_property
    def graph(self) -> Graph:
        """Who talks to whom, with W by the rule of the terms."""
        return parse_graph(self.terms.graph, self.terms.weights)

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.members]

    def agent(self, name: str) -> int:
        """The number of a member."""
        if name not in self.names:
            raise FederationError(f"{name} is not a member; members: {', '.join(self.names)}")
        return self.names.index(name)

    def agent_of_key(self, public_key: str) -> int:
        """The number of the member that has a key."""
        for agent, member in enumerate(self.members):
            if member.card.public_key == public_key:
                return agent
        raise FederationError(
            "the key belongs to none of the members "
            + ", ".join(f"{one.name} ({one.card.fingerprint})" for one in self.members)
        )

    @property
    def content(self) -> dict[str, Any]:
        """Everything that is agreed, as TOML and JSON hold it."""
        terms = {**asdict(self.terms), "facts": dict(self.terms.facts)}
        facts = terms.pop("facts")
        about = {"format": _FORMAT, "training": self.training, "edition": self.edition}
        about |= {"previous": self.previous, "change": self.change, **terms}
        about |= {"facts": facts}
        members = [
            {**member.card.content, "agent": agent, "signature": member.signature}
            for agent, member in enumerate(self.members)
        ]
        return {**about, "member": members}

    def write(self, path: str | Path) -> None:
        """Write the agreement as TOML."""
        comments = [
            "The agreement of a sottovoce federation. Every member signs it: `sottovoce join`.",
            f"Fingerprint: {self.fingerprint}",
        ]
        write_atomic(path, to_toml(self.content, comments).encode())


def read_agreement(path: str | Path) -> Agreement:
    """The agreement in a file, with every card's signature and the graph checked."""
    return agreement_of(read_toml(path, "an agreement"), str(path))


def agreement_of(content: Mapping[str, Any], source: str) -> Agreement:
    """The agreement that a document is; source: what an error names."""
    try:
        said = dict(content)
        if said.pop("format") != _FORMAT:
            raise FederationError(f"its format is not {_FORMAT}")
        found = []
        for number, one in enumerate(said.pop("member")):
            if one.get("agent") != number:
                raise FederationError(f"member {number} is not agent {number}")
            signed = {key: value for key, value in one.items() if key != "agent"}
            found.append(Member(card_of(signed, f"the card of agent {number}"), one["signature"]))
        names = [one.name for one in fields(Terms)]
        terms = Terms(**{name: said.pop(name) for name in names if name in said})
        agreement = Agreement(members=tuple(found), terms=terms, **said)
    except SottovoceError as error:
        raise FederationError(f"{source} cannot be used: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FederationError(f"{source} is not an agreement: {error}") from None
    if agreement.content != {"facts": {}, **content}:
        raise FederationError(f"{source} is not written as `sottovoce invite` writes agreements")
    return agreement


def facts_of(texts: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE, for the facts of an agreement."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise FederationError(f"{text!r} is not a fact; accepted: KEY=VALUE")
        found[key] = value
    return found


def _is_plain(text: object) -> bool:
    """Whether a text shows as it is: nothing that moves a cursor or turns the order of letters."""
    return isinstance(text, str) and len(text) <= _LONGEST and text.isprintable()


def _require_edition(agreement: Agreement) -> None:
    """Raise unless an edition says which one it is, what it follows, and what is different."""
    edition = agreement.edition
    if type(edition) is not int or not 0 <= edition < _MOST_EDITIONS:
        raise FederationError(f"edition is {edition!r}; accepted: a number from 0 on")
    follows = isinstance(agreement.previous, str) and re.fullmatch(
        "[0-9a-f]{64}" if edition else "", agreement.previous
    )
    if not follows or not _is_plain(agreement.change) or bool(agreement.change) != bool(edition):
        raise FederationError(
            "what the agreement follows, and what is different, cannot be read; a first edition "
            "follows none, and a later one names the digest of the one before and its change"
        )


def _require_terms(terms: Terms) -> None:
    """Raise unless every term has its type and can be trained with."""
    for one in fields(Terms):
        value, kind = getattr(terms, one.name), type(one.default)
        whole = one.name in ("rounds", "batch", "meet_every")
        kind = int if whole else str if one.name in ("graph", "links") else kind
        if one.name != "facts" and type(value) is not kind:
            raise FederationError(f"{one.name} is {value!r}; accepted: {kind.__name__}")
        if isinstance(value, str) and one.name != "graph" and not _is_plain(value):
            raise FederationError(f"{one.name} holds control characters or is too long")
    for key, value in terms.facts.items():
        if not _FACT.fullmatch(key) or not _is_plain(value):
            raise FederationError(
                f"the fact {key}={value!r} is not a short name and a line of text"
            )
    if terms.rounds < 1 or terms.meet_every < 1 or terms.batch < 0:
        raise FederationError(
            f"rounds is {terms.rounds}, meet_every {terms.meet_every}, batch {terms.batch}; "
            "accepted: at least 1, batch at least 0"
        )
    finite = isfinite(terms.private_start) and isfinite(terms.norm_bound)
    if not (0 < terms.delta < 1 and terms.private_start >= 0 and terms.norm_bound >= 0 and finite):
        raise FederationError(
            f"delta is {terms.delta}, private_start {terms.private_start}, norm_bound "
            f"{terms.norm_bound}; accepted: delta between 0 and 1, others finite and at least 0"
        )
    if terms.weights not in WEIGHT_RULES:
        raise FederationError(
            f"weights is {terms.weights!r}; accepted: {', '.join(WEIGHT_RULES)}, because every "
            "member derives W itself"
        )
    if terms.links not in ("plain", "masked"):
        raise FederationError(f"links is {terms.links!r}; accepted: plain, masked")
    if ".py" in terms.algorithm or "/" in terms.algorithm or "\\" in terms.algorithm:
        raise FederationError(
            f"algorithm is {terms.algorithm!r}, which names a program in a file; an agreement that "
            "others wrote runs none. Accepted: the algorithms of this library"
        )


def _require_graph(agreement: Agreement) -> None:
    """Raise unless the graph fits the members, and every link has an end that can be dialled."""
    if not _GRAPH.fullmatch(agreement.terms.graph):
        raise FederationError(
            f"graph is {agreement.terms.graph!r}; accepted: a form such as ring:3, or "
            "links:0-1,1-2,2-0"
        )
    members = agreement.members
    try:
        # Nothing is built to find out how many agents it has: a stranger may have written it.
        asked = agents_of(agreement.terms.graph)
    except GraphError as error:
        raise FederationError(f"graph: {str(error)[:_LONGEST]}") from error
    if asked != len(members):
        raise FederationError(
            f"the graph {agreement.terms.graph[:80]} has {asked} agents and does not have "
            f"{len(members)} members"
        )
    graph = agreement.graph
    for i, j in graph.links:
        if members[i].card.listen is None and members[j].card.listen is None:
            raise FederationError(
                f"{members[i].name} and {members[j].name} are linked and neither of them can be "
                "dialled; at every link one end must listen. Choose another graph or order of cards"
            )
    if agreement.terms.links == "masked":
        refuse_single_senders(agreement)


def refuse_single_senders(agreement: Agreement) -> None:
    """Raise where masks would hide nothing: an agent that hears one neighbour alone."""
    for agent, degree in enumerate(agreement.graph.degrees):
        if degree < 2:
            raise FederationError(
                f"links are masked and {agreement.names[agent]} has one neighbour: a sum of one "
                "message is the message. Accepted: at least two neighbours each (which protects "
                "them from that receiver alone), better three"
            )
