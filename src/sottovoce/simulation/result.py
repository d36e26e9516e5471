"""What a simulation found, with its spread over runs."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from scipy.special import stdtrit
from torch import Tensor

from sottovoce.errors import ResultError
from sottovoce.simulation.transcript import Transcript
from sottovoce.storage.tensors import beside, load_pair, save_pair

_FORMAT = 1


@dataclass(frozen=True)
class Band:
    """A mean over runs and the confidence interval around it, at each measured round."""

    mean: Tensor
    low: Tensor
    high: Tensor

    def to_json(self) -> dict[str, list[float]]:
        return {name: values.tolist() for name, values in vars(self).items()}


@dataclass(frozen=True, eq=False)
class Result:
    """Measurements of all runs at chosen rounds.

    rounds: after how many rounds each measurement was taken; metrics: (rounds, runs) or, for what
    each agent has, (rounds, runs, agents); final: the last states, (runs, agents, d); facts: what
    was simulated, as JSON.
    """

    rounds: list[int]
    metrics: dict[str, Tensor]
    final: Tensor
    facts: dict[str, Any]
    transcript: Transcript | None = field(default=None, repr=False)

    def metric(self, name: str) -> Tensor:
        """One metric over rounds and runs, agents averaged: (rounds, runs)."""
        if name not in self.metrics:
            raise ResultError(f"no metric {name!r}; measured: {', '.join(self.metrics)}")
        values = self.metrics[name].double()
        return values.mean(-1) if values.ndim == 3 else values

    def band(self, name: str, confidence: float = 0.95) -> Band:
        """Mean over runs with Student's confidence interval, a point where there is one run."""
        values = self.metric(name)
        mean, runs = values.mean(1), values.shape[1]
        if runs == 1:
            return Band(mean, mean, mean)
        quantile = float(stdtrit(runs - 1, 0.5 + confidence / 2))
        half = values.std(1) * (quantile / math.sqrt(runs))
        return Band(mean, mean - half, mean + half)

    def save(self, stem: str | Path) -> None:
        """Write `stem.json` (facts, rounds, means) and `stem.safetensors` (every run)."""
        facts = {
            "kind": "result",
            "format": _FORMAT,
            "facts": self.facts,
            "rounds": self.rounds,
            "recorded": self.transcript is not None,
            "means": {name: self.metric(name).mean(1).tolist() for name in self.metrics},
        }
        tensors = {f"metric.{name}": values for name, values in self.metrics.items()}
        save_pair(stem, {"final": self.final, **tensors}, facts)
        if self.transcript is not None:
            self.transcript.save(beside(stem, ".transcript"))

    @classmethod
    def load(cls, stem: str | Path) -> "Result":
        """Read what `save` wrote."""
        tensors, facts = load_pair(stem, "result")
        if facts.get("format") != _FORMAT:
            raise ResultError(
                f"{stem} has format {facts.get('format')}; this version reads {_FORMAT}"
            )
        missing = {"rounds", "facts", "recorded"} - set(facts) | {"final"} - set(tensors)
        if missing:
            raise ResultError(f"{stem} is not a whole result: {', '.join(missing)} is missing")
        metrics = {
            name.removeprefix("metric."): values
            for name, values in tensors.items()
            if name.startswith("metric.")
        }
        wrong = [name for name, values in metrics.items() if len(values) != len(facts["rounds"])]
        if wrong:
            raise ResultError(f"{stem}: {wrong} do not have one row for each measured round")
        transcript = Transcript.load(beside(stem, ".transcript")) if facts["recorded"] else None
        return cls(facts["rounds"], metrics, tensors["final"], facts["facts"], transcript)


def join(results: list[Result]) -> Result:
    """Put the runs of several results of the same simulation side by side."""
    first = results[0]
    if len(results) == 1:
        return first
    metrics = {
        name: torch.cat([result.metrics[name] for result in results], dim=1)
        for name in first.metrics
    }
    transcripts = [result.transcript for result in results if result.transcript]
    return replace(
        first,
        metrics=metrics,
        final=torch.cat([result.final for result in results]),
        transcript=Transcript.join(transcripts) if transcripts else None,
    )
