"""Private sentences behind the messages: words and whole passages that a transformer gives away."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.storage.execution import Execution
from sottovoce.storage.store import Store
from sottovoce.studies.settings import OnGraph, command_line, option
from sottovoce.studies.study import Data, Kind, Study, Table, register
from sottovoce.studies.text_reading import Asked, read_plain, read_proved

_HEADINGS = (
    "batch",
    "stepsizes",
    "passages",
    "words: precision",
    "words: recall",
    "guess: precision, recall",
    "whole passages, in order, with the next word",
)


@dataclass(frozen=True, kw_only=True)
class TextSettings(OnGraph):
    """Which trainings of a small transformer on speeches are overheard, and how often."""

    batches: tuple[int, ...] = option(
        (1, 2, 4), "Batch sizes; repeatable.", option="--batch-size", min=1
    )
    stepsizes: tuple[str, ...] = option(
        ("experiment:0.5/k^0.6", "uniform:0.5/k^0.6"),
        "Law and schedule; repeatable; all but the first with the first batch size alone.",
        option="--stepsize",
    )
    round: int = option(20, "The round that is attacked.", min=2)
    runs: int = option(10, "Independent trainings; one agent of each is attacked.", min=2)
    epsilon: float = option(3.0, "ε of the training with a proof; 0 leaves it out.")
    proved_rounds: int = option(300, "Rounds that the proof is for.", min=1)
    proved_runs: int = option(5, "Independent trainings with a proof that are read.", min=2)
    told_runs: int = option(20, "Those whose passages are told from others.", min=2)
    candidates: int = option(100, "Passages among which those of a batch are looked for.", min=2)

    @property
    def trainings(self) -> list[tuple[int, str]]:
        """Batch size and stepsize of every training without a proof."""
        first, *others = self.stepsizes
        return [(batch, first) for batch in self.batches] + [
            (self.batches[0], stepsize) for stepsize in others
        ]


def text_study(settings: TextSettings | None = None, execution: Execution | None = None) -> Study:
    """What an eavesdropper reads of private sentences from PDSGD's messages, and from DECOR's.

    Words of a batch are the rows of the embedding whose gradient is not zero. Whole passages are
    read off what the gradients of both attention layers span. Beside it DECOR with a proved ε: the
    same readers, how well a batch's passages are told from others, and what the proof permits.
    """
    settings, execution = settings or TextSettings(), execution or Execution()
    store, rows = execution.store(), []
    for batch, stepsize in settings.trainings:
        rows.append(_kept(store, settings, "row", batch, stepsize))
        execution.say(
            f"batch {batch}, {stepsize}: words {rows[-1]['recall']['mean']:.0%}, passages "
            f"{rows[-1]['read']['mean']:.0%}"
        )
    proved = None
    if settings.epsilon:
        proved = _kept(store, settings, "proved", settings.batches[-1], settings.stepsizes[0])
    first = rows[0]
    findings = [
        f"Batches of {row['batch']}, {row['stepsize']}: {_percent(row['read'])} of the passages "
        f"read whole; words with {row['precision']['mean']:.1%} precision and "
        f"{row['recall']['mean']:.1%} recall."
        for row in rows
        if row["batch"] in (first["batch"], settings.batches[-1])
    ]
    if proved:
        findings.append(
            f"decor at ε = {proved['epsilon']:.3g}: {_percent(proved['read'])} read whole; a "
            f"batch's passages told from others with an AUC of {proved['auc']['mean']:.3f} "
            f"({proved['auc']['low']:.3f} to {proved['auc']['high']:.3f}; the proof permits "
            f"{proved['permitted_auc']:.3f}, and without its noise it is "
            f"{proved['auc_without_noise']['mean']:.2f})."
        )
    table = Table(
        f"pdsgd, round {settings.round}, {settings.runs} trainings; 95 % intervals",
        _HEADINGS,
        [_cells(row) for row in rows],
    )
    every = [table]
    if proved:
        title = f"decor at ε = {proved['epsilon']:.3g}"
        every.append(Table(title, ("", "found"), proved_cells(proved)))
    command = command_line("reproduce text", settings)
    data = {"rows": rows, "proved": proved, "round": settings.round, "runs": settings.runs}
    data["proved_runs"] = settings.proved_runs
    title = "Private sentences read from messages"
    return Study("text", title, "", None, findings, data, command, every)


def write_page(data: Data, command: str) -> str:
    """The page of results in Markdown, from the study's data alone."""
    shown = data["rows"][0]["shown"]
    lines = [
        "# Private sentences read from messages",
        "",
        "Five agents train a small transformer (477,344 parameters) to tell the next word of "
        "speeches, each with speakers of its own ([the data](../reference/texts.md#data)). An "
        f"eavesdropper hears two links of an agent in rounds {data['round'] - 1} to "
        f"{data['round'] + 1}. A test compares this page with [its data](../figures/text.json).",
        "",
        "```sh",
        command,
        "```",
        "",
        "## PDSGD",
        "",
        *_rows(_HEADINGS, [_cells(row) for row in data["rows"]]),
        "",
        f"Means over {data['runs']} trainings with 95 % intervals, one agent of each attacked.",
        "",
        "- *Words*: rows of the embedding whose gradient is not zero. Private factors leave zeros "
        "where they are, whatever their law. The guess is the best one without messages: words "
        "that most batches have.",
        "- *Whole passages*: all eight words in order and the ninth, which the model learns to "
        "tell. The gradient of a dense layer spans its inputs alone, so that each word can be "
        "tested at each place by the first attention layer, and each beginning of a passage by "
        "the second, as DAGER does (Petrov et al., NeurIPS 2024); passages are kept whose "
        "gradients add up to the step ([the reader](../reference/attacks.md#readers)).",
        "- Controls of that reader: from exact gradients of batches of 1, 3 and 6 it reads every "
        "passage, and none from noise (`tests/test_passages.py`).",
        "- Wide laws of the stepsizes blur what a gradient spans. That is no proof: the words are "
        "there, and another attack may put them in order.",
        "",
        "What was said, and what was overheard (an underscore is a rare word):",
        "",
        *_rows(("said in private", "overheard"), shown),
    ]
    if data["proved"]:
        lines += _proved_part(data)
    return "\n".join(lines) + "\n"


