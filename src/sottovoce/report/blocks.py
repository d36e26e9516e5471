"""Pieces of a page: each function takes plain text and numbers and returns HTML that is safe."""

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from sottovoce.studies.study import Table

if TYPE_CHECKING:
    import altair as alt

Html = str


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading of its own; `anchor` is its name in the address bar."""

    title: str
    body: Html
    anchor: str


def paragraph(text: str) -> Html:
    """One paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def items(texts: Iterable[str]) -> Html:
    """A list of plain sentences, nothing where there are none."""
    entries = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{entries}</ul>" if entries else ""


def command(text: str) -> Html:
    """A command line to copy."""
    return f'<pre class="command"><code>{escape(text)}</code></pre>'


def number(value: float | int, shown: str, source: str) -> Html:
    """A number of the data beside the page: `source` is its path there, such as `links.0.norm`."""
    exact = escape(repr(value))
    return f'<data value="{exact}" data-from="{escape(source)}">{escape(shown)}</data>'


def table(content: Table) -> Html:
    """A table that scrolls inside its own box where it is wider than the page."""
    rows = [[str(cell) for cell in row] for row in content.rows]
    numeric = [_is_numeric([row[at] for row in rows]) for at in range(len(content.headings))]
    cells = [[escape(cell) for cell in row] for row in rows]
    return html_table(content.title, [*map(escape, content.headings)], cells, numeric)


def html_table(
    title: str,
    headings: Sequence[Html],
    rows: Sequence[Sequence[Html]],
    numeric: Sequence[bool],
    kind: str = "",
) -> Html:
    """A table of cells that are HTML already; the first cell of a row names it."""

    def line(first: str, others: str, cells: Sequence[Html]) -> Html:
        tags = [first, *[others] * (len(cells) - 1)]
        styles = [' class="number"' if right else "" for right in numeric]
        parts = zip(tags, styles, cells, strict=True)
        return "".join(f"<{tag}{style}>{text}</{tag[:2]}>" for tag, style, text in parts)

    head = line('th scope="col"', 'th scope="col"', headings)
    body = "".join("<tr>" + line('th scope="row"', "td", row) + "</tr>" for row in rows)
    named = escape(title, quote=True)
    return (
        f'<div class="scroll" role="region" aria-label="{named}" tabindex="0">'
        f'<table class="{kind}"><caption><span>{named}</span></caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def chart(drawing: "alt.LayerChart | alt.ConcatChart", caption: str = "") -> Html:
    """An interactive chart, and its picture for readers without scripts and for screen readers."""
    from sottovoce.charts import picture

    spec = drawing.to_dict()
    text = described(spec)
    still = picture(drawing, "svg")
    if "concat" not in spec:
        # The caption says it in text that wraps and can be selected.
        title = spec.pop("title", {})
        lines = [" ".join(_lines(title.get(part))) for part in ("text", "subtitle")]
        caption = f"<strong>{escape(lines[0])}</strong>{escape(caption or lines[1])}"
    else:
        caption = escape(caption)
    spec["description"] = text
    spec.pop("usermeta", None)
    inline = json.dumps(spec, allow_nan=False).replace("</", "<\\/").replace("<!--", "<\\!--")
    head = f"<figcaption>{caption}</figcaption>" if caption else ""
    return (
        f'<figure class="chart">{head}<div class="card">'
        f'<div class="drawn" role="img" aria-label="{escape(text, quote=True)}" hidden></div>'
        f'<img class="still" src="{data_uri(still, "svg+xml")}" alt="{escape(text, quote=True)}">'
        f'</div><script type="application/json" class="spec">{inline}</script></figure>'
    )


def image(png: str, alt: str, kind: str = "digit", *, side: int | None = None) -> Html:
    """A picture from base64 text."""
    size = f' width="{side}" height="{side}"' if side else ""
    return (
        f'<img class="{kind}" src="data:image/png;base64,{png}" '
        f'alt="{escape(alt, quote=True)}"{size}>'
    )


def data_uri(content: bytes, kind: str) -> str:
    """An image as an address that needs no host."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def described(spec: Mapping[str, Any]) -> str:
    """What a chart shows, in words: its titles, and each line's first and last value."""
    if "concat" in spec:
        datasets = spec.get("datasets", {})
        return " ".join(described({**view, "datasets": datasets}) for view in spec["concat"])
    title = spec.get("title", {})
    parts = [" ".join(_lines(title.get("text"))), " ".join(_lines(title.get("subtitle")))]
    text = ". ".join(part for part in parts if part) + "."
    layers = spec.get("layer", [])
    names = {layer.get("data", {}).get("name") for layer in layers}
    rows = [row for name, rows in spec.get("datasets", {}).items() if name in names for row in rows]
    series: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if "series" in row and row.get("y") is not None:
            series.setdefault(row["series"], []).append(row)
    for label, points in series.items():
        first, last = points[0], points[-1]
        text += (
            f" {label}: {first['y']:.4g} at {first['x']:.6g}, {last['y']:.4g} at {last['x']:.6g}."
        )
    return text


def _lines(text: str | Sequence[str] | None) -> list[str]:
    return [text] if isinstance(text, str) else list(text or ())


def _is_numeric(cells: Sequence[str]) -> bool:
    filled = [cell for cell in cells if cell.strip()]
    return bool(filled) and all(re.fullmatch(r"[-+±,.%e ]*\d[-+±,.%e \d]*", one) for one in filled)
