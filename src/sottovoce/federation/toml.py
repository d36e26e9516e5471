"""Small TOML files that people read and programs check: values, lists of numbers, tables.

The standard library reads TOML and does not write it. Texts are written as JSON writes them, which
TOML reads alike; control characters never get so far.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.errors import FederationError

MOST_BYTES = 1 << 20
"""No file of this kind is longer."""


def read_toml(path: str | Path, kind: str) -> dict[str, Any]:
    """The content of a file; kind: what an error calls it."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise FederationError(f"{path}, {kind}, cannot be read: {error.strerror}") from None
    try:
        if len(content) > MOST_BYTES:
            raise ValueError(f"it is longer than {MOST_BYTES:,} bytes")
        return tomllib.loads(content.decode())
    except ValueError as error:
        raise FederationError(f"{path} is not {kind}: {error}") from None
    except RecursionError:
        raise FederationError(f"{path} is not {kind}: its values are nested too deeply") from None


def to_toml(content: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    """The text of a file: single values first, then tables, then lists of tables."""
    lines = [f"# {line}" for line in comments]
    single = {k: v for k, v in content.items() if not isinstance(v, dict) and not _tables(v)}
    lines += [f"{name} = {_value(value)}" for name, value in single.items()]
    for name, value in content.items():
        if isinstance(value, dict) and value:
            lines += ["", f"[{name}]", *(f"{k} = {_value(v)}" for k, v in value.items())]
        elif _tables(value):
            for table in value:
                lines += ["", f"[[{name}]]", *(f"{k} = {_value(v)}" for k, v in table.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)
