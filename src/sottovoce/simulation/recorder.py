"""Keep what crosses the links of chosen rounds, and the truth beside it."""

import torch
from torch import Tensor

from sottovoce.graphs import Routes
from sottovoce.simulation.transcript import Recording, Setting, Transcript, Truth


class Recorder:
    """Messages and truth of the recorded rounds of some runs, on the CPU."""

    def __init__(self, routes: Routes, record: Recording, runs: range) -> None:
        self.rounds = set(record.rounds)
        self.runs = [run for run in sorted(record.runs) if run in runs]
        self._rows = torch.tensor([run - runs.start for run in self.runs], dtype=torch.long)
        self._routes, self._links = routes, (~routes.own).nonzero().flatten()
        self._kept: dict[str, list[Tensor]] = {"states": [], "gradients": [], "steps": []}
        self._messages: list[Tensor] = []

    def keep(self, name: str, tensor: Tensor) -> None:
        """Note a part of the truth."""
        self._kept[name].append(tensor[self._rows.to(tensor.device)].cpu())

    def keep_messages(self, messages: Tensor) -> None:
        """Note the messages of one exchange."""
        rows = self._rows.to(messages.device)
        self._messages.append(messages[rows[:, None], self._links].cpu())

    def transcript(self, setting: Setting, start: Tensor | None) -> Transcript:
        """All that was kept; start: the public starting point of each simulated run, (runs, d)."""
        exchanges = setting.algorithm.exchanges
        messages = torch.stack(self._messages).unflatten(0, (-1, exchanges))
        return Transcript(
            setting,
            sorted(self.rounds),
            self.runs,
            self._routes.sender[self._links].cpu().repeat(exchanges),
            self._routes.receiver[self._links].cpu().repeat(exchanges),
            messages.transpose(1, 2).flatten(2, 3),
            Truth(**{name: torch.stack(kept) for name, kept in self._kept.items()}),
            None if start is None else start[self._rows],
        )
