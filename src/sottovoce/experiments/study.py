"""What an experiment found: sentences, tables and charts over one set of JSON data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce.files import write_json

if TYPE_CHECKING:
    import altair as alt


@dataclass(frozen=True)
class Table:
    """Rows under headings, ready to print; numbers are formatted by whoever shows them."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Study:
    """A finished experiment.

    findings: plain sentences; claim: what the paper says, where it says something; agrees: whether
    our numbers bear it out (None where only partly); data: everything shown, as JSON; charts: by
    name, made when asked for; command: what reproduces it.
    """

    name: str
    title: str
    claim: str
    agrees: bool | None
    findings: Sequence[str]
    data: Mapping[str, Any]
    command: str
    tables: Sequence[Table] = ()
    charts: "Mapping[str, Callable[[], alt.LayerChart | alt.ConcatChart]]" = field(
        default_factory=dict, repr=False
    )

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "study",
            "name": self.name,
            "title": self.title,
            "claim": self.claim,
            "agrees": self.agrees,
            "findings": list(self.findings),
            "command": self.command,
            "data": dict(self.data),
        }

    def write(self, folder: str | Path) -> list[Path]:
        """Write `<name>.json`, and each chart as PNG, SVG and interactive HTML; return the paths."""
        from sottovoce.charts import save_chart

        folder = Path(folder)
        written = [folder / f"{self.name}.json"]
        write_json(written[0], self.to_json())
        for name, make in self.charts.items():
            written += save_chart(make(), folder / name).values()
        return written
