"""ε of one training from below: canaries that were included by coin, and guesses which (one run).

Steinke, Nasr and Jagielski (2023): of m canaries each is included by a fair coin of its own. An
attacker that guesses v of r coins right from what is seen refutes (ε, δ) where v right guesses are
too unlikely under it. Canaries about which nothing is guessed cost nothing.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor

from sottovoce.errors import PrivacyError
from sottovoce.privacy.composition import require_delta
from sottovoce.randomness.streams import master_key

_SHARES = (1.0, 0.5, 0.25, 0.1)
"""Of the canaries, how many are guessed; each share is a try."""
_MOST = 40.0


@dataclass(frozen=True)
class OneRun:
    """What one training says of ε: a bound at `confidence`, and its ceiling.

    canaries: how many coins were thrown; guessed, right: of the try with the largest bound. tries:
    by how many tries the level is divided: attacks times numbers of guesses.
    """

    epsilon: float
    ceiling: float
    delta: float
    confidence: float
    canaries: int
    guessed: int
    right: int
    tries: int

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "epsilon from below, one run",
            **asdict(self),
            "interval": [self.epsilon, None],
            "targets": self.canaries,
        }


def throw_coins(canaries: int, insecure_seed: int | None = None) -> Tensor:
    """Which canaries to include, by fair coins of the operating system: (canaries,) bool."""
    if canaries < 1:
        raise PrivacyError(f"{canaries} canaries; accepted: at least 1")
    drawn = np.random.Generator(
        np.random.Philox(key=int.from_bytes(master_key(insecure_seed)[:16]))
    )
    return torch.from_numpy(drawn.integers(0, 2, canaries) == 1)


def one_run_bound(
    scores: Tensor, included: Tensor, delta: float, *, attacks: int = 1, confidence: float = 0.95
) -> OneRun:
    """Bound ε from below by one training's scores of its canaries, higher for included ones.

    scores, included: (canaries,). attacks: how many ways of scoring were tried in all; the level is
    divided by their number and by that of the numbers of guesses.
    """
    require_delta(delta)
    if scores.shape != included.shape or scores.dim() != 1:
        raise PrivacyError(
            f"scores {tuple(scores.shape)} and coins {tuple(included.shape)} must be (canaries,)"
        )
    m = len(scores)
    counts = sorted({max(1, 2 * round(share * m / 2)) for share in _SHARES if share * m >= 1})
    counts = [min(m, r) for r in counts] or [m]
    tries = attacks * len(counts)
    level = (1 - confidence) / tries
    order = scores.double().argsort()
    best = OneRun(-1.0, 0.0, delta, confidence, m, 0, 0, tries)
    for r in counts:
        low, high = order[: r // 2], order[m - (r - r // 2) :]
        right = int(included[high].sum() + (~included[low]).sum())
        epsilon = epsilon_of_guesses(m, r, right, delta, level)
        if epsilon > best.epsilon:
            best = OneRun(epsilon, 0.0, delta, confidence, m, r, right, tries)
    ceiling = max(epsilon_of_guesses(m, r, r, delta, level) for r in counts)
    return OneRun(**{**asdict(best), "ceiling": ceiling})


def epsilon_of_guesses(m: int, r: int, right: int, delta: float, level: float) -> float:
    """The largest ε that `right` of `r` guesses about `m` canaries refute at a level."""
    if chance_of_guesses(m, r, right, 0.0, delta) >= level:
        return 0.0
    low, high = 0.0, _MOST
    while high - low > 1e-6:
        middle = (low + high) / 2
        refuted = chance_of_guesses(m, r, right, middle, delta) < level
        low, high = (middle, high) if refuted else (low, middle)
    return low


def chance_of_guesses(m: int, r: int, right: int, epsilon: float, delta: float) -> float:
    """How likely (ε, δ) makes at least `right` of `r` guesses right, at most.

    With q = e^ε/(1 + e^ε), the tail of Binomial(r, q) at `right`, plus 2 m δ times the largest mean
    of the binomial's mass on the i values below it (Steinke et al. 2023, theorem 5.2).
    """
    q = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, r, q))
    if not delta or not right:
        return min(1.0, tail)
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), r, q))
    worst = float((below / np.arange(1, right + 1)).max())
    return min(1.0, tail + 2 * m * delta * worst)
