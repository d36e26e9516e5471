"""The ledger of a data set: every training on it, tuning included, and what they cost together.

One JSON file for each data set. Trainings compose as their releases do (`composition`): the total
is the ε of all of them at once, which is less than the sum. A training without a guarantee makes
the total unbounded; it stays in the ledger all the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sottovoce.errors import PrivacyError, ResultError
from sottovoce.privacy.adversaries import parse_adversary
from sottovoce.privacy.composition import Release, epsilon_of, require_delta
from sottovoce.privacy.promise import Guarantee, against, named, whose, without_links
from sottovoce.storage.files import write_json
from sottovoce.storage.store import lock

_FORMAT = 1
_TRIES, _WAIT = 100, 0.1


@dataclass(frozen=True)
class Entry:
    """One training on the data.

    name: what identifies it; an entry of the same name is replaced, so that a training that goes on
    is counted once. purpose: `training` or `tuning`. when: the date in UTC. rounds: those charged,
    restarts included. releases: what was composed, None where nothing is proved. aside: the part of
    δ that they leave for what they do not cover. poisson: whether batches were Poisson samples.
    """

    name: str
    purpose: str
    when: str
    algorithm: str
    graph: str
    adversary: str
    rounds: int
    epsilon: float | None
    delta: float
    releases: tuple[Release, ...] | None
    aside: float = 0.0
    poisson: bool = True

    @classmethod
    def of(
        cls, name: str, guarantee: Guarantee, purpose: str = "training", times: int = 1
    ) -> Entry:
        """The entry of a training with this guarantee, or of as many as `times` says."""
        each = guarantee.releases if guarantee.proved else None
        releases = each and tuple(replace(one, count=times * one.count) for one in each)
        return cls(
            name,
            purpose,
            _now(),
            guarantee.algorithm,
            guarantee.graph,
            without_links(guarantee.adversary),
            times * guarantee.executed,
            guarantee.epsilon,
            guarantee.delta,
            releases,
            times * guarantee.aside,
            guarantee.poisson,
        )

    @classmethod
    def unproved(
        cls,
        name: str,
        algorithm: str,
        graph: str,
        adversary: str,
        rounds: int,
        purpose: str = "training",
    ) -> Entry:
        """The entry of a training of which nothing is proved, or nothing is known yet."""
        public = (algorithm, graph, adversary, rounds)
        return cls(name, purpose, _now(), *public, None, 0.0, None)


class Ledger:
    """The trainings on one data set, in a file that is replaced whole.

    path: the file; it need not exist yet. data: a name or fingerprint of the data set, which a file
    that exists must have.
    """

    def __init__(self, path: str | Path, data: str | None = None) -> None:
        self.path, self.data = Path(path), data
        self.entries: tuple[Entry, ...] = ()
        if self.path.exists():
            self._read()

    def add(self, entry: Entry, instead_of: str | None = None) -> None:
        """Add a training, or replace the one of the same name, and write the file.

        instead_of: the name of another entry that this one replaces.
        """
        with self._held():
            if self.path.exists():
                self._read()
            old = (entry.name, instead_of)
            others = tuple(one for one in self.entries if one.name not in old)
            self.entries = (*others, entry)
            write_json(self.path, self.to_json())

    def epsilon(self, delta: float = 1e-5, records: int = 1) -> float | None:
        """ε of all trainings together at this δ, None where one of them proved nothing."""
        require_delta(delta)
        left = delta - sum(one.aside for one in self.entries)
        if left <= 0 or any(one.releases is None for one in self.entries):
            return None
        releases = [release for one in self.entries for release in one.releases or ()]
        return epsilon_of(releases, left, records)

    @property
    def adversary(self) -> str:
        """Against whom the total holds: what is proved against agents holds for an eavesdropper."""
        met = {one.adversary for one in self.entries}
        return met.pop() if len(met) == 1 else "eavesdropper"

    @property
    def uncovered(self) -> list[int]:
        """Agents of whose records the total says nothing: some training was judged against them."""
        if self.adversary != "eavesdropper":
            return []
        return sorted(set().union(*(parse_adversary(one.adversary).own for one in self.entries)))

    def findings(self, delta: float = 1e-5, records: int = 1) -> list[str]:
        """The total in sentences."""
        if not self.entries:
            return ["No training is entered."]
        total = self.epsilon(delta, records)
        if total is None:
            bare = ", ".join(one.name for one in self.entries if one.releases is None)
            cause = f"nothing is proved for {bare}" if bare else "fixed batches use up δ"
            return [f"UNBOUNDED: {cause}."]
        count, unit = len(self.entries), whose(records, all(one.poisson for one in self.entries))
        bare = f", not for records of {named(self.uncovered)}" if self.uncovered else ""
        return [
            f"ε = {total:.4g} at δ = {delta:g} for {unit}, over {count} "
            f"training{'s' if count > 1 else ''}, against {against(self.adversary)}{bare}."
        ]

    def to_json(self) -> dict[str, Any]:
        entries = [asdict(one) for one in self.entries]
        return {"kind": "ledger", "format": _FORMAT, "data": self.data, "entries": entries}

    def _read(self) -> None:
        try:
            content = json.loads(self.path.read_text("utf-8"))
            if content["kind"] != "ledger" or content["format"] != _FORMAT:
                raise KeyError("kind")
            entries = tuple(_entry(one) for one in content["entries"])
            data = content["data"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PrivacyError(f"{self.path} is not a ledger that can be read: {error}") from error
        if None not in (data, self.data) and data != self.data:
            raise PrivacyError(
                f"{self.path} is the ledger of {data!r}, and this is {self.data!r}; every data set "
                "has a ledger of its own"
            )
        self.data, self.entries = data or self.data, entries

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Wait for the file: other processes may write to it."""
        folder = self.path.with_name(f".{self.path.name}.lock")
        for tries_left in range(_TRIES, 0, -1):
            held = ExitStack()
            try:
                held.enter_context(lock(folder))
            except ResultError:
                if tries_left == 1:
                    raise
                time.sleep(_WAIT)
                continue
            with held:
                yield
            return


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M")


def _entry(content: dict[str, Any]) -> Entry:
    releases = content["releases"]
    found = None if releases is None else tuple(Release(**one) for one in releases)
    return Entry(**content | {"releases": found})
