"""The whole story in one command: train, overhear, recover, and show it on a page."""

import os
import secrets
import sys
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import Any

from sottovoce.report.demo.experiment import QUICK, DemoSettings, run
from sottovoce.storage.execution import Execution
from sottovoce.storage.files import write_atomic, write_json
from sottovoce.studies.study import Study, Table

__all__ = ["QUICK", "DemoSettings", "demo_study", "open_page", "write_demo"]


def demo_study(settings: DemoSettings | None = None, execution: Execution | None = None) -> Study:
    """Train with DSGD and PDSGD, overhear the messages, and show on a page what they give away.

    A seed is drawn unless given, and kept in the study so that it can be repeated; the agents of a
    demo have no secrets to keep.
    """
    settings, execution = settings or DemoSettings(), execution or Execution()
    quick = " --quick" if replace(settings, insecure_seed=None) == QUICK else ""
    if settings.insecure_seed is None:
        settings = replace(settings, insecure_seed=secrets.randbits(31))
    data, agents = run(settings, execution), settings.agents
    rows = [
        (
            f"{one['algorithm']}: {one['attack']} + {one['inversion']}",
            f"{moment['round']:,}",
            f"{one['median_error']:.3g}",
            f"{one['labels_right']} of {agents}",
            f"{one['recovered']} of {agents}",
            f"{one['next_recovered']} of {agents}",
        )
        for moment in data["moments"].values()
        for one in moment["attacks"]
    ]
    rows += [
        ("blind guess", f"{moment['round']:,}", f"{error:.3g}", "", "", "")
        for moment in data["moments"].values()
        for error in [moment["blind"]["median_error"]]
    ]
    learned = [
        (name, *(f"{curves[kind]['mean'][-1]:.1%}" for kind in ("training", "validation")), "none")
        for name, curves in data["accuracy"].items()
    ]
    proved = data["guaranteed"]
    scores = (f"{proved[kind]:.1%}" for kind in ("training_accuracy", "accuracy"))
    learned.append(("dp-pdsgd", *scores, f"{proved['epsilon']:.3g}"))
    return Study(
        "demo",
        "Training together, overheard",
        "",
        None,
        _findings(data),
        data,
        f"sottovoce demo{quick} --insecure-seed {settings.insecure_seed}",
        [
            Table(
                f"Accuracy after {data['rounds']:,} rounds, mean of {settings.runs} runs; with a "
                f"proof after {proved['rounds']:,} rounds, one run",
                ("algorithm", "training", "validation", "proved ε"),
                learned,
            ),
            Table(
                "What the eavesdropper recovered, medians over the agents",
                ("attack", "round", "squared error", "labels", "images", "next round’s images"),
                rows,
            ),
        ],
    )


def write_demo(study: Study, folder: str | Path) -> list[Path]:
    """Write `index.html`, `data.json` and the charts as PNG, each in one step; return the paths."""
    from sottovoce.charts import picture
    from sottovoce.report.demo import pictures, story

    folder = Path(folder)
    page, data = folder / "index.html", folder / "data.json"
    write_json(data, study.to_json())
    write_atomic(page, story.page(study.data, study.command).encode())
    written = [page, data]
    for name in ("accuracy", "network", "leak", "bound"):
        written.append(folder / f"{name}.png")
        write_atomic(written[-1], picture(getattr(pictures, name)(study.data), "png"))
    return written


def open_page(path: str | Path) -> bool:
    """Open a page where a graphical browser can be expected; say whether one was asked."""
    seen = sys.platform in ("win32", "darwin") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    return seen and webbrowser.open(Path(path).resolve().as_uri())


def _findings(data: dict[str, Any]) -> list[str]:
    from sottovoce.report.demo.pictures import attack_of

    found = []
    for moment in data["moments"].values():
        plain, private, elimination = (
            attack_of(moment, key)
            for key in ("DSGD conventional", "PDSGD conventional", "PDSGD elimination")
        )
        found.append(
            f"Round {moment['round']:,}: the paper's attacker recovers {plain['recovered']} of "
            f"{len(moment['truth'])} images from DSGD and {private['recovered']} from PDSGD (and "
            f"{private['next_recovered']} that the agents used one round later); elimination "
            f"recovers {elimination['recovered']} from PDSGD."
        )
    proved = data["guaranteed"]
    ranked = proved["identified"]["dp-pdsgd"]
    found.append(
        f"With a proof (dp-pdsgd, ε = {proved['epsilon']:.3g} at δ = {proved['delta']:g} for "
        f"{proved['unit']}, everything overheard): accuracy {proved['accuracy']:.1%}; of "
        f"{ranked['records']} images used in a round {ranked['first']} ranked before all others, "
        f"where the proof permits {proved['permitted']['first']:.1%}."
    )
    return found
