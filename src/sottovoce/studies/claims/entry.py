"""A stranger's mechanism on the small table: a card beside the reference mechanisms."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.mechanisms import Mechanism, check, in_blocks, parse_algorithm
from sottovoce.stepsizes import LAWS
from sottovoce.storage.execution import Execution
from sottovoce.storage.identity import code_of
from sottovoce.storage.progress import progress_bar
from sottovoce.storage.user_files import file_and_name, is_in_file
from sottovoce.studies.claims.cells import PIECES, judge_line
from sottovoce.studies.claims.lines import Line, Setup, chosen
from sottovoce.studies.claims.rest_known import subtracts_others
from sottovoce.studies.claims.settings import WHO, ClaimsSettings
from sottovoce.studies.claims.table import claims_tables
from sottovoce.studies.claims.words import MEANINGS
from sottovoce.studies.settings import OnGraph, command_line, option
from sottovoce.studies.study import Data, Kind, Study, Table, register

Row = Mapping[str, Any]
_STORED = "claims.json"


@dataclass(frozen=True, kw_only=True)
class EntrySettings(OnGraph):
    """Which entry is scored, on what part of the small table, and beside whom."""

    entry: str = option("", "FILE.py:NAME, with options after a colon.", argument=True)
    workload: tuple[str, ...] = option((), "census, text or images; all unless given; repeatable.")
    adversary: tuple[str, ...] = option((), f"{', '.join(WHO)}; all unless given; repeatable.")
    law: str | None = option(None, f"Law of private stepsizes: {', '.join(LAWS)}; else its own.")
    beside: tuple[str, ...] = option(
        (), "A mechanism to compute beside it, where the stored table does not fit; repeatable."
    )
    delta: float = option(1e-5, "δ of what is proved.")
    rounds: int | None = option(None, "Rounds of a training, 200 unless given.", min=2)
    targets: int | None = option(None, "Trainings attacked, 12 unless given.", min=2)
    pairs: int | None = option(None, "Trainings that bound ε from below, 500 unless given.", min=20)

    @property
    def table(self) -> ClaimsSettings:
        """The part of the small table that the entry is put on."""
        names = ("graph", "weights", "insecure_seed", "workload", "adversary", "delta")
        sizes = ("rounds", "targets", "pairs")
        return ClaimsSettings(**{name: getattr(self, name) for name in (*names, *sizes)})


def enter_study(settings: EntrySettings | None = None, execution: Execution | None = None) -> Study:
    """Score a mechanism of your own: is it a valid chain, and what does the small table say of it?

    FILE.py:NAME is a Mechanism, or a function that returns one. It is refused with every reason if
    a part does not do what it claims. Then the pieces of the small table are computed for it: its
    accuracy, what is proved, what attacks get. The card puts them beside the reference mechanisms.
    """
    settings, execution = settings or EntrySettings(), execution or Execution()
    asked = settings.table
    mechanism = _mechanism(settings.entry)
    line = Line(settings.entry, mechanism, settings.law)
    setups = {name: Setup(name, asked) for name in asked.workloads}
    validity = examined(mechanism, next(iter(setups.values())), line)
    for question, answer in validity:
        execution.say(f"{question}: {answer}")
    lines = [line, *(chosen(settings.beside) if settings.beside else ())]
    rows: list[Row] = []
    bar = progress_bar(
        "entry", len(lines) * len(setups) * len(PIECES), execution.progress, "pieces"
    )
    with bar as advance:
        for one in lines:
            for setup in setups.values():
                rows += judge_line(one, setup, replace(execution, progress=False), advance)
    short = _short(settings.entry)
    own = [{**row, "mechanism": short} for row in rows if row["mechanism"] == line.name]
    stored, origin = _stored(asked, set(settings.beside))
    data = {
        "entry": settings.entry,
        "name": short,
        "code": code_of(mechanism),
        "validity": [list(pair) for pair in validity],
        "rows": own,
        "beside": [row for row in rows if row["mechanism"] != line.name] + stored,
        "computed": list(settings.beside),
        "origin": origin,
        "commonest": {name: one.commonest for name, one in setups.items()},
        "sizes": asdict(asked.sizes),
        "meanings": MEANINGS,
    }
    title = f"Entry: {short}"
    command = command_line("enter", settings)
    return Study("entry", title, "", None, findings(data), data, command, tables(data))


def examined(mechanism: Mechanism, setup: Setup, line: Line) -> list[tuple[str, str]]:
    """What the chain is and keeps, by playing it; `AlgorithmError` with all faults if not valid."""
    check(mechanism, setup.graph, line.stepsize(setup))
    parts = ", ".join(f"{type(part).__name__} ({part.place})" for part in mechanism.parts)
    keeps = all(part.keeps_average for part in mechanism.parts)
    known = all(part.linear for part in mechanism.parts)
    bound = mechanism.bound
    others = subtracts_others(mechanism, setup.graph, line.stepsize(setup))
    alone = "no: one round is attacked with one record a batch, which tells more than a larger one"
    return [
        ("valid chain", f"yes: every part was played and does what it claims: {parts}"),
        ("keeps the average", "yes" if keeps else "no, as it says: the average feels its noise"),
        ("linear, so that attacks and accountant know its law", "yes" if known else "no"),
        ("other records of a batch can be subtracted", "yes" if others else alone),
        ("bounds one record", "yes" if bound else "no: nothing can be proved of a record"),
        ("real agents work on it", "in blocks" if in_blocks(mechanism, setup.graph) else "whole"),
        ("exchanges in a round", str(mechanism.exchanges)),
        ("promise of its author", mechanism.claim.says),
    ]


def findings(data: Data) -> list[str]:
    """What the card says, in sentences."""
    rows, name = data["rows"], data["name"]
    counts = Counter(row["word"] for row in rows)
    said = [f"{name} is a valid chain."]
    said.append(
        f"{len(rows)} cell{'s' * (len(rows) > 1)}: "
        + ", ".join(f"{counts[word]} {word}" for word in data["meanings"] if counts[word])
        + "."
    )
    reasons = dict.fromkeys(one for row in rows for one in row["proved"]["reasons"])
    said += [f"Proof: {one.replace(data['entry'], name).removesuffix('.')}." for one in reasons]
    said += [
        f"{row['called'].capitalize()} on {row['workload']}, {row['word']}: {row['why']}."
        for row in rows
        if row["word"] == "broken"
    ]
    leaking: dict[str, list[str]] = {}
    for row in rows:
        if row["word"] != "broken" and row["gains"]:
            got = f"on {row['workload']}: {'; '.join(row['gains'])}"
            leaking.setdefault(got, []).append(row["called"])
    said += [f"Beyond guessing, {got} ({', '.join(who)})." for got, who in leaking.items()]
    said.append(data["origin"])
    said += [f"{word.capitalize()}: {text}." for word, text in data["meanings"].items()]
    return said


def tables(data: Data) -> list[Table]:
    """The card: what was checked, the words beside the reference mechanisms, every number."""
    every = claims_tables({**data, "rows": [*data["rows"], *data["beside"]]})
    words = [one for one in every if one.title.startswith("In a word")]
    numbers = [one for one in claims_tables(data) if one.title.startswith("Every number")]
    return [Table("Is it a valid chain?", ("checked", "found"), data["validity"]), *words, *numbers]


def _mechanism(text: str) -> Mechanism:
    if not is_in_file(text):
        raise SottovoceError(f"the entry is {text!r}; accepted: FILE.py:NAME, such as mine.py:rule")
    return parse_algorithm(text)


def _short(text: str) -> str:
    file, rest = file_and_name(text)
    return f"{rest} of {file.name}"


def reference() -> Study | None:
    """The table of claims that comes with the package, which its documentation shows."""
    kept = Path(str(files("sottovoce.studies.claims"))) / _STORED
    # The wheel holds the documents' own file; a source tree has it where it is.
    place = kept if kept.is_file() else Path(__file__).parents[4] / "docs" / "figures" / _STORED
    return Study.load(place) if place.is_file() else None


def _stored(asked: ClaimsSettings, left_out: set[str]) -> tuple[list[Row], str]:
    """Rows of the reference mechanisms that come with the package, and what to say of them."""
    kept = reference()
    if kept is None:
        return (
            [],
            "No table of reference mechanisms comes with this version; --beside computes one.",
        )
    same = kept.data["sizes"] == json.loads(json.dumps(asdict(asked.sizes)))
    where = f"--graph {asked.graph} --weights {asked.weights} "
    if not (same and where in kept.command and f"--delta {asked.delta:g} " in kept.command):
        return [], (
            "The reference mechanisms that come with the package were measured at other sizes or "
            "on another graph and are left out; --beside computes one at these."
        )
    rows = [
        row
        for row in kept.data["rows"]
        if row["workload"] in asked.workloads
        and row["adversary"] in asked.adversaries()
        and row["mechanism"] not in left_out
    ]
    return rows, (
        "The reference mechanisms were not computed here but come with the package, made by "
        f"`{kept.command}` at the same sizes."
    )


register(Kind("entry"))
