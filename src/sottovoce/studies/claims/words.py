"""One word for each cell of the table: proved, broken, not broken here, not claimed.

What counts is decided by intervals at `LEVEL`, so that among the hundreds of measures of a table a
lucky guess does not pass for an attack. Everything here is computed from the row's own data.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from scipy.stats import norm
from scipy.stats import t as student

from sottovoce.privacy.auditor import intervals

Word = Literal["proved", "broken", "not broken here", "not claimed"]
MEANINGS: dict[Word, str] = {
    "proved": (
        "our accountant proves an (ε, δ) for one record over the whole training against this "
        "adversary, and no measure lies above what it permits"
    ),
    "broken": (
        "a measure lies above what a proof permits or, where none permits less than nearly "
        "everything, an attack does what the authors say cannot be done better than by guessing"
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
"""The least share of targets that may be rebuilt exactly by luck."""

Row = Mapping[str, Any]


def judge(row: Row) -> tuple[Word, str]:
    """The word for a row, and why: by which attack, how badly.

    row: `proved` (with `epsilon` None where nothing is), `claim`, `covered`, and the measures.
    """
    proved, claim = row["proved"], row["claim"]
    if proved["epsilon"] is not None and (beyond := _above_proof(row)):
        return "broken", _said(beyond)
    if meaningful(proved):
        return "proved", _said([proved["sense"], *_untested(row)])
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
        none = f"no attack of the suite applies: {row['refused']}"
        return "not broken here", _said([none, *_doubtful(row)])
    hidden = " and ".join(claim["hides"])
    unseen = f"{hidden}: better than guessing is not shown at level {LEVEL:g}"
    return "not broken here", _said([unseen, *_doubtful(row)])


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


def _untested(row: Row) -> list[str]:
    """That the attacked targets are too few to refute the proof, and what else may; else nothing.

    Even if every record came first, the lower end would not lie above what the proof permits.
    """
    first, told = row["identification"], row["membership"]
    below, trained = row["from_below"], row["training_membership"]
    pairs = [(first, "permitted"), (told, "permitted_auc")]
    able = [
        one["most"] > one[name]
        for one, name in pairs
        if one and one[name] is not None and one.get("most") is not None
    ]
    if not able or any(able):
        return []
    others = []
    if below and below["of"] == "training" and below["ceiling"] > row["proved"]["epsilon"]:
        others.append("ε from below")
    permitted = trained and trained["permitted_auc"]
    if trained and trained["controls_passed"] and permitted is not None and permitted < VACUOUS:
        others.append("shadow models")
    tests = f"{' and '.join(others)} can" if others else "nothing that was run can"
    return [f"{(first or told)['targets']} attacked records cannot refute it; {tests}"]


def _doubtful(row: Row) -> list[str]:
    """What is not evidence about the row's promise, because its control failed."""
    hides, trained = row["claim"]["hides"], row["training_membership"]
    names = list(row.get("not_evidence", ()))
    if trained and not trained["controls_passed"] and "membership" in hides:
        names.append("what shadow models tell")
    said = [f"{name} is not evidence: its control failed" for name in names]
    if "membership" in hides and row.get("untold"):
        said.append(f"no shadow models: {row['untold']}")
    return said


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
    if rebuilt and rebuilt["strict"] > max(_LUCK, rebuilt["recovered_chance"]):
        text = f"{rebuilt['recovered']} of {rebuilt['targets']} records rebuilt ({rebuilt['by']})"
        found.append(("reconstruction", text))
    if (
        support
        and support["strict"] > max(_LUCK, support["chance"])
        and support["precision"] > support["blind_precision"]
    ):
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
    """The lower end of a shadow attack's AUC at `LEVEL`, its 95 % interval widened.

    By Student's t for half of the runs, which are attacked together (`membership.rates`), or as a
    normal where their number was not kept.
    """
    tails = (LEVEL / 2, (1 - intervals.LEVEL) / 2)
    runs = trained.get("runs")
    far, near = (
        float(norm.isf(tail) if runs is None else student.isf(tail, runs / 2 - 1)) for tail in tails
    )
    wider = far / near
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
