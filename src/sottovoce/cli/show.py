"""Print for people on stderr and stdout, or JSON alone on stdout."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from sottovoce.experiments.study import Study, Table

notes = Console(stderr=True, highlight=False)
"""Where everything goes that is not the answer itself."""

answers = Console(highlight=False)


def print_json(content: Any) -> None:
    """JSON on stdout, nothing else there."""
    sys.stdout.write(json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def print_table(table: Table) -> None:
    """A table on stdout."""
    shown = RichTable(
        title=escape(table.title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for column, heading in enumerate(table.headings):
        cells = [str(row[column]) for row in table.rows]
        # Short cells stay whole; what is long wraps.
        shown.add_column(escape(heading), no_wrap=max(map(len, cells), default=0) <= 24)
    for row in table.rows:
        shown.add_row(*(escape(str(cell)) for cell in row))
    answers.print(shown)


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


def finish(study: Study, out: Path, as_json: bool) -> None:
    """Write an experiment's files and print what it found."""
    print_study(study, as_json, study.write(out))


def show_progress() -> bool:
    """Progress bars only where a person watches."""
    return sys.stderr.isatty()
