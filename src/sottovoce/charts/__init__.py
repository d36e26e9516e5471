"""Make every picture in one place: an interactive chart, and its PNG, SVG and HTML files.

Charts are Altair charts; files are rendered by vl-convert without a browser and without a network.
"""

from __future__ import annotations

import html
import itertools
import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sottovoce.charts.style import (
    FONT,
    PALETTE,
    SOFT_INK,
    THEME,
    axis,
    dashes,
    domain,
    heading,
    palette,
    scale,
    styled,
)
from sottovoce.errors import SottovoceError
from sottovoce.storage.files import write_atomic

if TYPE_CHECKING:
    import altair as alt

HOVER_STYLE = "hover-target"
FEW_POINTS = 12
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Series:
    """One line of a chart, with an optional band between `low` and `high`; all of equal length."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    dashed: bool = False

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise SottovoceError(
                f"series {self.label!r} has one edge of a band; give both low and high, or neither"
            )
        for name in ("y", "low", "high"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.x):
                raise SottovoceError(
                    f"series {self.label!r} has {len(self.x)} x and {len(values)} {name} values; "
                    "the numbers must be equal"
                )


def banded(
    label: str, x: Sequence[float], band: Mapping[str, Sequence[float]], *, dashed: bool = False
) -> Series:
    """A line with its band from the JSON of a `Band`: `mean`, `low` and `high`."""
    return Series(label, x, band["mean"], band["low"], band["high"], dashed)


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_title: str,
    y_title: str,
    subtitle: str = "",
    log: Literal["", "x", "y", "xy"] = "",
    rules: Sequence[tuple[float, str]] = (),
    size: tuple[int, int] = (640, 360),
) -> alt.LayerChart:
    """Draw lines with shaded bands and labelled horizontal rules; clicking the legend fades lines.

    log: the axes that are logarithmic; size: width and height of the plot in pixels.
    Colour and dash both tell lines apart, in the order given. A value that its axis cannot show
    (not finite, or not positive on a logarithmic axis) leaves a gap in the line; the lower edge of
    a band is then clipped to the smallest positive value shown.
    """
    import altair as alt

    width, height = size
    log_x, log_y = "x" in log, "y" in log
    labels = [one.label for one in series]
    if len(set(labels)) != len(labels):
        raise SottovoceError(f"labels of series must differ; given {labels}")
    rules = [(float(y), text) for y, text in rules if _shown(float(y), log_y)]
    rows, extent = _rows(series, [y for y, _ in rules], log_x, log_y)
    wide = domain(extent["x"], log_x, padding=0.0)
    high = domain(extent["y"], log_y, padding=0.05)

    x = alt.X("x:Q", scale=scale(wide, log_x), axis=axis(x_title, wide, log_x, grid=False))
    y_scale = scale(high, log_y)
    y = alt.Y("y:Q", scale=y_scale, axis=axis(y_title, high, log_y, grid=True))
    columns = max(1, min(len(labels), int(width / (46 + 6.4 * max(map(len, labels))))))
    legend = alt.Legend(title=None, columns=columns)
    colours = alt.Scale(domain=labels, range=palette(len(labels)))
    colour = alt.Color("series:N", scale=colours, legend=legend)
    patterns = alt.Scale(domain=labels, range=dashes([one.dashed for one in series]))
    dash = alt.StrokeDash("series:N", scale=patterns, legend=legend)
    # Charts of one panel share a name space. Altair attaches each selection of a layered chart to
    # all its selecting layers once the chart is in a panel, so there can be no second selection.
    picked = alt.selection_point(
        name=f"picked_{next(_numbers)}", fields=["series"], bind="legend", toggle="true"
    )
    has_band = any(one.low is not None for one in series)
    told = {"y": y_title} | ({"low": "band from", "high": "band to"} if has_band else {})
    tooltip = [
        alt.Tooltip("series:N", title="series"),
        alt.Tooltip("x:Q", title=x_title, format=",.6~g"),
        *(alt.Tooltip(f"{name}:Q", title=text, format=",.5~g") for name, text in told.items()),
    ]
    base = alt.Chart(alt.InlineData(values=rows))
    layers: list[alt.Chart] = []
    if has_band:
        layers.append(
            base.mark_area(line=False).encode(
                x=x,
                y=alt.Y("shown_low:Q", scale=y_scale),
                y2=alt.Y2("shown_high:Q"),
                color=colour,
                fillOpacity=alt.when(picked).then(alt.value(0.16)).otherwise(alt.value(0.02)),
            )
        )
    layers += _rule_layers(rules, y_scale, high, log_y, size)
    visible = alt.when(picked).then(alt.value(1.0)).otherwise(alt.value(0.1))
    layers.append(
        base.mark_line(strokeWidth=2.2, strokeJoin="round")
        .encode(x=x, y=y, color=colour, strokeDash=dash, opacity=visible)
        .add_params(picked)
    )
    points = Counter(row["series"] for row in rows)
    if sparse := [label for label in labels if points[label] <= FEW_POINTS]:
        layers.append(
            base.transform_filter(alt.FieldOneOfPredicate(field="series", oneOf=sparse))
            .mark_point(filled=True, size=42)
            .encode(x=x, y=y, color=colour, opacity=visible)
        )
    layers.append(
        base.mark_point(filled=True, size=90, style=HOVER_STYLE).encode(
            x=x, y=y, color=colour, opacity=alt.value(0), tooltip=tooltip
        )
    )
    title_lines = heading(title, subtitle, width)
    return styled(alt.LayerChart(layer=layers, width=width, height=height, title=title_lines))


def network_chart(
    positions: Mapping[int, tuple[float, float]],
    links: Sequence[tuple[int, int]],
    title: str,
    *,
    subtitle: str = "",
    labels: Mapping[int, str] | None = None,
    size: int | None = None,
) -> alt.LayerChart:
    """Draw agents at `positions` and the links between them; pointing at an agent lists neighbours.

    Labels are the agents' numbers unless given, and are left out where circles are too small.
    """
    import altair as alt

    if not positions:
        raise SottovoceError("a network without agents cannot be drawn; give at least one position")
    unknown = sorted({agent for link in links for agent in link} - set(positions))
    if unknown:
        raise SottovoceError(
            f"links name agents {unknown} that have no position; "
            f"positions are given for {len(positions)} agents"
        )
    neighbours: dict[int, set[int]] = {agent: set() for agent in positions}
    edges = []
    for i, j in links:
        if i != j:
            neighbours[i].add(j)
            neighbours[j].add(i)
            (x1, y1), (x2, y2) = positions[i], positions[j]
            ends = {"x": float(x1), "y": float(y1), "x2": float(x2), "y2": float(y2)}
            edges.append({**ends, "from": i, "to": j})
    nodes = []
    for agent, (x, y) in positions.items():
        label = (labels or {}).get(agent, str(agent))
        near = ", ".join(map(str, sorted(neighbours[agent]))) or "none"
        near = textwrap.shorten(near, 80, placeholder=" …")
        node = {"agent": agent, "label": label, "x": float(x), "y": float(y)}
        nodes.append({**node, "neighbours": near, "degree": len(neighbours[agent])})
    size = size or (380 if len(nodes) <= 30 else 560)
    axes = zip(*positions.values(), strict=True)
    spans = [(float(min(values)), float(max(values))) for values in axes]
    half = max(1e-9, *(high - low for low, high in spans)) / 2 * 1.15
    x_scale, y_scale = (
        scale(((low + high) / 2 - half, (low + high) / 2 + half), log=False) for low, high in spans
    )
    diameter = max(5.0, min(34.0, 0.4 * size / math.sqrt(len(nodes))))
    across = alt.X("x:Q", scale=x_scale, axis=None)
    up = alt.Y("y:Q", scale=y_scale, axis=None)
    lines = (
        alt.Chart(alt.InlineData(values=edges))
        .mark_rule(color="#9AA5B1", strokeWidth=1.6 if len(edges) < 200 else 0.6)
        .encode(x=across, y=up, x2="x2:Q", y2="y2:Q")
    )
    agents = alt.Chart(alt.InlineData(values=nodes)).encode(x=across, y=up)
    circles = agents.mark_circle(
        size=math.pi / 4 * diameter**2, color=PALETTE[0], opacity=1, stroke="white", strokeWidth=1.5
    )
    told = {"label:N": "agent", "degree:Q": "neighbours", "neighbours:N": "linked to"}
    circles = circles.encode(tooltip=[alt.Tooltip(name, title=text) for name, text in told.items()])
    layers = [lines, circles] if edges else [circles]
    longest = max(len(str(node["label"])) for node in nodes)
    font_size = min(13.0, diameter * 0.5, 1.5 * diameter / longest)
    if font_size >= 7:
        texts = agents.mark_text(color="white", fontSize=font_size, fontWeight="bold", font=FONT)
        layers.append(texts.encode(text="label:N"))
    title_lines = heading(title, subtitle, size)
    return styled(alt.LayerChart(layer=layers, width=size, height=size, title=title_lines))


def panel(charts: Sequence[alt.LayerChart], columns: int = 2) -> alt.ConcatChart:
    """Set several charts in a grid of `columns`; each keeps its own axes, colours and legend.

    A click on a label fades all other labels in every chart, so that one line can be followed.
    """
    import altair as alt

    if not charts:
        raise SottovoceError("a panel needs at least one chart; none was given")
    if columns < 1:
        raise SottovoceError(f"a panel needs at least one column; given {columns}")
    # Altair accepts the style of a compound chart at its top alone.
    bare = [chart.copy() for chart in charts]
    for copy in bare:
        for name in THEME:
            setattr(copy, name, alt.Undefined)
    apart = alt.Resolve(scale=alt.ScaleResolveMap(color="independent", strokeDash="independent"))
    return styled(alt.concat(*bare, columns=columns, spacing=36, resolve=apart))


def save_chart(chart: alt.LayerChart | alt.ConcatChart, path_stem: str | Path) -> dict[str, Path]:
    """Write `path_stem`.png, .svg and .html, each atomically, and return their paths by format.

    The HTML file is interactive and carries all it needs: opening it asks no other host.
    """
    import vl_convert

    stem = Path(path_stem)
    page = vl_convert.vegalite_to_html(
        chart.to_dict(), vl_version=vega_lite_version(), bundle=True, renderer="svg"
    )
    contents = {
        "png": picture(chart, "png"),
        "svg": picture(chart, "svg"),
        "html": page.replace("<title>Chart<", f"<title>{html.escape(stem.name)}<", 1).encode(),
    }
    paths = {name: stem.with_name(f"{stem.name}.{name}") for name in contents}
    for name, content in contents.items():
        write_atomic(paths[name], content)
    return paths


def picture(chart: alt.LayerChart | alt.ConcatChart, format: Literal["png", "svg"]) -> bytes:
    """The chart as a still picture, PNG at twice its size."""
    import vl_convert

    still = _without_hover(chart.to_dict())
    if format == "svg":
        return vl_convert.vegalite_to_svg(still, vl_version=vega_lite_version()).encode()
    return vl_convert.vegalite_to_png(still, vl_version=vega_lite_version(), scale=2)


def vega_lite_version() -> str:
    """The version of Vega-Lite that charts are written for, such as 6.4."""
    import altair as alt

    return ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])


def _shown(value: float, log: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not log)


def _rows(
    series: Sequence[Series], rule_values: Sequence[float], log_x: bool, log_y: bool
) -> tuple[list[dict[str, Any]], dict[str, list[float]]]:
    """The chart's data, one row a point, and every value that each axis has to reach."""
    reach: dict[str, list[float]] = {"x": [], "y": list(rule_values)}
    for one in series:
        reach["x"] += [x for x in map(float, one.x) if _shown(x, log_x)]
        for values in (one.y, one.low, one.high):
            if values is not None:
                reach["y"] += [y for y in map(float, values) if _shown(y, log_y)]
    rows: list[dict[str, Any]] = []
    floor = min(reach["y"], default=1.0)
    for one in series:
        for i, x in enumerate(map(float, one.x)):
            if not _shown(x, log_x):
                continue
            y = float(one.y[i])
            row = {"series": one.label, "x": x, "y": y if _shown(y, log_y) else None}
            if one.low is not None and one.high is not None:
                low, high = float(one.low[i]), float(one.high[i])
                if math.isfinite(low) and _shown(high, log_y):
                    row |= {"low": low, "high": high}
                    row |= {"shown_low": max(low, floor), "shown_high": high}
            rows.append(row)
    if all(row["y"] is None for row in rows):
        raise SottovoceError(
            f"none of the {len(series)} series has a point that can be shown; "
            "values must be finite, and positive on a logarithmic axis"
        )
    return rows, reach


