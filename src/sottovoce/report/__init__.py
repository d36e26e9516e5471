"""Pages from results: one HTML file with interactive charts that needs no network."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from sottovoce.report.blocks import Section
from sottovoce.report.page import assemble
from sottovoce.report.saved import load_section, study_section
from sottovoce.storage.files import write_atomic
from sottovoce.studies.study import Study

__all__ = ["Section", "load_section", "page", "study_section", "write_page"]


def page(
    studies: Iterable[Study] = (),
    *,
    title: str = "What sottovoce found",
    intro: str = "",
    sections: Sequence[Section] = (),
) -> str:
    """Return one self-contained HTML page of studies and further sections, in that order.

    Charts are interactive; without scripts their pictures are shown. No other host is asked.
    """
    parts = [study_section(study) for study in studies] + list(sections)
    lead = f'<p class="intro">{escape(intro)}</p>' if intro else ""
    return assemble(title, lead, _with_own_anchors(parts))


def write_page(
    path: str | Path,
    studies: Iterable[Study] = (),
    *,
    title: str = "What sottovoce found",
    intro: str = "",
    sections: Sequence[Section] = (),
) -> Path:
    """Write `page` to a file in one step."""
    text = page(studies, title=title, intro=intro, sections=sections)
    write_atomic(path, text.encode())
    return Path(path)


def _with_own_anchors(sections: Sequence[Section]) -> list[Section]:
    """The same sections, those with an anchor that is taken being numbered."""
    taken: dict[str, int] = {}
    found = []
    for one in sections:
        taken[one.anchor] = count = taken.get(one.anchor, 0) + 1
        found.append(one if count == 1 else replace(one, anchor=f"{one.anchor}-{count}"))
    return found
