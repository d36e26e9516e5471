"""How often each round was executed: an accountant charges every execution.

A round that sends other messages than before, because the frames of its first execution were not
kept, is a second look at the same data. An agent notes on disk which rounds it may have sent
messages in, before it sends them: some rounds ahead, so that the disk is not asked in every round.
What a killed agent is charged is therefore never too little, and at most that many rounds too much.
Beside the rounds stands what decides what one of them costs: how many samples it drew from, on
which graph and under which settings.
"""

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sottovoce.distributed.files import saying
from sottovoce.errors import DistributedError, ResultError
from sottovoce.graphs import Graph
from sottovoce.mechanisms import Mechanism
from sottovoce.stepsizes import Stepsize
from sottovoce.storage.files import write_json
from sottovoce.storage.identity import digest

AHEAD = 20
"""Rounds that are noted at a time."""
_BITS = 48
"""Of a graph's fingerprint, as JSON keeps whole numbers everywhere."""


class Span(NamedTuple):
    """Rounds `first` to `last` as one epoch of the training executed them.

    samples: how many its batches were drawn from, 0 where nobody said. graph: the number that
    `number_of` gives the graph that they were played on, 0 where nobody said. settings: the same of
    `number_of_settings`. number: drawn when the epoch began here, so that the same rounds are known
    again wherever they are written.
    """

    epoch: int
    first: int
    last: int
    samples: int = 0
    graph: int = 0
    settings: int = 0
    number: int = 0


@dataclass(frozen=True)
class Executions:
    """The rounds that an agent has executed, epoch by epoch."""

    spans: tuple[Span, ...] = ()

    @property
    def total(self) -> int:
        """How many rounds an accountant charges."""
        return sum(max(0, span.last - span.first + 1) for span in self.spans)

    @property
    def rounds(self) -> int:
        """The last round that was executed, 0 before the first."""
        return max((span.last for span in self.spans if span.last >= span.first), default=0)

    @property
    def redone(self) -> int:
        """How many executions there were beyond one of each round, with fresh numbers."""
        return self.total - self.rounds

    @property
    def known(self) -> bool:
        """Whether all rounds that were executed are here, and not only those that some file had."""
        return all(span.epoch >= 0 for span in self.spans)

    @property
    def samples(self) -> int:
        """The least number of samples that any round drew from, 0 where one is not known."""
        drawn = min((span.samples for span in self.spans if span.last >= span.first), default=0)
        return drawn if self.known else 0

    @property
    def graphs(self) -> set[int]:
        """The numbers of the graphs that rounds were played on, as far as they are known."""
        return {span.graph for span in self.spans if span.graph and span.last >= span.first}

    @property
    def settings(self) -> set[int]:
        """The numbers of the settings that rounds were executed under, 0 where nobody said."""
        return {span.settings for span in self.spans if span.last >= span.first}

    @property
    def otherwise(self) -> bool:
        """Whether rounds were executed under other settings than those of the newest epoch."""
        return bool(self.spans) and bool(self.settings - {self.spans[-1].settings})

    def times(self, round: int) -> int:
        """How often a round was executed."""
        return sum(span.first <= round <= span.last for span in self.spans)

    @property
    def epoch(self) -> int:
        """The newest epoch, -1 where there is none."""
        return max((span.epoch for span in self.spans), default=-1)

    def begun(self, epoch: int, round: int, graph: int = 0, settings: int = 0) -> "Executions":
        """With a new epoch after `round`, on the graph and under the settings of these numbers."""
        number = 1 + secrets.randbits(_BITS)
        return Executions((*self.spans, Span(epoch, round + 1, round, 0, graph, settings, number)))

    def joined(self, other: "Executions") -> "Executions":
        """What either knows: of what both have the longer account counts, and the rest adds up.

        The newest epoch stays the newest.
        """
        found: dict[tuple[int, int, int], Span] = {}
        for span in sorted((*self.spans, *other.spans)):
            known = found.get(_name(span), span)
            drawn = min((n for n in (known.samples, span.samples) if n), default=0)
            longer = max(known, span, key=lambda one: one.last)
            found[_name(span)] = longer._replace(samples=drawn)
        for span in self.spans[-1:]:
            found[_name(span)] = found.pop(_name(span))
        return Executions(tuple(found.values()))

    def covers(self, other: "Executions") -> bool:
        """Whether all that the other knows of is here, up to the same round or a later one."""
        own = {_name(span): span.last for span in self.spans}
        return all(own.get(_name(span), -1) >= span.last for span in other.spans)

    def up_to(self, round: int) -> "Executions":
        """With the newest epoch ending at `round`."""
        *earlier, last = self.spans
        return Executions((*earlier, last._replace(last=round)))

    def drawing_from(self, samples: int) -> "Executions":
        """With the number of samples that the newest epoch draws from, which stays the same."""
        *earlier, last = self.spans
        if last.samples not in (0, samples):
            raise DistributedError(
                f"batches are drawn from {samples} samples, and were drawn from {last.samples} "
                "before; the number is a constant of the training, which decides what a round "
                "costs: keep it, or begin another training"
            )
        return Executions((*earlier, last._replace(samples=samples)))

    def to_json(self) -> list[list[int]]:
        """The spans as lists of numbers."""
        return [list(span) for span in self.spans]

    @classmethod
    def from_json(cls, spans: Iterable[Any]) -> "Executions":
        """What `to_json` gave."""
        return cls(tuple(Span(*map(int, span)) for span in spans))


