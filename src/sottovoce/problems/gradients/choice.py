"""Which way to the same gradients is the fastest here: measured once, and kept.

What is kept decides how results are rounded, so that a training that is resumed, or started again
in another process, must meet the same choice: it lies in the user's cache folder.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sottovoce.errors import ResultError
from sottovoce.problems.gradients.compilation import cause
from sottovoce.storage.store import Store, lock

_REPETITIONS = 5
_WORTH = 1.05
"""How many times as fast a way must be to be preferred to one before it."""


@dataclass(frozen=True)
class Choice:
    """The method chosen, the seconds of each, and why others were left out."""

    method: str
    seconds: dict[str, float]
    notes: dict[str, str]

    def __str__(self) -> str:
        best = self.seconds[self.method]
        times = [
            f"{name} {1e3 * taken:.3g} ms" for name, taken in self.seconds.items() if taken != best
        ]
        left_out = [f"not {name}: {why}" for name, why in self.notes.items()]
        return "; ".join([f"{self.method} ({1e3 * best:.3g} ms)", *times, *left_out])


def fastest(
    ways: Mapping[str, Callable[[Tensor], None]],
    like: Tensor,
    tolerance: float,
) -> Choice:
    """Time every way and choose; each writes its result to a tensor like `like`.

    The first is the definition: it must work, and a way whose result is further from its than
    `tolerance` (relative) is left out. Where the definition itself draws at random, results are
    not compared.
    """
    first, again = (torch.full_like(like, torch.nan) for _ in range(2))
    seconds, notes = dict[str, float](), dict[str, str]()
    definition, *_ = ways.values()
    definition(first)
    definition(again)
    repeatable = _apart(first, again) <= tolerance
    chosen = ""
    for name, way in ways.items():
        if name not in seconds and way is not definition:
            again.fill_(torch.nan)
            why = _failure(way, again)
            apart = _apart(first, again) if repeatable and not why else 0.0
            if not apart <= tolerance:
                why = f"its result is {apart:.1e} from that of the others"
            if why:
                notes[name] = why
                continue
        seconds[name] = _timed(way, again)
        if not chosen or seconds[name] * _WORTH < seconds[chosen]:
            chosen = name
    return Choice(chosen, seconds, notes)


def kept(folder: Path | None, spec: dict[str, Any], measure: Callable[[], Choice]) -> Choice:
    """What was chosen for `spec` before; else what `measure` finds, which is kept.

    A folder that cannot be read or written is done without.
    """
    store = Store(folder)
    with suppress(OSError, ResultError), lock(folder, shared=True):
        if found := store.load(spec):
            return Choice(**found.facts)
    choice = measure()
    with suppress(OSError, ResultError), lock(folder, shared=True):
        store.save(spec, {}, asdict(choice))
    return choice


def cache_folder() -> Path | None:
    """Where a user's choices are kept; None without the package that knows such places."""
    try:
        import pooch  # type: ignore[import-untyped]
    except ImportError:
        return None
    return Path(pooch.os_cache("sottovoce")) / "gradients"


def _failure(way: Callable[[Tensor], None], out: Tensor) -> str | None:
    """Use a way for the first time; None, or in a few words why it cannot be used."""
    try:
        way(out)
    except Exception as error:
        # A missing compiler, an operation without a rule, a bug: each has a class of its own.
        return cause(error)
    return None


def _apart(one: Tensor, other: Tensor) -> float:
    """How far two results are from one another, of the first's size; NaN counts as far."""
    far = float((one - other).norm() / one.norm().clamp(min=1e-30))
    return math.inf if math.isnan(far) else far


def _timed(way: Callable[[Tensor], None], out: Tensor) -> float:
    """Median seconds of a call, the first of them left out."""
    taken = []
    for _ in range(_REPETITIONS + 1):
        begun = time.perf_counter()
        way(out)
        if out.device.type == "cuda":
            torch.cuda.synchronize(out.device)
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken[1:])
