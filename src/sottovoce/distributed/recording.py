"""What one agent sent, received and computed, kept for an auditor; and all agents' put together."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from scipy import sparse
from torch import Tensor

from sottovoce.errors import DistributedError, ResultError
from sottovoce.graphs import Graph
from sottovoce.simulation.transcript import Transcript, Truth
from sottovoce.storage.tensors import load_pair, save_pair

_KIND = "agent-recording"
_SERIES = ("states", "gradients", "steps", "sent", "received")


class AgentRecorder:
    """Keeps on the CPU what happens at one agent; grows by (3 + 2 x neighbours) x d a round."""

    def __init__(self, agent: int, graph: Graph, algorithm: str, stepsize: str) -> None:
        self.agent, self.graph = agent, graph
        self.algorithm, self.stepsize = algorithm, stepsize
        self.rounds: list[int] = []
        self._kept: dict[str, list[Tensor]] = {name: [] for name in _SERIES}
        self._current: dict[str, Tensor] = {}

    def keep(self, name: str, tensor: Tensor | list[Tensor]) -> None:
        """Note a part of the round under way; it counts once the round is `finished`."""
        if isinstance(tensor, list):
            self._current[name] = torch.stack([one.cpu() for one in tensor])
        else:
            self._current[name] = tensor.detach().cpu().clone()

    def finished(self, round: int) -> None:
        """The round was applied."""
        self.rounds.append(round)
        for name in _SERIES:
            self._kept[name].append(self._current[name])

    def save(self, stem: str | Path) -> None:
        """Write `stem.json` and `stem.safetensors`; they hold this agent's secrets."""
        if not self.rounds:
            raise DistributedError("there is no recorded round to save")
        coo = self.graph.mixing.tocoo()
        tensors = {name: torch.stack(kept) for name, kept in self._kept.items()}
        tensors["mixing.row"] = torch.from_numpy(coo.coords[0]).long()
        tensors["mixing.column"] = torch.from_numpy(coo.coords[1]).long()
        tensors["mixing.weight"] = torch.from_numpy(coo.data)
        facts: dict[str, Any] = {
            "kind": _KIND,
            "agent": self.agent,
            "neighbours": self.graph.neighbours(self.agent),
            "rounds": self.rounds,
            "graph": self.graph.name,
            "weights": self.graph.weights,
            "agents": self.graph.agents,
            "algorithm": self.algorithm,
            "stepsize": self.stepsize,
        }
        save_pair(stem, tensors, facts)


def join_recordings(stems: Sequence[str | Path]) -> Transcript:
    """Put the recordings of all agents together as one transcript for the auditor.

    Refused where a message was not received as it was sent.
    """
    loaded = sorted((load_pair(stem, _KIND) for stem in stems), key=lambda one: one[1]["agent"])
    if not loaded:
        raise ResultError("no recordings were given; accepted: one of every agent")
    facts = loaded[0][1]
    agents, rounds = facts["agents"], facts["rounds"]
    found = [other["agent"] for _, other in loaded]
    if found != list(range(agents)) or any(other["rounds"] != rounds for _, other in loaded):
        raise ResultError(
            f"the recordings are of agents {found} of {agents}; accepted: one of every agent, all "
            "of the same rounds"
        )
    links, messages = [], []
    for tensors, own in loaded:
        for place, sender in enumerate(own["neighbours"]):
            links.append((sender, own["agent"]))
            there, theirs = loaded[sender]
            sent = there["sent"][:, theirs["neighbours"].index(own["agent"])]
            if not torch.equal(sent, tensors["received"][:, place]):
                raise ResultError(
                    f"what agent {own['agent']} received is not what agent {sender} sent"
                )
            messages.append(sent)
    first = loaded[0][0]
    entries = (first["mixing.row"].numpy(), first["mixing.column"].numpy())
    mixing = sparse.coo_array((first["mixing.weight"].numpy(), entries), (agents, agents)).tocsr()
    truth = {
        name: torch.stack([tensors[name] for tensors, _ in loaded], 1).unsqueeze(1)
        for name in ("states", "gradients", "steps")
    }
    starts = truth["states"][0, 0]
    common = starts[0].clone() if rounds[0] == 1 and bool((starts == starts[0]).all()) else None
    return Transcript(
        Graph(facts["graph"], mixing, facts["weights"]),
        rounds,
        [0],
        torch.tensor([sender for sender, _ in links]),
        torch.tensor([receiver for _, receiver in links]),
        torch.stack(messages, 1).unsqueeze(1),
        Truth(**truth),
        facts["algorithm"],
        facts["stepsize"],
        common,
    )
