"""`sottovoce demo`: the whole story in one command."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.options import AsJson, InsecureSeed
from sottovoce.cli.show import notes, print_study, show_progress


def demo(
    out: Annotated[
        Path, typer.Option("--out", help="Folder for the page, its data and pictures.")
    ] = (Path("sottovoce-demo")),
    open_page: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page where a browser exists.")
    ] = True,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few seconds, to see the shape.")
    ] = False,
    insecure_seed: InsecureSeed = None,
    as_json: AsJson = False,
) -> None:
    """Train with DSGD and PDSGD, overhear the messages, and show on a page what they give away."""
    import torch

    from sottovoce.report import demo as story
    from sottovoce.storage.execution import Execution

    # Batches of one image are too small to divide: a second thread only waits for the first.
    torch.set_num_threads(1)
    began = time.monotonic()

    def say(text: str) -> None:
        passed = int(time.monotonic() - began)
        notes.print(f"[{passed // 60}:{passed % 60:02d}] {text}", markup=False, soft_wrap=True)

    out.mkdir(parents=True, exist_ok=True)
    settings = replace(story.QUICK if quick else story.DemoSettings(), insecure_seed=insecure_seed)
    study = story.demo_study(settings, Execution(progress=show_progress(), say=say))
    say("Writing the page ...")
    written = story.write_demo(study, out)
    print_study(study, as_json, written)
    say(f"Done. Open {written[0]} in a browser.")
    if open_page and not as_json:
        story.open_page(written[0])
