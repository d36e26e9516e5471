"""Where the agents go on after a stop: all read the same documents and decide alike.

In this order: after the exchange that each agent's journal holds, where every journal is there and
neighbours fit together, so that nobody computes a round again; after the newest checkpoint that all
have, in a new epoch with fresh secrets, and its rounds are charged again; or at the beginning,
where nobody has anything. Whatever else is found is an error at all agents, and nothing is removed.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from sottovoce.distributed.checkpoint import Mark
from sottovoce.errors import DistributedError
from sottovoce.graphs import Graph

Said = Mapping[int, Mapping[str, Any]]
_CURE = (
    "Nothing was removed. Put the missing folders back, or start over at all agents with "
    "resume(..., start_over=True) (sottovoce train --start-over)"
)


class Plan(NamedTuple):
    """How to go on, and in which epoch; `mark` is the checkpoint to load, if one is."""

    how: Literal["start", "journal", "checkpoint"]
    epoch: int
    mark: Mark = Mark(0, 0)


def decide(said: Said, graph: Graph, agent: int, epoch: int | None = None) -> Plan:
    """What all agents do, from what each found in its folder.

    Where `said` is of neighbours alone, agents go on from journals or begin: the newest checkpoint
    that all agents have is not known to any of them.

    said: by agent, `marks` (checkpoints that it can load), `files` (how many it has of rounds after
    the start), `fault` (why they do not fit), `journal` (its position or None), `keeps` (whether it
    is to keep a journal), `epoch` (the newest that it knows) and `start_over`; `under_way` where it
    is in the midst of its rounds. agent: this one. epoch: the one to begin; the next unless given.
    """
    asked = [agent for agent, one in said.items() if one["start_over"]]
    for other, one in said.items():
        _require_readable(other, one)
    fixed = epoch is not None
    if epoch is None:
        epoch = 1 + max(one["epoch"] for one in said.values())
    if asked and len(asked) < len(said):
        others = [agent for agent in said if agent not in asked]
        raise DistributedError(
            f"agents {_named(asked)} asked to start over and {_named(others)} did not; ask at all "
            "or at none. Nothing was removed"
        )
    if asked:
        return Plan("start", epoch)
    _require_faultless(said)
    _require_newest(said, agent)
    said = _with_beginners(said, agent)
    # Where some agents are in the middle of their rounds, only the own links are known well.
    links = [link for link in graph.links if len(said) == graph.agents or agent in link]
    if _journals_fit(said, links):
        return Plan("journal", said[agent]["journal"]["epoch"])
    if under_way := [agent for agent, one in said.items() if one.get("under_way")]:
        raise DistributedError(
            f"agents {_named(under_way)} are in the midst of their rounds, and the journal of "
            f"agent {agent} is missing or does not fit theirs. {_CURE}"
        )
    ran = [agent for agent, one in said.items() if one["journal"] and one["journal"]["number"]]
    if not ran and not any(one["files"] for one in said.values()):
        common = set.intersection(*_marks(said).values())
        return Plan("checkpoint", epoch, max(common)) if common else Plan("start", epoch)
    mark = _newest_common(said)
    if ran and not mark.round:
        lost = [agent for agent in said if agent not in ran]
        raise DistributedError(
            f"the journals of agents {_named(lost) or _named(ran)} are missing or do not fit, and "
            f"there is no checkpoint to go back to. {_CURE}"
        )
    if fixed or len(said) < graph.agents:
        # One of them may say so to see a second message from one state.
        raise DistributedError(
            "agents of different organisations do not go back to a checkpoint: they go on from "
            f"journals, and those of agents {_named(sorted(said))} do not all fit. {_CURE}"
        )
    return Plan("checkpoint", epoch, mark)


def _require_readable(agent: int, said: Mapping[str, Any]) -> None:
    """Raise unless a document says all that is asked, in the types that are expected."""
    try:
        position, awaited = said["journal"], said.get("awaited")
        numbers = [said["files"], said["epoch"], *(n for mark in said["marks"] for n in mark)]
        words = [said["keeps"], said["start_over"], *([position["finished"]] if position else ())]
        if position:
            numbers += [position[one] for one in ("number", "round", "training", "epoch")]
            numbers += position["kept"]
        if awaited is not None:
            number, segment = awaited
            numbers += [number, segment]
        good = all(type(one) is int for one in numbers) and all(type(one) is bool for one in words)
        if not (good and isinstance(said["fault"], str) and isinstance(said["offer"], dict)):
            raise ValueError
        [Mark(*mark) for mark in said["marks"]]
    except (KeyError, TypeError, ValueError):
        raise DistributedError(
            f"what agent {agent} says of its folder cannot be read; nothing was removed"
        ) from None


def _require_newest(said: Said, agent: int) -> None:
    """Raise where a neighbour already has bytes that this agent's journal does not know of."""
    own = said[agent]["journal"]
    for other, one in said.items():
        awaited = one.get("awaited")
        if own and awaited and tuple(awaited) > (own["number"] + 1, 0):
            raise DistributedError(
                f"the folder of agent {agent} is an older copy: its journal ends with exchange "
                f"{own['number']}, and agent {other} has bytes of exchange {own['number'] + 1} "
                "from it. Another message from the same state would give the step away, so "
                "nothing is sent. Put the newest folder back, or be dropped and join again"
            )


