"""The demo's charts, drawn from its data alone."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sottovoce.charts import Series, line_chart, panel
from sottovoce.charts.style import FONT, INK, PALETTE, SOFT_INK, heading, styled
from sottovoce.studies.study import draw

if TYPE_CHECKING:
    import altair as alt

Data = Mapping[str, Any]
COLUMNS = (
    ("truth", "the agent's image"),
    ("DSGD conventional", "from DSGD, by the paper's attacker"),
    ("PDSGD conventional", "from PDSGD, by the paper's attacker"),
    ("PDSGD elimination", "from PDSGD, by elimination"),
    ("blind", "blind guess"),
)
_SIDE = 96
Shown = tuple[str, float | None, int | None]
"""An agent's picture, its error and its label."""


def accuracy(data: Data) -> "alt.LayerChart":
    """Validation accuracy of both algorithms over rounds, with the range of the runs."""
    series = [
        Series(name, curves["rounds"], *(curves["validation"][k] for k in ("mean", "low", "high")))
        for name, curves in sorted(data["accuracy"].items(), reverse=True)
    ]
    return line_chart(
        series,
        title="Validation accuracy of the agents' models",
        subtitle=f"mean of {data['size']['runs']} runs; "
        "the band reaches from the lowest to the highest run",
        x_title="round",
        y_title="validation accuracy",
        size=(680, 340),
    )


def bound(data: Data) -> "alt.LayerChart | alt.ConcatChart":
    """The uncertainty that each stepsize law leaves."""
    return draw("bound", data["bound"])["bound"]


def network(data: Data) -> "alt.ConcatChart":
    """Both rings; every link shows which part of the sender's step its message carries."""
    return panel([_ring(name, links) for name, links in data["links"].items()], columns=2)


def _ring(name: str, links: list[dict[str, Any]]) -> "alt.LayerChart":
    import altair as alt

    agents = 1 + max(link["from"] for link in links)
    angle = [math.pi / 2 - 2 * math.pi * agent / agents for agent in range(agents)]
    place = [(math.cos(a), math.sin(a)) for a in angle]
    edges, labels, heads = [], [], []
    for link in links:
        (x, y), (x2, y2) = place[link["from"]], place[link["to"]]
        length = math.hypot(x2 - x, y2 - y)
        along = ((x2 - x) / length, (y2 - y) / length)
        # Two messages cross every link; each keeps to its left.
        aside = (-0.06 * along[1], 0.06 * along[0])
        start = [p + 0.2 * u + s for p, u, s in zip((x, y), along, aside, strict=True)]
        end = [p - 0.2 * u + s for p, u, s in zip((x2, y2), along, aside, strict=True)]
        middle = [(p + q) / 2 + 2.4 * s for p, q, s in zip(start, end, aside, strict=True)]
        facts = {
            "from": f"agent {link['from']}",
            "to": f"agent {link['to']}",
            **{k: link[k] for k in ("numbers", "norm", "away", "share", "alone")},
        }
        edges.append({**facts, "x": start[0], "y": start[1], "x2": end[0], "y2": end[1]})
        heads.append(
            {"x": end[0], "y": end[1], "angle": 90 - math.degrees(math.atan2(*along[::-1]))}
        )
        labels.append({"x": middle[0], "y": middle[1], "text": f"{link['share']:.0%}"})
    nodes = [{"x": x, "y": y, "text": str(agent)} for agent, (x, y) in enumerate(place)]
    both = alt.Scale(domain=[-1.32, 1.32], nice=False, zero=False)
    x, y = alt.X("x:Q", scale=both, axis=None), alt.Y("y:Q", scale=both, axis=None)
    tooltip = [
        alt.Tooltip("from:N", title="from"),
        alt.Tooltip("to:N", title="to"),
        alt.Tooltip("numbers:Q", title="numbers sent", format=","),
        alt.Tooltip("norm:Q", title="length of the message", format=".4g"),
        alt.Tooltip("share:Q", title="part of the step in it", format=".1%"),
        alt.Tooltip("away:Q", title="distance from the model", format=".2%"),
        alt.Tooltip("alone:Q", title="cosine with the gradient", format=".3f"),
    ]
    colour = PALETTE[1] if name == "DSGD" else PALETTE[0]
    lines = alt.Chart(alt.InlineData(values=edges)).encode(x=x, y=y, x2="x2:Q", y2="y2:Q")
    points = alt.Chart(alt.InlineData(values=heads)).encode(x=x, y=y)
    circles = alt.Chart(alt.InlineData(values=nodes)).encode(x=x, y=y)
    layers = [
        lines.mark_rule(color=colour, strokeWidth=1.8),
        points.mark_point(shape="triangle", filled=True, size=70, color=colour, opacity=1).encode(
            angle=alt.Angle("angle:Q", scale=None)
        ),
        circles.mark_circle(size=900, color=INK, opacity=1),
        circles.mark_text(color="white", fontSize=14, fontWeight="bold", font=FONT).encode(
            text="text:N"
        ),
        alt.Chart(alt.InlineData(values=labels))
        .mark_text(color=SOFT_INK, fontSize=12, font=FONT)
        .encode(x=x, y=y, text="text:N"),
        lines.mark_rule(strokeWidth=16, opacity=0.001, color=colour).encode(tooltip=tooltip),
    ]
    said = "messages carry the model alone" if name == "DSGD" else "each message hides a share"
    title = heading(name, f"part of the sender's step in each message: {said}", 390)
    return styled(alt.LayerChart(layer=layers, width=390, height=390, title=title))


