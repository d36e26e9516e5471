"""How charts look: palette, dashes, scales, ticks, titles and the theme that all pictures share."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import altair as alt

Chart = TypeVar("Chart")

# Okabe and Ito's palette, which stays distinct under the common colour-vision deficiencies; its
# yellow is left out because a thin yellow line vanishes on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
SOLID_DASHES = ((1, 0), (12, 3), (12, 3, 3, 3), (7, 2), (12, 3, 3, 3, 3, 3), (18, 4), (7, 2, 2, 2))
BROKEN_DASHES = ((5, 4), (2, 3), (5, 3, 2, 3), (3, 5), (1, 2), (6, 6), (2, 6))

THEME: dict[str, Any] = json.loads((files("sottovoce.charts") / "theme.json").read_text())
"""What every chart has in common, as Vega-Lite's own JSON."""

FONT: str = THEME["config"]["font"]
INK: str = THEME["config"]["title"]["color"]
SOFT_INK: str = THEME["config"]["title"]["subtitleColor"]


def domain(values: Sequence[float], log: bool, padding: float) -> tuple[float, float]:
    """The range of an axis that reaches all `values` and a fraction `padding` beyond."""
    low, high = min(values), max(values)
    if log:
        if low == high:
            return low / 2, high * 2
        factor = (high / low) ** padding
        return low / factor, high * factor
    if low == high:
        margin = abs(low) * 0.1 or 1.0
        return low - margin, high + margin
    margin = padding * (high - low)
    # An axis that nearly reaches zero is read as if it did.
    starts_at_zero = padding > 0 and 0 <= low < 0.3 * high
    return (0.0 if starts_at_zero else low - margin), high + margin


def scale(domain: tuple[float, float], log: bool) -> alt.Scale:
    """A scale that shows `domain` exactly."""
    import altair as alt

    if log:
        return alt.Scale(type="log", domain=list(domain), nice=False)
    return alt.Scale(domain=list(domain), zero=False, nice=False)


def axis(title: str, domain: tuple[float, float], log: bool, grid: bool) -> alt.Axis:
    """Ticks that read as numbers (1,000 or 1e-5); raised digits are not in every font."""
    import altair as alt

    if not log:
        return alt.Axis(title=title, grid=grid, tickCount=6, format=",.7~g")
    ticks = log_ticks(*domain)
    plain = all(1e-3 <= tick <= 1e6 for tick in ticks)
    return alt.Axis(title=title, grid=grid, values=ticks, format=",.7~g" if plain else "~e")


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten in [low, high], at most eight; 1, 2, 5 within them where decades are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = [float(f"1e{e}") for e in range(first, last + 1) if low <= float(f"1e{e}") <= high]
    if len(powers) >= 3:
        stride = -(-len(powers) // 8)
        return powers[::stride]
    parts = (1, 2, 5) if high / low > 3 else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
    ticks = [float(f"{part}e{e}") for e in range(first, last + 1) for part in parts]
    inside = [tick for tick in ticks if low <= tick <= high]
    return inside or [low, high]


def palette(lines: int) -> list[str]:
    """One colour a line, in a fixed order."""
    return [PALETTE[i % len(PALETTE)] for i in range(lines)]


def dashes(broken: Sequence[bool]) -> list[list[int]]:
    """One dash pattern a line, all different for up to seven lines of each kind."""
    kinds = {False: iter(SOLID_DASHES * len(broken)), True: iter(BROKEN_DASHES * len(broken))}
    return [list(next(kinds[one])) for one in broken]


def heading(title: str, subtitle: str, width: int) -> alt.TitleParams:
    """Title and subtitle, wrapped to the width of the plot."""
    import altair as alt

    lines = [
        piece
        for line in subtitle.splitlines()
        for piece in textwrap.wrap(line, max(24, round(width / 6.3)))
    ]
    first = textwrap.wrap(title, max(20, round(width / 8.5))) or [""]
    return alt.TitleParams(text=first, subtitle=lines or alt.Undefined)


def styled(chart: Chart) -> Chart:
    """The chart with the project's theme; the menu of the HTML page offers pictures alone."""
    anything: Any = chart
    themed: Chart = anything.properties(**THEME)
    return themed
