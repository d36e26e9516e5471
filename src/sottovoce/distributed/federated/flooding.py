"""Documents of all agents over the links between neighbours alone."""

from collections.abc import Mapping
from typing import Any

from sottovoce.distributed.transport import Transport
from sottovoce.errors import DistributedError
from sottovoce.graphs import Graph
from sottovoce.graphs.mixing import diameter

Documents = dict[int, dict[str, Any]]


def flood(
    transport: Transport, document: Mapping[str, Any], graph: Graph, purpose: str
) -> Documents:
    """The documents of all agents by agent, passed on from neighbour to neighbour.

    All agents call it at once, with documents of their own. As many turns as the graph's diameter
    reach everybody, and an agent that starts again gets the same answers again. Agents pass on what
    others said without a proof: whatever must not be forged is signed.
    """
    known: Documents = {transport.agent: dict(document)}
    turns = max(1, diameter(graph.mixing))
    for turn in range(1, turns + 1):
        said = {"known": {str(agent): one for agent, one in known.items()}}
        heard = transport.gather(said, f"{purpose}, turn {turn} of {turns}")
        for teller, one in sorted(heard.items()):
            for agent, content in _known(one, teller, graph.agents).items():
                known.setdefault(agent, content)
    if missing := sorted(set(range(graph.agents)) - set(known)):
        raise DistributedError(f"{purpose}: nothing was heard of agents {missing}")
    return dict(sorted(known.items()))


def _known(said: Mapping[str, Any], teller: int, agents: int) -> Documents:
    """What a neighbour knows; its own document is the one that it sent itself."""
    found: Documents = {}
    numbers = {str(agent): agent for agent in range(agents)}
    content = said.get("known")
    for name, one in (content if isinstance(content, dict) else {}).items():
        if name not in numbers or not isinstance(one, dict):
            raise DistributedError(f"agent {teller} passed on something that is not a document")
        found[numbers[name]] = one
    return found
