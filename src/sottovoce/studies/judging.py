"""What numbers with a spread say of a claim: one definition for every study."""

import math
from collections.abc import Iterable
from typing import Literal

Verdict = Literal["confirmed", "refuted", "undecided"]
"""What our numbers say of a claim."""


def judge(low: float, high: float, *, above: float = -math.inf, below: float = math.inf) -> Verdict:
    """Whether a quantity known to lie in [low, high] lies between `above` and `below`, as claimed.

    Confirmed where the whole interval does, refuted where none of it does, undecided otherwise.
    """
    if above < low and high < below:
        return "confirmed"
    return "refuted" if high < above or low > below else "undecided"


def all_hold(parts: Iterable[Verdict]) -> Verdict:
    """The verdict on a claim whose parts must all hold: one that is refuted refutes it."""
    found = set(parts)
    return "refuted" if "refuted" in found else unanimous(found)


def unanimous(cases: Iterable[Verdict]) -> Verdict:
    """The verdict that all cases share, undecided where they differ."""
    first, *others = {*cases} or {"undecided"}
    return "undecided" if others else first
