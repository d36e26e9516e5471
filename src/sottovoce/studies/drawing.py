"""The pictures of the studies of leakage, drawn from their saved data."""

from typing import TYPE_CHECKING, Any

from sottovoce.charts import Series, line_chart, panel
from sottovoce.charts.images import image_grid
from sottovoce.studies.leakage import leakage_study
from sottovoce.studies.study import Data, Kind, register

if TYPE_CHECKING:
    import altair as alt


def _recovered(data: Data) -> "alt.LayerChart":
    return image_grid(
        data["images"],
        title="What the eavesdropper recovers",
        subtitle=f"one image a batch, round {data['round']}; every column is one target",
    )


def _dlg_error(data: Data) -> "alt.LayerChart":
    series = []
    for row in data["rows"]:
        if row["trace"] and row["adversary"] != "control":
            low, middle, high = zip(*row["trace"], strict=True)
            steps = [step + 1 for step in data["trace"]]
            series.append(Series(row["name"], steps, middle, low, high))
    return line_chart(
        series,
        title="Error of the recovered image over the attacker's iterations",
        subtitle=f"summed squared error, median and quartiles of {data['targets']} images",
        x_title="iteration + 1",
        y_title="summed squared error",
        log="xy",
        rules=[(data["blind"], "blind guess")],
    )


def _states(data: Data) -> "alt.LayerChart":
    series = [
        Series(data["labels"][name], data["rounds"], errors)
        for name, errors in data["errors"].items()
    ]
    return line_chart(
        series,
        title="What observers know of an agent's state",
        subtitle="error divided by the distance of the state from the public start",
        x_title="round k",
        y_title="relative error",
        log="xy",
        rules=[(1.0, "nothing seen")],
    )


def _audited(data: Data) -> "alt.LayerChart":
    return image_grid(
        data["images"],
        title="What the adversary recovers",
        subtitle="every column is one target; the lowest rows are the controls and the blind guess",
    )


def _frontier(data: Data) -> "alt.ConcatChart":
    families: dict[str, list[Any]] = {}
    for point in data["points"]:
        families.setdefault(point["family"], []).append(point)
    charts = [
        line_chart(
            [
                Series(
                    family,
                    [point["accuracy"] for point in points],
                    [point["attacks"][who]["error"] for point in points],
                )
                for family, points in families.items()
            ],
            title=f"Against {'an' if who == 'eavesdropper' else ''} {who}".replace("  ", " "),
            subtitle="best attack; above the line it does worse than a blind guess",
            x_title="validation accuracy",
            y_title="error of the recovered image",
            log="y",
            rules=[(data["blind"], "blind guess")],
            size=(420, 340),
        )
        for who in data["points"][0]["attacks"]
    ]
    noisy = {
        family: [point for point in points if point["effective_noise"]]
        for family, points in families.items()
    }
    charts.append(
        line_chart(
            [
                Series(
                    family,
                    [point["effective_noise"] for point in points],
                    [point["accuracy"] for point in points],
                    [point["low"] for point in points],
                    [point["high"] for point in points],
                )
                for family, points in noisy.items()
                if points
            ],
            title="Accuracy at equal effective noise",
            subtitle=f"mean and range of {data['sizes']['runs']} runs",
            x_title="noise left on a gradient for an eavesdropper who knows nothing of it",
            y_title="validation accuracy",
            log="x",
            rules=[
                (point["accuracy"], f"{point['family']}, {point['law']} law")
                for point in families.get("PDSGD, scalar mixing", [])[:1]
            ],
            size=(420, 340),
        )
    )
    return panel(charts, columns=2)


register(Kind("frontier", {"frontier": _frontier}))
register(
    Kind(
        "leakage",
        {"leakage-images": _recovered, "leakage-error": _dlg_error},
        run=leakage_study,
    )
)
register(Kind("states", {"states": _states}))
register(Kind("audit", {"audit-images": _audited}))
