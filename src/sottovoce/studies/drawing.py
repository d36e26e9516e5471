"""The pictures of every experiment, drawn from its saved data."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sottovoce.charts import Series, line_chart, panel
from sottovoce.charts.images import image_grid

if TYPE_CHECKING:
    import altair as alt

Data = Mapping[str, Any]
_LAW_LABELS = {
    "uniform": "uniform on [0, 2 mean]",
    "experiment": "(1 - r/k)/k with r uniform on [0, 1], the experiments' law",
}
_RATE_TITLES = {"consensus": "Consensus error", "gradient_norm": "Gradient norm at the mean"}


def draw(name: str, data: Data) -> "dict[str, alt.LayerChart | alt.ConcatChart]":
    """All charts of a study by name; a study without charts has none."""
    makers = _CHARTS.get(name, {})
    return {chart: make(data) for chart, make in makers.items()}


def _band(label: str, x: Any, band: Mapping[str, Any], *, dashed: bool = False) -> Series:
    return Series(label, x, band["mean"], band["low"], band["high"], dashed=dashed)


def _estimation(data: Data) -> "alt.ConcatChart":
    charts = []
    for study in data["scales"]:
        curves = study["curves"]
        rounds = curves["rounds"][1:]
        series = []
        for name in (key.removesuffix(".distance") for key in curves if ".distance" in key):
            band = {key: values[1:] for key, values in curves[f"{name}.distance"].items()}
            band["low"] = [max(0.0, value) for value in band["low"]]
            series.append(_band(name, rounds, band))
        charts.append(
            line_chart(
                series,
                title=f"M uniform on [0, {study['scale']:g}]",
                subtitle=f"mean of {data['runs']:,} runs, 95 % band",
                x_title="round k",
                y_title="distance to the optimum",
                log_x=True,
                log_y=True,
                width=360,
                height=300,
            )
        )
    return panel(charts, columns=len(charts))


def _bound(data: Data) -> "alt.LayerChart":
    kappa = data["kappa"]
    series = [
        Series(_LAW_LABELS[name], data["rounds"], values)
        for name, values in data["entropy_nats"].items()
    ]
    return line_chart(
        series,
        title="Uncertainty left about a gradient entry",
        subtitle=f"h(g | λg) in nats, g uniform on [-{kappa:g}, {kappa:g}]",
        x_title="round k",
        y_title="conditional entropy (nats)",
        log_x=True,
        rules=[(float(np.log(2 * kappa)), "nothing seen: ln 2κ")],
    )


def _rates(data: Data) -> "alt.ConcatChart":
    charts = []
    for metric, title in _RATE_TITLES.items():
        series = []
        for case, curves in data["curves"].items():
            band = {key: values[1:] for key, values in curves[metric].items()}
            series.append(_band(case, curves["rounds"][1:], band))
        rounds, start = series[0].x, series[0].y[0]
        slope = [start * k**-0.5 for k in rounds]
        series.append(Series("slope -1/2", rounds, slope, dashed=True))
        charts.append(
            line_chart(
                series,
                title=title,
                subtitle=f"PDSGD, mean of {data['runs']} runs, 95 % band",
                x_title="round k",
                y_title=title.lower(),
                log_x=True,
                log_y=True,
                width=420,
                height=320,
            )
        )
    return panel(charts, columns=2)


def _mnist(data: Data) -> "alt.LayerChart":
    series = []
    for name, curves in data["results"].items():
        epochs = [round / data["rounds_an_epoch"] for round in curves["rounds"]]
        for kind in ("training", "validation"):
            band = curves[f"{kind}_accuracy"]
            series.append(_band(f"{name}, {kind}", epochs, band, dashed=kind == "validation"))
    return line_chart(
        series,
        title="Accuracy of the agents' models",
        subtitle=f"mean over agents and {data['runs']} runs, 95 % band",
        x_title="epoch",
        y_title="accuracy",
    )


def _noise(data: Data) -> "alt.LayerChart":
    shown = [
        (level, data["results"][f"NoisyDSGD, noise {level:g}"]["validation_accuracy"])
        for level in data["levels"]
        if level > 0
    ]
    levels = [level for level, _ in shown]
    bands = {key: [band[key][-1] for _, band in shown] for key in ("mean", "low", "high")}
    paper = [
        (level, data["paper"][f"{level:g}"][1]) for level in levels if f"{level:g}" in data["paper"]
    ]
    private = data["results"]["PDSGD"]["validation_accuracy"]["mean"][-1]
    return line_chart(
        [
            _band("NoisyDSGD, here", levels, bands),
            Series("NoisyDSGD, paper", [x for x, _ in paper], [y for _, y in paper], dashed=True),
        ],
        title="Validation accuracy under gradient noise",
        subtitle=f"mean of {data['runs']} runs, 95 % band",
        x_title="standard deviation of the noise",
        y_title="validation accuracy",
        log_x=True,
        rules=[(private, "PDSGD, no noise")],
    )


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
        log_x=True,
        log_y=True,
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
        log_x=True,
        log_y=True,
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
            log_y=True,
            rules=[(data["blind"], "blind guess")],
            width=420,
            height=340,
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
            log_x=True,
            rules=[
                (point["accuracy"], f"{point['family']}, {point['law']} law")
                for point in families.get("PDSGD, scalar mixing", [])[:1]
            ],
            width=420,
            height=340,
        )
    )
    return panel(charts, columns=2)


_CHARTS: dict[str, dict[str, Callable[[Data], Any]]] = {
    "estimation": {"estimation": _estimation},
    "bound": {"bound": _bound},
    "rates": {"rates": _rates},
    "mnist": {"mnist": _mnist},
    "noise": {"noise": _noise},
    "frontier": {"frontier": _frontier},
    "leakage": {"leakage-images": _recovered, "leakage-error": _dlg_error},
    "states": {"states": _states},
    "audit": {"audit-images": _audited},
}
