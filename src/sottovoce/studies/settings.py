"""Settings of studies: a dataclass whose fields are the options of the command that runs it.

A field's `metadata` may hold `help`, `option` (its name on the command line where that is not the
field's own, such as `--batch-size`), `min`, and `argument` where the value stands without a name. A
field that is a dataclass itself brings its own.
"""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, get_type_hints

from sottovoce.graphs import Graph, parse_graph


def option(default: Any, help: str, **more: Any) -> Any:
    """A field with its default, its help and further metadata."""
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True, kw_only=True)
class OnGraph:
    """Which agents talk to which, with what weights, and whether the run can be repeated."""

    graph: str = option("ring:5", "ring:5, grid:3x4, erdos-renyi:20:0.3 or an edge-list file.")
    weights: str = option("metropolis", "metropolis, lazy-metropolis, max-degree, best-constant.")
    insecure_seed: int | None = option(None, "Make the private numbers repeatable (studies only).")

    def network(self) -> Graph:
        """The graph with its mixing weights."""
        return parse_graph(self.graph, self.weights)


def options(settings: type) -> Iterator[tuple[Field[Any], Any]]:
    """Every option of a settings class with its type, those of nested settings in their place."""
    hints = get_type_hints(settings)
    for one in fields(settings):
        if is_dataclass(hint := hints[one.name]) and isinstance(hint, type):
            yield from options(hint)
        else:
            yield one, hint


def build(settings: type, values: Mapping[str, Any]) -> Any:
    """Settings of this class from the values of all their options by field name."""
    hints = get_type_hints(settings)
    found = {}
    for name in (one.name for one in fields(settings)):
        found[name] = build(hints[name], values) if is_dataclass(hints[name]) else values[name]
    return settings(**found)


def flag(one: Field[Any]) -> str:
    """The option's name on the command line."""
    return str(one.metadata.get("option") or "--" + one.name.replace("_", "-"))


def command_line(command: str, settings: Any) -> str:
    """The command that repeats a study with these settings: every option that has a value."""
    return " ".join(["sottovoce", command, *_words(settings)])


def _words(settings: Any) -> Iterator[str]:
    for one in fields(settings):
        value = getattr(settings, one.name)
        if is_dataclass(value):
            yield from _words(value)
        elif one.metadata.get("argument"):
            yield shlex.quote(str(value))
        elif isinstance(value, bool):
            if value:
                yield flag(one)
            elif "option" not in one.metadata:
                yield flag(one).replace("--", "--no-", 1)
        elif value is not None:
            for part in value if isinstance(value, tuple) else (value,):
                yield f"{flag(one)} {shlex.quote(_text(part))}"


def _text(value: Any) -> str:
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)
