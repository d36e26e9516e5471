"""What one agent sent, received and computed, kept for an auditor; and all agents' put together."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from sottovoce.errors import DistributedError, ResultError
from sottovoce.mechanisms import Mechanism
from sottovoce.simulation.options import Links
from sottovoce.simulation.transcript import Setting, Transcript, Truth
from sottovoce.stepsizes import Stepsize
from sottovoce.storage.tensors import load_pair, save_pair

_KIND = "agent-recording"
_SERIES = ("states", "gradients", "steps", "sent", "received")


class AgentRecorder:
    """Keeps on the CPU what happens at one agent; grows by (3 + 2 x neighbours) x d a round."""

    def __init__(self, agent: int, setting: Setting, start: Tensor, links: Links = "plain") -> None:
        """start: the public point from which the agents began, before any private number.

        links: where masked, an agent keeps the rounded messages that it sent and the sum of those
        that it received: it knows no more.
        """
        self.agent, self.setting, self._links = agent, setting, links
        self._start = start.detach().cpu().clone()
        self.rounds: list[int] = []
        self._kept: dict[str, list[Tensor]] = {name: [] for name in _SERIES}
        self._current: dict[str, list[Tensor]] = {name: [] for name in _SERIES}

    def keep(self, name: str, tensor: Tensor | list[Tensor]) -> None:
        """Note a part of the round under way; it counts once the round is `finished`."""
        kept = torch.stack(tensor) if isinstance(tensor, list) else tensor.detach()
        self._current[name].append(kept.to("cpu", copy=True))

    def finished(self, round: int) -> None:
        """The round was applied."""
        self.rounds.append(round)
        for name in _SERIES:
            self._kept[name] += self._current[name]
            self._current[name] = []

    def save(self, stem: str | Path) -> None:
        """Write `stem.json` and `stem.safetensors`; they hold this agent's secrets."""
        if not self.rounds:
            raise DistributedError("there is no recorded round to save")
        tensors, facts = self.setting.to_file()
        tensors |= {name: torch.stack(kept) for name, kept in self._kept.items()}
        tensors["start"] = self._start
        neighbours = self.setting.graph.neighbours(self.agent)
        facts |= {"kind": _KIND, "agent": self.agent, "neighbours": neighbours}
        facts |= {"links": self._links} if self._links != "plain" else {}
        save_pair(stem, tensors, {**facts, "rounds": self.rounds}, private=True)


def join_recordings(
    stems: Sequence[str | Path],
    algorithm: Mechanism | None = None,
    stepsize: Stepsize | None = None,
) -> Transcript:
    """Put the recordings of all agents together as one transcript for the auditor.

    Refused where a message was not received as it was sent. algorithm, stepsize: needed where a
    user's own were recorded and cannot be found again.
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
    masked = facts.get("links") == "masked"
    links, messages = [], []
    for tensors, own in loaded:
        arrived = []
        for sender in own["neighbours"]:
            links.append((sender, own["agent"]))
            there, theirs = loaded[sender]
            arrived.append(there["sent"][:, theirs["neighbours"].index(own["agent"])])
        sent = torch.stack(arrived, 1)
        # Sums in fixed point are exact in float64, as long as they are in range.
        known = sent.double().sum(1, keepdim=True).to(sent.dtype) if masked else sent
        if not torch.equal(known, tensors["received"]):
            raise ResultError(
                f"what agent {own['agent']} received is not what its neighbours sent it"
            )
        messages += arrived
    truth = {
        name: torch.stack([tensors[name] for tensors, _ in loaded], 1).unsqueeze(1)
        for name in ("states", "gradients", "steps")
    }
    starts = [tensors["start"] for tensors, _ in loaded]
    common = all(torch.equal(start, starts[0]) for start in starts)
    exchanges = len(messages[0]) // len(rounds)
    ends = torch.tensor(links).repeat(exchanges, 1)
    carried = torch.stack(messages, 1).unflatten(0, (len(rounds), exchanges)).flatten(1, 2)
    return Transcript(
        Setting.from_file(loaded[0][0], facts, algorithm, stepsize),
        rounds,
        [0],
        ends[:, 0],
        ends[:, 1],
        carried.unsqueeze(1),
        Truth(**truth),
        starts[0][None] if common else None,
    )