def _rule_layers(
    rules: Sequence[tuple[float, str]],
    y_scale: Any,
    domain: tuple[float, float],
    log: bool,
    size: tuple[int, int],
) -> list[Any]:
    """Grey horizontal lines, each named to the right of the plot where no data can cover it."""
    import altair as alt

    if not rules:
        return []
    width, height = size
    low, high = (math.log(edge) if log else edge for edge in domain)
    rows: list[dict[str, Any]] = []
    previous = -math.inf
    for y, text in sorted(rules, reverse=True):
        pixel = height * (high - (math.log(y) if log else y)) / (high - low)
        previous = max(pixel, previous + 15)
        rows.append({"y": y, "text": text, "pixel": previous})
    base = alt.Chart(alt.InlineData(values=rows))
    lines = base.mark_rule(color="#8A8A8A", strokeWidth=1.2, strokeDash=[2, 2]).encode(
        y=alt.Y("y:Q", scale=y_scale)
    )
    texts = [
        alt.Chart(alt.InlineData(values=[row]))
        .mark_text(align="left", baseline="middle", color=SOFT_INK, fontSize=12, font=FONT)
        .encode(x=alt.value(width + 6), y=alt.value(row["pixel"]), text="text:N")
        for row in rows
    ]
    return [lines, *texts]


def _without_hover(part: Any) -> Any:
    """The same picture without the invisible points of the tooltips, to keep files small."""
    if isinstance(part, dict):
        return {key: _without_hover(value) for key, value in part.items()}
    if not isinstance(part, list):
        return part
    return [_without_hover(item) for item in part if not _is_hover(item)]


def _is_hover(item: Any) -> bool:
    mark = item.get("mark") if isinstance(item, dict) else None
    return isinstance(mark, dict) and mark.get("style") == HOVER_STYLE
