"""The table of claims as a study and as a page: all of it from the rows' data alone."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.storage.execution import Execution
from sottovoce.storage.identity import canonical
from sottovoce.storage.progress import progress_bar
from sottovoce.storage.store import lock
from sottovoce.studies.claims.cells import PIECES, judge_line
from sottovoce.studies.claims.lines import REFERENCE, Line, Setup, chosen, sizes_as_text
from sottovoce.studies.claims.settings import DATA, FULL, WHO, ClaimsSettings
from sottovoce.studies.claims.words import MEANINGS, meaningful
from sottovoce.studies.settings import command_line
from sottovoce.studies.study import Data, Kind, Study, Table, register

Row = Mapping[str, Any]
_Cell = tuple[str, Line]
_HEADINGS = (
    "mechanism",
    "adversary",
    "word",
    "accuracy",
    "proved ε",
    "ε from below",
    "identification",
    "membership",
    "reconstruction",
    "why",
)


def claims_study(
    settings: ClaimsSettings | None = None, execution: Execution | None = None
) -> Study:
    """Every published claim on one table: what is proved, what is broken, by which attack.

    Mechanisms against adversaries on census records, text and images, under one accountant and one
    auditor. The small table takes less than an hour of CPU time, --full takes hours. Finished
    pieces are kept. Parts can run on several machines with one folder; the command without --part
    then puts them together.
    """
    settings, execution = settings or ClaimsSettings(), execution or Execution()
    if settings.join:
        return joined([Study.load(path) for path in settings.join], settings)
    first, last = map(int, settings.part.split("/"))
    every = list(product(settings.workloads, chosen(settings.mechanism)))
    mine = dealt(every, first, last)
    if not mine:
        raise SottovoceError(
            f"part {settings.part} of {len(every)} lines is empty; give fewer parts"
        )
    setups = {name: Setup(name, settings) for name in settings.workloads}
    rows, alone = [], replace(execution, progress=False)
    bar = progress_bar("claims", len(mine) * len(PIECES), execution.progress, "pieces")
    with lock(execution.folder, shared=True), bar as advance:
        for name, line in mine:
            rows += judge_line(line, setups[name], alone, advance)
    commonest = {name: one.commonest for name, one in setups.items()}
    return _study(rows, settings, commonest)


def dealt(every: Sequence[_Cell], first: int, last: int) -> list[_Cell]:
    """One part of the lines in their order; each part gets as many that clip, which cost most."""
    costly_first = sorted(every, key=lambda one: not one[1].clips)
    mine = costly_first[first - 1 :: last]
    return [one for one in every if one in mine]


def joined(studies: Sequence[Study], settings: ClaimsSettings) -> Study:
    """One table of several that were computed alike, in the order of the reference mechanisms."""
    strange = [one.name for one in studies if one.name != "claims"]
    sizes = {canonical(one.data.get("sizes")) for one in studies}
    if strange or len(sizes) > 1:
        raise SottovoceError(
            f"saved tables of {len(sizes)} different sizes and {len(strange)} other studies were "
            "given; accepted: tables of claims made with the same sizes"
        )
    names = [line.name for line in REFERENCE]
    places = {name: at for at, name in enumerate(names)}
    rows = {
        (row["workload"], row["mechanism"], row["adversary"]): row
        for one in studies
        for row in one.data["rows"]
    }
    ordered = sorted(
        rows.values(),
        key=lambda row: (DATA.index(row["workload"]), places.get(row["mechanism"], len(names))),
    )
    commonest = {k: v for one in studies for k, v in one.data.get("commonest", {}).items()}
    data = {**studies[0].data, "rows": ordered, "commonest": commonest}
    command = command_line("claims", replace(settings, join=(), part="1/1", jobs=None))
    return _made(data, command)


def _study(rows: Sequence[Row], settings: ClaimsSettings, commonest: Mapping[str, float]) -> Study:
    data = {
        "rows": list(rows),
        "commonest": dict(commonest),
        "sizes": asdict(settings.sizes),
        "set_up": _set_up(settings),
        "epsilon": settings.epsilon,
        "meanings": MEANINGS,
    }
    return _made(data, command_line("claims", replace(settings, part="1/1", jobs=None)))


def _made(data: Data, command: str) -> Study:
    title, tables = "Published claims on one table", claims_tables(data)
    return Study("claims", title, "", None, findings(data), data, command, tables)


def _set_up(settings: ClaimsSettings) -> str:
    half = settings.sizes.records // 2
    return (
        f"{settings.network().name}, agent 0 attacked; {sizes_as_text(settings.sizes)}. Noise of "
        f"chains that clip is planned for ε = {settings.epsilon:g} at δ = {settings.delta:g} over "
        "the whole training against an eavesdropper; where a chain clips, batches are Poisson "
        "samples and steps are larger. Attacks face one record of a batch whose others are known, "
        "as a proof grants its adversary: one record a batch, steps λ / B and B times the noise on "
        f"a gradient. Final models are of trainings on {half} records of an agent, which a proof "
        "permits more: their members are easier to tell than those of the whole training."
    )


def findings(data: Data) -> list[str]:
    """What the table says, in sentences."""
    rows = data["rows"]
    counts = Counter(row["word"] for row in rows)
    said = [
        f"{len(rows)} cells: "
        + ", ".join(f"{counts[word]} {word}" for word in MEANINGS if counts[word])
        + ".",
        f"Set-up: {data['set_up']}",
    ]
    said += [f"{word.capitalize()}: {text}." for word, text in data["meanings"].items()]
    for name in dict.fromkeys(row["mechanism"] for row in rows):
        own = [row for row in rows if row["mechanism"] == name]
        broken = [row for row in own if row["word"] == "broken"]
        if broken:
            worst = broken[0]
            said.append(
                f"{name} is broken in {len(broken)} of {len(own)} cells; by the {worst['called']} "
                f"on {worst['workload']}: {worst['why']}."
            )
    leaking = [row for row in rows if row["word"] == "not claimed" and row["gains"]]
    if leaking:
        said.append(
            f"In {len(leaking)} of the {counts['not claimed']} cells where nothing is claimed an "
            "attack does better than guessing."
        )
    return said


def claims_tables(data: Data) -> list[Table]:
    """The words at a glance for each workload, the claims, then every number."""
    rows = data["rows"]
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    names = list(dict.fromkeys(row["mechanism"] for row in rows))
    who = [name for name in WHO if any(row["adversary"] == name for row in rows)]
    tables, commonest = [], data.get("commonest", {})
    for workload in workloads:
        words = {
            (row["mechanism"], row["adversary"]): row["word"]
            for row in rows
            if row["workload"] == workload
        }
        accuracy = {row["mechanism"]: _accuracy(row) for row in rows if row["workload"] == workload}
        lines = [
            (name, accuracy[name], *(words.get((name, one), "") for one in who))
            for name in names
            if name in accuracy
        ]
        if workload in commonest:
            lines.append(("the commonest label", f"{commonest[workload]:.3f}", *("" for _ in who)))
        tables.append(
            Table(
                f"In a word: {workload}",
                ("mechanism", "accuracy", *(WHO[name] for name in who)),
                lines,
            )
        )
    first = {row["mechanism"]: row for row in reversed(rows)}
    claims = [(name, *_claim(first[name])) for name in names]
    tables.append(
        Table(
            "What is promised, and against whom",
            ("mechanism", "promise", "against", "source"),
            claims,
        )
    )
    for workload in workloads:
        cells = [cells_of(row) for row in rows if row["workload"] == workload]
        tables.append(Table(f"Every number: {workload}", _HEADINGS, cells))
    return tables


def _claim(row: Row) -> tuple[str, str, str]:
    claim = row["claim"]
    against = ", ".join(WHO[one] for one in claim["against"]) or "nobody"
    return claim["says"], against, claim["source"]


def cells_of(row: Row) -> tuple[str, ...]:
    """A row as text under the headings of the long tables."""
    return (
        row["mechanism"],
        row["called"],
        row["word"],
        _accuracy(row),
        _proved(row),
        _below(row),
        _identified(row),
        _members(row),
        _rebuilt(row),
        row["why"],
    )


def _accuracy(row: Row) -> str:
    one = row["accuracy"]
    return f"{one['mean']:.3f} ({one['low']:.3f} to {one['high']:.3f})"


def _proved(row: Row) -> str:
    proved = row["proved"]
    if proved["epsilon"] is None:
        return f"none ({proved['standing']})"
    vacuous = "" if meaningful(proved) else ", permits nearly everything"
    return f"{proved['epsilon']:.3g}{vacuous}"


def _below(row: Row) -> str:
    one = row["from_below"]
    if one is None:
        return "not bounded: several exchanges, no clip"
    of = "whole training" if one["of"] == "training" else f"one round, norm {one['norm']:.2g}"
    return f"{one['epsilon']:.2g} of at most {one['ceiling']:.2g} ({of})"


def _identified(row: Row) -> str:
    one = row["identification"]
    if one is None:
        return _missing(row)
    share = f"{one['low']:.0%} to {one['high']:.0%}"
    return f"{one['first']} of {one['targets']} first ({share}; chance {one['chance']:.1%})"


def _members(row: Row) -> str:
    one, trained = row["membership"], row["training_membership"]
    parts = []
    if one is not None:
        parts.append(f"round: AUC {one['auc']:.2f} ({one['low']:.2f} to {one['high']:.2f})")
    if trained is not None:
        low, high = trained["interval"]
        doubt = "" if trained["controls_passed"] else ", control failed: not evidence"
        parts.append(f"final models: AUC {trained['auc']:.2f} ({low:.2f} to {high:.2f}){doubt}")
    return "; ".join(parts) or _missing(row)


def _rebuilt(row: Row) -> str:
    one, support = row["reconstruction"], row["support"]
    parts = []
    if one is not None and one["median_error"] is not None:
        parts.append(
            f"{one['recovered']} of {one['targets']} records, median error "
            f"{one['median_error']:.3g} (guess {one['label_error']:.3g})"
        )
    if support is not None:
        parts.append(
            f"features or words: all of {support['exact']} of {support['targets']} records, "
            f"precision {support['precision']:.0%}, recall {support['recall']:.0%} (guess "
            f"{support['blind_precision']:.0%}, {support['blind_recall']:.0%})"
        )
    return "; ".join(parts) or _missing(row)


def _missing(row: Row) -> str:
    if row["not_evidence"]:
        return f"not evidence: controls of {', '.join(row['not_evidence'])} failed"
    return "no attack of the suite applies"


def write_page(data: Data, command: str, name: str = "claims") -> str:
    """The page of results in Markdown, from the study's data alone; name: that of both files."""
    workloads = " and ".join(dict.fromkeys(row["workload"] for row in data["rows"]))
    whole = "" if name == "claims" else f": {workloads} at full size"
    lines = [
        f"# Every claim on one table{whole}",
        "",
        "What papers on privacy in decentralized learning promise, under one accountant and one "
        "auditor. Each cell has one word:",
        "",
        *(f"- *{word}*: {text}." for word, text in data["meanings"].items()),
        "",
        data["set_up"],
        "",
        "```sh",
        command,
        "```",
        "",
        "It uses all cores (`--jobs`), and a stopped one continues. On several machines, "
        "`--part 1/8` to `--part 8/8` do an eighth each, and `--join` puts them together. One cell "
        "alone is computed by the same command with `--mechanism`, `--workload` and `--adversary`; "
        f"the data hold it for each. The data: [{name}.json](../figures/{name}.json). A test "
        "compares this page with them.",
        "",
        *_of_full_size(data, name),
        *(f"- {one}" for one in _said_of_mechanisms(data)),
    ]
    for table in claims_tables(data):
        lines += ["", f"## {table.title}", "", *_markdown(table)]
    return "\n".join(lines) + "\n"


def _of_full_size(data: Data, name: str) -> list[str]:
    """What has been computed at full size, and what has not."""
    missing = [one for one in DATA if all(row["workload"] != one for row in data["rows"])]
    left = f"{' and '.join(missing)}: not computed at this size." if missing else ""
    if canonical(data["sizes"]) == canonical(asdict(FULL)):
        return [left.capitalize(), ""] if left else []
    return [
        f"At full size (`--full`): images from all of MNIST; {sizes_as_text(FULL)}. What was "
        f"computed of it stands [on a page of its own]({name}-full.md).",
        "",
    ]


def _said_of_mechanisms(data: Data) -> list[str]:
    said = findings(data)
    return [said[0], *said[2 + len(data["meanings"]) :]]


def _markdown(table: Table) -> list[str]:
    every = [table.headings, ["---"] * len(table.headings), *table.rows]
    return ["| " + " | ".join(str(cell) for cell in row) + " |" for row in every]


register(Kind("claims"))
