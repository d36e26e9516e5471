"""Make a notebook of every tutorial: docs/tutorials/NAME.md becomes examples/NAME.ipynb.

    python scripts/make_notebooks.py

Blocks of code that follow `<!-- run -->` become cells to run, those that follow
`<!-- file: NAME -->` cells that write a file; everything else becomes text. A tutorial is written
once, in its page.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = ROOT / "docs" / "tutorials"
NOTEBOOKS = ROOT / "examples"

_BLOCK = re.compile(
    r"^<!-- (?:run|file: (?P<file>\S+)) -->\n+```(?P<language>\w+)\n(?P<code>.*?)^```$\n?",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\]\((?!\w+:)([^)#]+)")


def pages() -> list[Path]:
    """The tutorials, without their table of contents."""
    return sorted(page for page in TUTORIALS.glob("*.md") if page.name != "index.md")


def notebook(page: Path) -> str:
    """The notebook of a page, as JSON."""
    cells = [
        {"cell_type": kind, "id": f"{page.stem}-{number}", "metadata": {}, "source": lines}
        | ({"execution_count": None, "outputs": []} if kind == "code" else {})
        for number, (kind, lines) in enumerate(_cells(page.read_text("utf-8")))
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content: dict[str, Any] = {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _cells(text: str) -> Iterator[tuple[str, list[str]]]:
    """Kind and lines of every cell, in order."""
    end = 0
    for block in _BLOCK.finditer(text):
        if before := text[end : block.start()].strip():
            yield "markdown", _linked(before).splitlines(keepends=True)
        yield "code", [*_magic(block), *block["code"].strip().splitlines(keepends=True)]
        end = block.end()
    if after := text[end:].strip():
        yield "markdown", _linked(after).splitlines(keepends=True)


def _magic(block: re.Match[str]) -> list[str]:
    """The first line of a cell that is not Python to run."""
    if block["file"]:
        return [f"%%writefile {block['file']}\n"]
    if block["language"] == "sh":
        return ["%%sh\n"]
    if block["language"] != "python":
        raise ValueError(f"a block of {block['language']} cannot be run; accepted: python, sh")
    return []


def _linked(text: str) -> str:
    """Links that count from the folder of the notebooks."""

    def moved(link: re.Match[str]) -> str:
        parts: list[str] = []
        for part in PurePosixPath("docs/tutorials", link[1]).parts:
            parts = parts[:-1] if part == ".." else [*parts, part]
        return f"](../{'/'.join(parts)}"

    return _LINK.sub(moved, text)


if __name__ == "__main__":
    for page in pages():
        target = NOTEBOOKS / f"{page.stem}.ipynb"
        target.write_text(notebook(page), encoding="utf-8")
        print(target)