_NOTHING = Executions()
UNKNOWN = Executions((Span(-1, 1, 0),))
"""That something was executed and nobody knows what: no guarantee can be stated."""


def _name(span: Span) -> tuple[int, int, int]:
    return span.number, span.epoch, span.first


def number_of(graph: Graph) -> int:
    """A number that tells graphs with other links or weights apart; never 0."""
    return _shortened(graph.spec["mixing"])


def number_of_settings(
    algorithm: Mechanism, stepsize: Stepsize, batch: int | None, poisson: bool, seeded: bool
) -> int:
    """A number that tells apart settings under which a round costs more or less; never 0.

    seeded: whether a seed decides the private numbers.
    """
    schedule = {**stepsize.spec, "deviation": None}
    return _shortened(digest([algorithm.spec, schedule, batch, poisson, seeded]))


def _shortened(fingerprint: str) -> int:
    """A number of a fingerprint of 32 hexadecimal digits; never 0."""
    return 1 + (int(fingerprint, 16) >> (4 * 32 - _BITS))


class Record:
    """The executions of one agent in `folder`/executions-<agent>.json.

    beside: what stays noted there beside what is noted, such as rounds of another training.
    """

    def __init__(self, folder: str | Path, agent: int, beside: Executions = _NOTHING) -> None:
        self._path, self._beside = Path(folder) / f"executions-{agent}.json", beside
        self._noted = -1

    def read(self) -> Executions:
        """What was noted; nothing where there is no such file, `ResultError` where it is torn."""
        try:
            return Executions.from_json(json.loads(self._path.read_text("utf-8")))
        except FileNotFoundError:
            return Executions()
        except (OSError, ValueError, TypeError) as error:
            raise ResultError(
                f"{self._path} says which rounds were executed and cannot be read ({error}); what "
                "they cost is not known without it. Put it back, or start over"
            ) from error

    def note(self, executions: Executions, ahead: int = AHEAD) -> None:
        """Write that all these rounds, and `ahead` more, may have been executed."""
        last = executions.spans[-1].last + ahead
        with saying("the number of executed rounds", self._path.parent):
            write_json(self._path, executions.up_to(last).joined(self._beside).to_json())
        self._noted = last

    def cover(self, executions: Executions) -> None:
        """Write only where these rounds are not yet covered by what was written ahead."""
        if executions.spans[-1].last > self._noted:
            self.note(executions)
