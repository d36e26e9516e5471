"""Docstrings of this project as reStructuredText, for the reference on the site.

They are written as plain text: `code` in single quotes, examples indented by four, arguments as
`name: what it means.` in sentences of one paragraph.
"""

import re
from collections.abc import Iterator, Sequence

_CODE = re.compile(r"(`[^`]+`)")
_SPECIAL = re.compile(r"([\\*|]|_(?=\W|$)|`)")


def restructured(lines: Sequence[str], parameters: Sequence[str] = ()) -> list[str]:
    """The lines of a docstring as reStructuredText.

    parameters: names of the function's or class's arguments; sentences that explain them become a
    list.
    """
    found: list[str] = []
    for paragraph in _paragraphs(lines):
        if all(line.startswith("    ") for line in paragraph):
            found += ["::", "", *paragraph, ""]
        elif paragraph[0].startswith("- "):
            found += [*map(inline, paragraph), ""]
        else:
            text = " ".join(line.strip() for line in paragraph)
            found += [line for part in _explained(text, parameters) for line in (part, "")]
    return found


def inline(text: str) -> str:
    """Text with code marked and everything else as it stands."""
    parts = _CODE.split(text)
    for place, part in enumerate(parts):
        if place % 2:
            after = parts[place + 1][:1]
            parts[place] = f"``{part[1:-1]}``" + ("\\ " if after.isalnum() else "")
        else:
            parts[place] = _SPECIAL.sub(r"\\\1", part)
    return "".join(parts)


def _paragraphs(lines: Sequence[str]) -> Iterator[list[str]]:
    paragraph: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            paragraph.append(line.rstrip())
        elif paragraph:
            yield paragraph
            paragraph = []


def _explained(text: str, parameters: Sequence[str]) -> Iterator[str]:
    """A paragraph, and after it a list item for each argument that it explains."""
    names = "|".join(map(re.escape, parameters))
    starts = []
    if names:
        pattern = rf"(?:^|(?<=[.;] )|(?<=[^,] ))((?:{names})(?:, (?:{names}))*): "
        starts = list(re.finditer(pattern, text))
    ends = [one.start() for one in starts[1:]] + [len(text)]
    if before := text[: starts[0].start()].strip() if starts else text:
        yield inline(before)
    for start, end in zip(starts, ends if starts else (), strict=True):
        meaning = text[start.end() : end].strip().rstrip(";")
        called = ", ".join(f"**{name}**" for name in start[1].split(", "))
        yield f"- {called}: {inline(meaning)}"
