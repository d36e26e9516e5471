"""One word for each cell of the table: proved, broken, not broken here, not claimed.

What counts is decided by intervals at `LEVEL`, so that among the hundreds of measures of a table a
lucky guess does not pass for an attack. Everything here is computed from the row's own data.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from scipy.stats import norm

from sottovoce.privacy.auditor import intervals

Word = Literal["proved", "broken", "not broken here", "not claimed"]
MEANINGS: dict[Word, str] = {
    "proved": (
        "our accountant proves an (ε, δ) for one record over the whole training against this "
        "adversary, and no measure lies above what it permits"
    ),
    "broken": (
        "a measure lies above what the proof permits or, where nothing is proved, an attack does "
        "what the authors say cannot be done better than by guessing"
    ),
    "not broken here": (
        "promised and not proved here; no attack that was run refutes the promise. That is no "
        "safety: another attack, or the same one with more data, may"
    ),
    "not claimed": (
        "neither promised against this adversary nor proved; the numbers show what it gets"
    ),
}
LEVEL = 1e-4
"""The level of a measure's interval."""
TRIED = round((1 - intervals.LEVEL) / LEVEL)
"""How many times the auditor's 95 % are divided for it."""
VACUOUS = 0.999
"""A proof that permits this AUC or more permits nearly everything, and counts as none."""
_LUCK = 0.01
"""The share of targets that may be rebuilt exactly by luck."""

Row = Mapping[str, Any]


def judge(row: Row) -> tuple[Word, str]:
    """The word for a row, and why: by which attack, how badly.

    row: `proved` (with `epsilon` None where nothing is), `claim`, `covered`, and the measures.
    """
    proved, claim = row["proved"], row["claim"]
    if meaningful(proved):
        beyond = [*_above_proof(row)]
        return ("broken", _said(beyond)) if beyond else ("proved", proved["sense"])
    if not row["covered"]:
        return "not claimed", "its authors promise nothing against this adversary"
    if not claim["of_record"]:
        return "not claimed", "its promise is not about one record"
    if not claim["hides"]:
        return "not broken here", f"an (ε, δ) is promised; our accountant proves {_at_most(proved)}"
    beyond = [said for name, said in _above_chance(row) if name in claim["hides"]]
    if beyond:
        return "broken", _said(beyond)
    if row["refused"]:
        return "not broken here", f"no attack of the suite applies: {row['refused']}"
    hidden = " and ".join(claim["hides"])
    return "not broken here", f"{hidden}: no attack that was run does better than guessing"


def meaningful(proved: Row) -> bool:
    """Whether a proof permits less than nearly everything."""
    return proved["epsilon"] is not None and proved["permitted_auc"] < VACUOUS


def _above_proof(row: Row) -> list[str]:
    """Measures above what is proved of the trainings that they were taken from."""
    found = []
    below, first = row["from_below"], row["identification"]
    told, trained = row["membership"], row["training_membership"]
    if below and below["of"] == "training" and below["exceeds"]:
        found.append(f"ε from below is {below['epsilon']:.3g}")
    if first and first["permitted"] is not None and first["strict"] > first["permitted"]:
        found.append(_identified(first))
    if told and told["permitted_auc"] is not None and told["strict"] > told["permitted_auc"]:
        found.append(_told(told))
    permitted = trained and trained["permitted_auc"]
    if trained and permitted is not None and strict_auc(trained) > permitted:
        found.append(_trained(trained))
    return found


def _above_chance(row: Row) -> list[tuple[str, str]]:
    """(what is hidden, what was got) of every measure above guessing."""
    found = []
    first, told, rebuilt = row["identification"], row["membership"], row["reconstruction"]
    support, trained = row["support"], row["training_membership"]
    if first and first["strict"] > first["chance"]:
        found.append(("identification", _identified(first)))
    if told and beyond_guessing(told):
        found.append(("membership", _told(told)))
    if trained and trained["controls_passed"] and strict_auc(trained) > 0.5:
        found.append(("membership", _trained(trained)))
    if rebuilt and rebuilt["strict"] > _LUCK:
        text = f"{rebuilt['recovered']} of {rebuilt['targets']} records rebuilt ({rebuilt['by']})"
        found.append(("reconstruction", text))
    if support and support["strict"] > _LUCK and support["precision"] > support["blind_precision"]:
        text = (
            f"every feature or word of {support['exact']} of {support['targets']} records "
            f"({support['by']})"
        )
        found.append(("reconstruction", text))
    return found


def gains(row: Row) -> list[str]:
    """What this adversary gets beyond guessing, whatever was promised."""
    return [said for _, said in _above_chance(row)]


def beyond_guessing(told: Row) -> bool:
    """Whether an AUC is above 0.5 at `LEVEL`: ranks of guesses are uniform, one for each target."""
    return bool((told["auc"] - 0.5) * math.sqrt(12 * told["targets"]) > norm.isf(LEVEL / 2))


def strict_auc(trained: Row) -> float:
    """The lower end of a shadow attack's AUC at `LEVEL`, its 95 % interval widened as a normal."""
    wider = float(norm.isf(LEVEL / 2) / norm.isf((1 - intervals.LEVEL) / 2))
    return float(trained["auc"] - wider * (trained["auc"] - trained["interval"][0]))


def strict_rate(hits: Sequence[float], runs: Sequence[int], tried: int) -> float:
    """The lower end of a share of targets at `LEVEL`, of the best of `tried` attacks."""
    return intervals.rate(hits, runs, TRIED * tried).low


def strict_mean(values: Sequence[float], runs: Sequence[int], tried: int) -> float:
    """The lower end of the mean of numbers in [0, 1] at `LEVEL`, whatever their distribution."""
    return intervals.mean(values, runs, TRIED * tried).low


def _said(parts: Sequence[str]) -> str:
    return "; ".join(parts)


def _identified(first: Row) -> str:
    records = f"{first['first']} of {first['targets']} records first among {first['candidates']:,}"
    return f"{records} ({first['by']})"


def _told(told: Row) -> str:
    return f"records of a batch told from others with an AUC of {told['auc']:.2f} ({told['by']})"


def _trained(trained: Row) -> str:
    return f"members told from the final models with an AUC of {trained['auc']:.2f} (shadow models)"


def _at_most(proved: Row) -> str:
    epsilon = proved["epsilon"]
    return "none" if epsilon is None else f"ε = {epsilon:.3g}, which permits nearly everything"
