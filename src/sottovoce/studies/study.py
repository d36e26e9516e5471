"""What an experiment found: sentences, tables and charts over one set of JSON data."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce.errors import ResultError
from sottovoce.storage.files import write_json

if TYPE_CHECKING:
    import altair as alt


@dataclass(frozen=True)
class Table:
    """Rows under headings, ready to print.

    optional: headings of columns that may be hidden where there is no room, the first one first.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]
    optional: Sequence[str] = ()


@dataclass(frozen=True)
class Study:
    """A finished experiment, whole in its JSON: charts are drawn from `data` alone.

    findings: plain sentences; claim: what the paper says, where it says something; agrees: whether
    our numbers bear it out (None where only partly); data: everything shown; command: what
    reproduces it.
    """

    name: str
    title: str
    claim: str
    agrees: bool | None
    findings: Sequence[str]
    data: Mapping[str, Any]
    command: str
    tables: Sequence[Table] = ()

    def to_json(self) -> dict[str, Any]:
        """The study as JSON; tables hold what was printed."""
        tables = [
            {
                "title": table.title,
                "headings": list(table.headings),
                "rows": [[str(cell) for cell in row] for row in table.rows],
            }
            for table in self.tables
        ]
        return {"kind": "study", **vars(self), "findings": list(self.findings), "tables": tables}

    @classmethod
    def load(cls, path: str | Path) -> "Study":
        """Read a study that `write` wrote."""
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ResultError(f"{path} cannot be read as a saved study: {error}") from error
        if not isinstance(found, dict) or found.pop("kind", None) != "study":
            raise ResultError(f"{path} is not a saved study")
        try:
            tables = [Table(**table) for table in found.pop("tables")]
            return cls(**found, tables=tables)
        except (KeyError, TypeError) as error:
            raise ResultError(f"{path} is not a whole study: {error}") from error

    def charts(self) -> "dict[str, alt.LayerChart | alt.ConcatChart]":
        """The study's pictures by name."""
        from sottovoce.studies.drawing import draw

        return draw(self.name, self.data)

    def write(self, folder: str | Path) -> list[Path]:
        """Write `<name>.json` and each chart as PNG, SVG and interactive HTML; return the paths."""
        from sottovoce.charts import save_chart

        folder = Path(folder)
        written = [folder / f"{self.name}.json"]
        write_json(written[0], self.to_json())
        for name, chart in self.charts().items():
            written += save_chart(chart, folder / name).values()
        return written