def _with_beginners(said: Said, agent: int) -> Said:
    """Where this agent stands at the beginning of an epoch, so do those whose journal is to come.

    They agreed on the epoch with it, and sent nothing since.
    """
    own = said[agent]["journal"]
    if not own or own["number"]:
        return said
    return {
        other: {**one, "journal": own} if one.get("under_way") and not one["journal"] else one
        for other, one in said.items()
    }


def _require_faultless(said: Said) -> None:
    for agent, one in said.items():
        if one["fault"]:
            raise DistributedError(f"agent {agent} cannot resume: {one['fault']}")
        if one["journal"] and not one["keeps"]:
            raise DistributedError(
                f"the folder of agent {agent} holds a journal; go on with resume(..., "
                "journal=True) (sottovoce train --journal), or start over. Nothing was removed"
            )


def lacking(said: Said, agent: int, neighbours: Iterable[int]) -> tuple[list[int], list[int]]:
    """Which neighbours lack the exchange in this agent's journal, and which the one before it, too.

    A neighbour that is one exchange ahead had everything of this one.
    """
    own = said[agent]["journal"]["number"]
    found = {j: said[j]["journal"] for j in neighbours}
    this = [j for j, one in found.items() if one["number"] <= own]
    before = [j for j, one in found.items() if one["number"] < own and not one["finished"]]
    return this, before


def _journals_fit(said: Said, links: Iterable[tuple[int, int]]) -> bool:
    """Whether every agent has a journal of one execution, and finds its messages at the others."""
    journals = {agent: one["journal"] for agent, one in said.items()}
    if not all(journals.values()):
        return False
    if len({(one["training"], one["epoch"]) for one in journals.values()}) > 1:
        return False
    for i, j in links:
        if i in journals and j in journals:
            low, high = sorted((journals[i], journals[j]), key=lambda one: int(one["number"]))
            lacks = not low["finished"] and low["number"] not in high["kept"]
            if high["number"] - low["number"] > 1 or (low["number"] < high["number"] and lacks):
                return False
    return True


def _newest_common(said: Said) -> Mark:
    marks = _marks(said)
    none = [agent for agent, found in marks.items() if not found]
    some = [agent for agent, found in marks.items() if found]
    if none:
        torn = [agent for agent in none if said[agent]["files"]]
        detail = f" (those of agents {_named(torn)} cannot be read)" if torn else ""
        has = f"agents {_named(some)} have checkpoints" if some else "journals say that rounds ran"
        raise DistributedError(
            f"agents {_named(none)} have no checkpoint to resume from{detail}, but {has}. {_CURE}"
        )
    common = set.intersection(*marks.values())
    if not common:
        found = "; ".join(
            f"agent {agent} has rounds {', '.join(str(mark.round) for mark in sorted(some))}"
            for agent, some in marks.items()
        )
        raise DistributedError(f"no round has a checkpoint at all agents: {found}. {_CURE}")
    return max(common)


def _marks(said: Said) -> dict[int, set[Mark]]:
    return {agent: {Mark(*mark) for mark in one["marks"]} for agent, one in said.items()}


def _named(agents: list[int]) -> str:
    return ", ".join(map(str, agents))
