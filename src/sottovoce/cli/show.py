"""Print for people on stderr and stdout, or JSON alone on stdout."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable

from sottovoce.studies.study import Study, Table

notes = Console(stderr=True, highlight=False)
"""Where everything goes that is not the answer itself."""

answers = Console(highlight=False)
_SHORT = 25


def print_json(content: Any) -> None:
    """JSON on stdout, nothing else there."""
    sys.stdout.write(json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def print_table(table: Table) -> None:
    """A table on stdout; where not even its words fit side by side, one paragraph a row."""
    columns = list(zip(table.headings, *table.rows, strict=True))
    words = [
        max(len(w) for cell in column for w in str(cell).split() or [""]) for column in columns
    ]
    if sum(words) + 3 * len(words) > answers.width:
        _print_rows(table)
        return
    shown = RichTable(
        title=escape(table.title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    widths = [max(len(str(cell)) for cell in column) for column in columns]
    short = [width for width in widths if width <= _SHORT]
    # Short cells stay whole and long ones wrap, as long as there is room to wrap them in.
    room = sum(short) + _SHORT * (len(widths) - len(short)) + 3 * len(widths) <= answers.width
    for heading, width in zip(table.headings, widths, strict=True):
        shown.add_column(escape(heading), no_wrap=room and width <= _SHORT, overflow="fold")
    for row in table.rows:
        shown.add_row(*(escape(str(cell)) for cell in row))
    answers.print(shown)


def _print_rows(table: Table) -> None:
    answers.print(escape(table.title), style="bold")
    for name, *cells in table.rows:
        answers.print(f"[bold]{escape(str(name))}[/]")
        pairs = zip(table.headings[1:], cells, strict=True)
        facts = [f"{escape(h)} {escape(str(cell))}" for h, cell in pairs if str(cell)]
        answers.print(Padding("; ".join(facts), (0, 0, 0, 3)))
    answers.print()


def print_study(study: Study, as_json: bool, written: Sequence[Path]) -> None:
    """An experiment's tables and findings, or its JSON; where the files are goes to stderr."""
    if as_json:
        print_json(study.to_json())
    else:
        for table in study.tables:
            print_table(table)
        if study.claim:
            answers.print(f"The paper: {escape(study.claim)}")
        for finding in study.findings:
            answers.print(f"- {escape(finding)}")
    print_written(written)


def print_written(paths: Iterable[Path]) -> None:
    """Where files are, on stderr."""
    for path in paths:
        notes.print(f"wrote {escape(str(path))}", style="dim", soft_wrap=True)


def finish(study: Study, out: Path, as_json: bool, report: bool = False) -> None:
    """Write an experiment's files and print what it found."""
    written = study.write(out)
    if report:
        from sottovoce.report import write_page

        written.append(write_page(out / "report.html", [study], title=study.title))
    print_study(study, as_json, written)


def show_progress() -> bool:
    """Progress bars only where a person watches."""
    return sys.stderr.isatty()
