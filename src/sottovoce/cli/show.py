"""Print for people on stderr and stdout, or JSON alone on stdout."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from sottovoce.errors import ResultError

if TYPE_CHECKING:
    from sottovoce.studies.study import Study, Table

notes = Console(stderr=True, highlight=False)
"""Where everything goes that is not the answer itself; `--quiet` silences it."""

answers = Console(highlight=False)
_GAP, _WRAPPED = 2, 16


def print_json(content: Any) -> None:
    """JSON on stdout, nothing else there."""
    try:
        text = json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)
    except ValueError as error:
        raise ResultError(
            "the answer holds a number that is infinite or not a number, which JSON cannot hold; "
            "without --json it is printed"
        ) from error
    sys.stdout.write(text + "\n")


def print_table(table: "Table") -> None:
    """A study's table on stdout."""
    print_rows(table.title, table.headings, table.rows, table.optional)


def print_rows(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[Any]],
    optional: Sequence[str] = (),
) -> None:
    """Rows on stdout, as one table whatever the width; lines below say what is not in it.

    Where the wrapped columns do not fit, those that say the same in all rows become one line. Then
    columns are hidden: `optional` ones in their order, others from the right; the first and the
    last column stay.
    """
    columns = [[str(cell) for cell in column] for column in zip(headings, *rows, strict=True)]
    needs = [max(map(cell_len, column)) for column in columns]
    widths = [_narrowest(column) for column in columns]
    shown = list(range(len(columns)))
    inner = shown[-2:0:-1]
    values = [sorted({cell for cell in column[1:] if cell}) for column in columns]
    same = [at for at in sorted(inner) if len(rows) > 1 and len(values[at]) == 1]
    spare = [at for head in optional for at in inner if headings[at] == head]
    room = answers.width + _GAP - sum(width + _GAP for width in widths)
    removed = []
    for at in dict.fromkeys([*same, *spare, *inner]):
        if room < 0:
            shown.remove(at)
            removed.append(at)
            room += widths[at] + _GAP
    # What is left over goes to the columns in equal parts, first to those that need least.
    for left, at in enumerate(sorted(shown, key=lambda at: needs[at] - widths[at])):
        more = max(0, min(needs[at] - widths[at], room // (len(shown) - left)))
        widths[at], room = widths[at] + more, room - more
    drawn = RichTable(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0)
    )
    for at in shown:
        # A single word that is wider than all there is gets folded.
        width = widths[at] if room >= 0 else None
        drawn.add_column(escape(headings[at]), width=width, overflow="fold")
    for row in rows:
        drawn.add_row(*(escape(str(row[at])) for at in shown))
    answers.print(escape(title), style="bold")
    answers.print(drawn)
    if said := [f"{headings[at]} {values[at][0]}" for at in removed if at in same]:
        answers.print(f"The same in all rows: {escape('; '.join(said))}.")
    if hidden := [headings[at] for at in sorted(removed) if at not in same]:
        count = f"{len(hidden)} column{'s are' if len(hidden) > 1 else ' is'} hidden"
        names = escape(", ".join(hidden))
        answers.print(f"{count} ({names}); a wider terminal or --json shows all.")
    answers.print()


def _narrowest(column: Sequence[str]) -> int:
    """The width below which a column is hard to read: its longest word, or 16 of a longer cell."""
    words = [word for cell in column for word in cell.split()]
    return max([0, *map(cell_len, words), *(min(cell_len(cell), _WRAPPED) for cell in column[1:])])


def print_study(study: "Study", as_json: bool, written: Sequence[Path]) -> None:
    """An experiment's tables and findings, or its JSON; where the files are goes to stderr."""
    if as_json:
        print_json(study.to_json())
    else:
        for table in study.tables:
            print_table(table)
        if study.claim:
            answers.print(f"The paper: {escape(study.claim)}")
            answers.print(f"Our numbers: {study.verdict or 'undecided'}.")
        for finding in study.findings:
            # A command stands on one line, so that it can be copied.
            answers.print(f"- {finding}", markup=False, soft_wrap=": sottovoce " in finding)
    print_written(written)


def print_list(lines: Iterable[str]) -> None:
    """Sentences on stdout, each on a line of its own."""
    for line in lines:
        answers.print(f"- {line}", markup=False, soft_wrap=True)


def say(text: str, style: str | None = None) -> None:
    """A note on stderr, as it is, unless `--quiet`."""
    notes.print(text, style=style, markup=False, soft_wrap=True)


def print_written(paths: Iterable[Path]) -> None:
    """Where files are, on stderr."""
    for path in paths:
        say(f"wrote {path}", "dim")


def finish(
    study: "Study", out: Path, as_json: bool, report: bool = False, quiet: bool = False
) -> None:
    """Write an experiment's files and print what it found, or with `quiet` the files' names."""
    written = study.write(out)
    if report:
        from sottovoce.report import write_page

        written.append(write_page(out / "report.html", [study], title=study.title))
    if quiet:
        print_written(written)
    else:
        print_study(study, as_json, written)


def show_progress() -> bool:
    """Whether long work says how far it is: always but with `--quiet`."""
    return not notes.quiet
