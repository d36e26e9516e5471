"""`sottovoce report` and `sottovoce demo`: pages to look at."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.options import AS_JSON, INSECURE_SEED
from sottovoce.cli.show import print_json, print_study, print_written, say, show_progress


def report(
    results: Annotated[
        list[Path], typer.Argument(help="JSON files of studies, results or audits.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="The page's heading.")] = "What sottovoce found",
    as_json: Annotated[bool, typer.Option("--json", help=AS_JSON)] = False,
) -> None:
    """Write one self-contained HTML page from saved results."""
    from sottovoce.report import load_section, write_page

    sections = [load_section(path) for path in results]
    written = write_page(out, title=title, sections=sections)
    if as_json:
        made_of = zip(results, sections, strict=True)
        listed = [{"file": str(path), "title": section.title} for path, section in made_of]
        print_json({"page": str(written), "title": title, "sections": listed})
    print_written([written])


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page, its data and pictures.")] = Path(
        "sottovoce-demo"
    ),
    open_page: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page where a browser exists.")
    ] = True,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few seconds: too little training to judge.")
    ] = False,
    insecure_seed: Annotated[int | None, typer.Option(help=INSECURE_SEED)] = None,
    as_json: Annotated[bool, typer.Option("--json", help=AS_JSON)] = False,
) -> None:
    """Train with DSGD and PDSGD, eavesdrop, and show on a page what the messages give away."""
    import torch

    from sottovoce.report import demo as story
    from sottovoce.storage.execution import Execution

    # Batches of one image are too small to divide: a second thread only waits for the first.
    torch.set_num_threads(1)
    began = time.monotonic()

    def timed(text: str) -> None:
        passed = int(time.monotonic() - began)
        say(f"[{passed // 60}:{passed % 60:02d}] {text}")

    out.mkdir(parents=True, exist_ok=True)
    settings = replace(story.QUICK if quick else story.DemoSettings(), insecure_seed=insecure_seed)
    study = story.demo_study(settings, Execution(progress=show_progress(), say=timed))
    timed("Writing the page ...")
    written = story.write_demo(study, out)
    print_study(study, as_json, written)
    timed(f"Done. Open {written[0]} in a browser.")
    if open_page and not as_json:
        story.open_page(written[0])