def _proved_part(data: Data) -> list[str]:
    """What the page says of the training with a proof."""
    return [
        "",
        f"## decor at ε = {data['proved']['epsilon']:.3g}",
        "",
        *_rows(("", "found"), proved_cells(data["proved"])),
        "",
        f"{data['proved_runs']} trainings are read. *Told from others*: in "
        f"{data['proved']['told_runs']} trainings each of the batches' "
        f"{data['proved']['told_passages']} passages is ranked among "
        f"{data['proved']['candidates']} others of its agent by the likelihood of the step. What "
        "the proof permits is for this round, told that a passage may have been used in it, to an "
        "observer who knows all else: a test between two normal distributions, noise multiplier "
        f"{data['proved']['noise_multiplier']:.3f}. ε is for the whole training, in which sampling "
        f"hides whether a passage was used at all. {_beside_the_proof(data['proved'])} An attack "
        "that reaches less than a proof permits is no evidence of more protection.",
    ]


def _beside_the_proof(one: Data) -> str:
    """Whether what was told from others lies above what the proof permits, by both intervals."""
    pairs = (("auc", "permitted_auc"), ("top", "permitted_top"))
    if any(one[found]["low"] > one[permitted] for found, permitted in pairs):
        return "What was found lies above what the proof permits: one of both is wrong."
    inside = all(one[found]["high"] >= one[permitted] for found, permitted in pairs)
    got = (
        "Both intervals hold what the proof permits: the attack gets about all of it, and no more "
    )
    return f"{got}is shown." if inside else "Neither interval lies above what the proof permits."


def proved_cells(one: Data) -> list[tuple[str, str]]:
    """What the table of the training with a proof shows."""
    low, high = one["auc"]["low"], one["auc"]["high"]
    return [
        ("mechanism", f"`{one['mechanism']}`"),
        (
            "proved",
            f"ε = {one['epsilon']:.3g} at δ = {one['delta']:g} for one passage, "
            f"{one['rounds']} rounds, expected batch {one['batch']}, everything overheard",
        ),
        ("whole passages read", _percent(one["read"])),
        (
            "words: precision, recall",
            f"{one['precision']['mean']:.1%}, {one['recall']['mean']:.1%}",
        ),
        ("guess: precision, recall", f"{one['blind'][0]:.1%}, {one['blind'][1]:.1%}"),
        (
            "told from others, AUC (chance 0.50)",
            f"{one['auc']['mean']:.3f} ({low:.3f} to {high:.3f})",
        ),
        ("the proof permits, AUC", f"{one['permitted_auc']:.3f}"),
        (f"put first where {one['top_by_luck']:.1%} of others are", _percent(one["top"])),
        ("the proof permits", f"{one['permitted_top']:.1%}"),
        (
            "controls of the reader: exact clipped gradient, noise",
            f"{_percent(one['control_exact'])}, {_percent(one['control_noise'])}",
        ),
        ("AUC without noise on the step", f"{one['auc_without_noise']['mean']:.2f}"),
    ]


def _rows(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    table = [headings, ["---"] * len(headings), *rows]
    return ["| " + " | ".join(map(str, row)) + " |" for row in table]


def _cells(row: Data) -> tuple[Any, ...]:
    return (
        row["batch"],
        row["stepsize"],
        row["passages"],
        _percent(row["precision"]),
        _percent(row["recall"]),
        f"{row['blind'][0]:.0%}, {row['blind'][1]:.0%}",
        _percent(row["read"]),
    )


def _kept(store: Store, settings: TextSettings, part: str, batch: int, stepsize: str) -> Data:
    """One part of the study; what the store holds is not computed again."""
    runs = settings.runs if part == "row" else settings.proved_runs
    asked = Asked(settings.network(), settings.round, runs, settings.insecure_seed, batch, stepsize)
    more = settings.epsilon, settings.proved_rounds, settings.candidates, settings.told_runs
    spec: dict[str, Any] = {"kind": f"text-{part}", **asked.spec}
    spec |= {"proof": more} if part == "proved" else {}
    if asked.insecure_seed is not None and (found := store.load(spec)):
        return dict(found.facts)
    facts = read_plain(asked) if part == "row" else read_proved(asked, *more)
    store.save(spec, {}, facts)
    return facts


def _percent(one: Data) -> str:
    return "{mean:.1%} ({low:.1%} to {high:.1%})".format(**one)


register(Kind("text", settings=TextSettings, run=text_study))