def leak(data: Data) -> "alt.LayerChart":
    """The strip of images of the late round as one picture."""
    import altair as alt

    moment = data["moments"]["late"]
    rows = []
    for column, (key, _) in enumerate(COLUMNS):
        for agent, (picture, error, _) in enumerate(column_of(moment, key)):
            shown = {"column": column, "agent": agent, "url": f"data:image/png;base64,{picture}"}
            rows.append(shown | {"text": _caption(moment, key, agent, error)})
    names = [{"column": at, "text": name.split(", ")} for at, (_, name) in enumerate(COLUMNS)]
    agents = [{"agent": agent, "text": f"agent {agent}"} for agent in range(len(moment["truth"]))]
    step, tall = _SIDE + 44, _SIDE + 48
    width, height = step * len(COLUMNS), tall * len(agents)
    x = alt.X("column:Q", scale=alt.Scale(domain=[-0.5, len(COLUMNS) - 0.5], nice=False), axis=None)
    down = alt.Scale(domain=[len(agents) - 0.5, -0.5], nice=False)
    y = alt.Y("agent:Q", scale=down, axis=None)
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y)
    quiet: dict[str, Any] = {"color": SOFT_INK, "fontSize": 13, "font": FONT}
    layers = [
        base.mark_image(width=_SIDE, height=_SIDE).encode(url="url:N"),
        base.mark_text(dy=_SIDE / 2 + 6, baseline="top", **quiet).encode(text="text:N"),
        alt.Chart(alt.InlineData(values=names))
        .mark_text(baseline="bottom", lineBreak="\n", color=INK, fontSize=13, font=FONT)
        .encode(x=x, y=alt.value(-4), text="text:N"),
        alt.Chart(alt.InlineData(values=agents))
        .mark_text(align="right", **quiet)
        .encode(x=alt.value(4), y=y, text="text:N"),
    ]
    title = heading(
        "What an eavesdropper recovers from the messages",
        f"one image a gradient, round {moment['round']:,}; error: summed squared error",
        width,
    )
    return styled(alt.LayerChart(layer=layers, width=width, height=height, title=title))


def _caption(moment: Data, key: str, agent: int, error: float | None) -> list[str]:
    if error is None:
        return [f"label {moment['labels'][agent]}"]
    lines = [f"error {error:.3g}"]
    if key != "blind":
        found = attack_of(moment, key)
        if found["next_found"][agent] and not found["found"][agent]:
            lines.append(f"its next image: {found['next_errors'][agent]:.3g}")
    return lines


def column_of(moment: Data, key: str) -> list[Shown]:
    """Picture, error and label of every agent in one column of the strip."""
    count = len(moment["truth"])
    if key == "truth":
        return list(zip(moment["truth"], [None] * count, moment["labels"], strict=True))
    if key == "blind":
        blind = moment["blind"]
        return list(zip([blind["image"]] * count, blind["errors"], [None] * count, strict=True))
    found = attack_of(moment, key)
    return list(zip(found["images"], found["errors"], found["labels"], strict=True))


def attack_of(moment: Data, key: str) -> dict[str, Any]:
    """What the search by projection found after `<algorithm> <attack>`."""
    return dict(moment["attacks"][attack_number(moment, key)])


def attack_number(moment: Data, key: str) -> int:
    """Where that attack stands in the moment's list."""
    names = ["{algorithm} {attack} {inversion}".format_map(one) for one in moment["attacks"]]
    return names.index(f"{key} projection")
