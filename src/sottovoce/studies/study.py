"""What a study found: sentences, tables, charts and a verdict over one set of JSON data."""

import importlib
import json
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from sottovoce.errors import ResultError
from sottovoce.storage.execution import Execution
from sottovoce.storage.files import write_json
from sottovoce.studies.judging import Verdict

if TYPE_CHECKING:
    import altair as alt

    from sottovoce.simulation.result import Result

Data = Mapping[str, Any]
Chart: TypeAlias = "alt.LayerChart | alt.ConcatChart"
_AGREES: dict[bool | None, Verdict] = {True: "confirmed", False: "refuted", None: "undecided"}
"""What version 0.1 wrote in place of a verdict."""


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
    """A finished study, whole in its JSON: charts are drawn from `data` alone.

    claim: what the paper says, where it says something; verdict: what our numbers say of it, None
    without a claim; findings: plain sentences; data: everything shown; command: what repeats it.
    """

    name: str
    title: str
    claim: str
    verdict: Verdict | None
    findings: Sequence[str]
    data: Data
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
    def from_json(cls, content: Any, source: str | Path = "this") -> "Study":
        """The study that `to_json` or version 0.1 wrote; errors name `source`."""
        if not isinstance(content, dict) or content.get("kind") != "study":
            raise ResultError(f"{source} is not a saved study")
        found = {key: value for key, value in content.items() if key != "kind"}
        try:
            if "agrees" in found:
                agrees = found.pop("agrees")
                found["verdict"] = _AGREES[agrees] if found["claim"] else None
            tables = [Table(**table) for table in found.pop("tables")]
            return cls(**found, tables=tables)
        except (KeyError, TypeError) as error:
            raise ResultError(f"{source} is not a whole study: {error}") from error

    @classmethod
    def load(cls, path: str | Path) -> "Study":
        """Read a study that `write` wrote."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ResultError(f"{path} cannot be read as a saved study: {error}") from error
        return cls.from_json(content, path)

    def charts(self) -> dict[str, Chart]:
        """The study's pictures by name; a study without a registered `Kind` has none."""
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


@dataclass(frozen=True)
class Kind:
    """A study known by name: how to draw it and, where `reproduce` offers it, how to run it.

    charts: a function of the study's data for each picture, None where there is nothing to show;
    run: (settings, execution) -> Study; parts_are_temporary: whether what it keeps in the
    execution's folder goes once it is written; parts_are_shared: whether several processes may work
    in one folder.
    """

    name: str
    charts: Mapping[str, Callable[[Data], "Chart | None"]] = field(default_factory=dict)
    settings: type | None = None
    run: Callable[[Any, Execution], Study] | None = None
    parts_are_temporary: bool = False
    parts_are_shared: bool = False


_KINDS: dict[str, Kind] = {}


def register(kind: Kind) -> None:
    """Make a study known; a module in this folder that calls this is a command of `reproduce`."""
    _KINDS[kind.name] = kind


def kinds() -> Mapping[str, Kind]:
    """Every study that a module of this folder, or a program that uses it, has registered."""
    for module in pkgutil.iter_modules(importlib.import_module("sottovoce.studies").__path__):
        importlib.import_module(f"sottovoce.studies.{module.name}")
    return _KINDS


def curves(result: "Result") -> dict[str, Any]:
    """Mean and band of every metric against the round, and each agent's own mean if it has one."""
    found: dict[str, Any] = {"rounds": result.rounds}
    for metric, values in result.metrics.items():
        found[metric] = result.band(metric).to_json()
        if values.ndim == 3:
            found[metric]["agents"] = values.double().mean(1).tolist()
    return found


def draw(name: str, data: Data) -> dict[str, Chart]:
    """All charts of a study by name."""
    kind = _KINDS.get(name) or kinds().get(name, Kind(name))
    made = {chart: make(data) for chart, make in kind.charts.items()}
    return {chart: one for chart, one in made.items() if one is not None}
