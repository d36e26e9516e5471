"""`sottovoce reproduce ...`: the paper's studies."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from sottovoce import studies
from sottovoce.cli import audit, learn
from sottovoce.cli.options import AsJson, GraphName, InsecureSeed, Out, Runs, Steps, WritePage
from sottovoce.cli.show import (
    finish,
    notes,
    print_json,
    print_table,
    print_written,
    show_progress,
)
from sottovoce.graphs import parse_graph
from sottovoce.studies.everything import INTRO, QUICK, Scale, verdicts
from sottovoce.studies.everything import everything as run_all

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.command("mnist")(learn.mnist)
app.command("noise")(learn.noise)
app.command("leakage")(audit.leakage)
app.command("states")(audit.states)
app.command("frontier")(audit.frontier)
_RESULTS = Path("sottovoce-results")


@app.command()
def estimation(
    steps: Steps = 1000,
    runs: Runs = 1000,
    graph: GraphName = "ring:5",
    scale: Annotated[
        list[float] | None,
        typer.Option(help="Entries of M_i are uniform on [0, scale]; repeatable."),
    ] = None,
    data_seed: Annotated[int, typer.Option(help="Draws M_i, θ and the measurements.")] = 0,
    insecure_seed: InsecureSeed = None,
    out: Out = _RESULTS / "estimation",
    report: WritePage = False,
    as_json: AsJson = False,
) -> None:
    """The convex experiment: PDSGD against DSGD on decentralized estimation."""
    study = studies.estimation(
        steps=steps,
        runs=runs,
        scales=tuple(scale or (0.5, 1.0, 2.0)),
        graph=parse_graph(graph),
        data_seed=data_seed,
        insecure_seed=insecure_seed,
        progress=show_progress(),
    )
    finish(study, out, as_json, report)


@app.command()
def bound(
    kappa: Annotated[float, typer.Option(help="Gradient entries are uniform on [-κ, κ].")] = 5.0,
    last_round: Annotated[int, typer.Option(min=10, help="How far the curve goes.")] = 1000,
    out: Out = _RESULTS / "bound",
    report: WritePage = False,
    as_json: AsJson = False,
) -> None:
    """The information-theoretic bound: the paper's 1.0322 nats, and what becomes of them."""
    finish(studies.bound_study(kappa=kappa, last_round=last_round), out, as_json, report)


@app.command()
def rates(
    steps: Steps = 10_000,
    runs: Runs = 100,
    graph: GraphName = "ring:5",
    insecure_seed: InsecureSeed = None,
    out: Out = _RESULTS / "rates",
    report: WritePage = False,
    as_json: AsJson = False,
) -> None:
    """Measured convergence rates against the remarks' O(k^-1/2)."""
    study = studies.rates(
        steps=steps,
        runs=runs,
        graph=parse_graph(graph),
        insecure_seed=insecure_seed,
        progress=show_progress(),
    )
    finish(study, out, as_json, report)


@app.command("all")
def everything(
    quick: Annotated[
        bool, typer.Option("--quick", help="Minutes: small CNN, shipped images, fewer runs.")
    ] = False,
    model: Annotated[str | None, typer.Option(help="paper or small CNN.")] = None,
    data: Annotated[str | None, typer.Option(help="subset, full or fashion.")] = None,
    data_dir: learn.DataDir = None,
    device: learn.Device = "cpu",
    insecure_seed: InsecureSeed = None,
    out: Out = _RESULTS / "all",
    as_json: AsJson = False,
) -> None:
    """Every figure and table on one page; continues where it was stopped."""
    from sottovoce.report import write_page

    scale = QUICK if quick else Scale()
    studies = run_all(
        out,
        replace(
            scale,
            model=model or scale.model,
            data=data or scale.data,
            data_dir=data_dir,
            device=device,
        ),
        insecure_seed=insecure_seed,
        progress=show_progress(),
        say=lambda text: notes.print(text, markup=False, soft_wrap=True),
    )
    title = "The paper’s experiments, repeated"
    page = write_page(out / "index.html", studies, title=title, intro=INTRO)
    if as_json:
        print_json([study.to_json() for study in studies])
    else:
        print_table(verdicts(studies))
    print_written([page])
