"""Rows of small grey images under one title: what was there, and what each attack recovered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sottovoce.charts.style import heading, styled
from sottovoce.errors import SottovoceError

if TYPE_CHECKING:
    import altair as alt


def image_grid(
    rows: Mapping[str, Sequence[str]], *, title: str, subtitle: str = "", size: int = 56
) -> alt.LayerChart:
    """Draw one labelled row of images a name; images are PNG files as base64 text."""
    import altair as alt

    columns = max((len(images) for images in rows.values()), default=0)
    if not columns:
        raise SottovoceError("a grid of images needs at least one image; none was given")
    values = [
        {"row": name, "column": column, "url": f"data:image/png;base64,{image}"}
        for name, images in rows.items()
        for column, image in enumerate(images)
    ]
    step = size + 6
    names = alt.Axis(title=None, labelLimit=0, domain=False, ticks=False, grid=False)
    pictures = (
        alt.Chart(alt.InlineData(values=values))
        .mark_image(width=size, height=size)
        .encode(
            x=alt.X("column:O", axis=None),
            y=alt.Y("row:N", sort=list(rows), axis=names),
            url="url:N",
        )
    )
    width, height = columns * step, len(rows) * step
    above = heading(title, subtitle, max(width, 480))
    return styled(alt.LayerChart(layer=[pictures], width=width, height=height, title=above))
