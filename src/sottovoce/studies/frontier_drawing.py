"""The frontier's picture: what attacks get against accuracy, and accuracy at equal noise."""

from typing import TYPE_CHECKING, Any

from sottovoce.charts import Series, banded, line_chart, panel
from sottovoce.studies.study import Chart, Data

if TYPE_CHECKING:
    import altair as alt


def frontier_chart(data: Data) -> Chart:
    """Five charts: identification for each adversary, membership, error, accuracy by noise."""
    families: dict[str, list[Data]] = {}
    for point in data["points"]:
        families.setdefault(point["family"], []).append(point)

    def against(who: str, key: str, **drawn: Any) -> "alt.LayerChart":
        shown = {
            family: [point for point in points if point["attacks"][who][key] is not None]
            for family, points in families.items()
        }
        lines = [
            Series(
                family,
                [point["accuracy"] for point in points],
                [point["attacks"][who][key] for point in points],
            )
            for family, points in shown.items()
            if points
        ]
        return line_chart(lines, x_title="validation accuracy", size=(420, 340), **drawn)

    charts = [
        against(
            who,
            "top1",
            title=f"Identified by {'an ' * (who == 'eavesdropper')}{who}",
            subtitle="best of all attacks; protection lies below, accuracy to the right",
            y_title=f"true record first among {data['sizes']['candidates']:,}",
        )
        for who in data["points"][0]["attacks"]
    ]
    charts.append(
        against(
            "eavesdropper",
            "auc",
            title="Membership, eavesdropper",
            subtitle="best of all attacks on one round",
            y_title="AUC",
            rules=[(0.5, "chance")],
        )
    )
    charts.append(
        against(
            "eavesdropper",
            "error",
            title="Rebuilt images, eavesdropper",
            subtitle="best attack; above the line it does worse than a blind guess",
            y_title="error of the rebuilt image",
            log="y",
            rules=[(data["blind"], "blind guess")],
        )
    )
    plain = families.get("PDSGD, scalar mixing", [])[:1]
    edges = {"mean": "accuracy", "low": "low", "high": "high"}
    equal_noise = line_chart(
        [
            banded(
                family,
                [point["effective_noise"] for point in points],
                {edge: [point[name] for point in points] for edge, name in edges.items()},
            )
            for family, points in families.items()
            if points[0]["effective_noise"]
        ],
        title="Accuracy at equal effective noise",
        subtitle=f"mean and range of {data['sizes']['runs']} runs",
        x_title="noise left on a gradient for an eavesdropper who knows nothing of it",
        y_title="validation accuracy",
        log="x",
        rules=[(one["accuracy"], f"{one['family']}, {one['law']} law") for one in plain],
        size=(420, 340),
    )
    return panel([*charts, equal_noise])
