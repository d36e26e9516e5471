"""`sottovoce report`: a page from saved results."""

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.show import notes


def report(
    results: Annotated[
        list[Path], typer.Argument(help="JSON files of studies, results or audits.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="The page's heading.")] = "What sottovoce found",
) -> None:
    """Write one self-contained HTML page from saved results."""
    from sottovoce.report import load_section, write_page

    sections = [load_section(path) for path in results]
    written = write_page(out, title=title, sections=sections)
    notes.print(f"wrote {written}", style="dim", soft_wrap=True, markup=False)
