"""`sottovoce reproduce ...`: the paper's experiments."""

from pathlib import Path
from typing import Annotated

import typer

from sottovoce import experiments
from sottovoce.cli import audit, learn
from sottovoce.cli.options import AsJson, GraphName, InsecureSeed, Out, Runs, Steps
from sottovoce.cli.show import finish, show_progress
from sottovoce.graphs import parse_graph

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.command("mnist")(learn.mnist)
app.command("noise")(learn.noise)
app.command("leakage")(audit.leakage)
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
    as_json: AsJson = False,
) -> None:
    """The convex experiment: PDSGD against DSGD on decentralized estimation."""
    study = experiments.estimation(
        steps=steps,
        runs=runs,
        scales=tuple(scale or (0.5, 1.0, 2.0)),
        graph=parse_graph(graph),
        data_seed=data_seed,
        insecure_seed=insecure_seed,
        progress=show_progress(),
    )
    finish(study, out, as_json)


@app.command()
def bound(
    kappa: Annotated[float, typer.Option(help="Gradient entries are uniform on [-κ, κ].")] = 5.0,
    last_round: Annotated[int, typer.Option(min=10, help="How far the curve goes.")] = 1000,
    out: Out = _RESULTS / "bound",
    as_json: AsJson = False,
) -> None:
    """The information-theoretic bound: the paper's 1.0322 nats, and what becomes of them."""
    finish(experiments.bound_study(kappa=kappa, last_round=last_round), out, as_json)


@app.command()
def rates(
    steps: Steps = 10_000,
    runs: Runs = 100,
    graph: GraphName = "ring:5",
    insecure_seed: InsecureSeed = None,
    out: Out = _RESULTS / "rates",
    as_json: AsJson = False,
) -> None:
    """Measured convergence rates against the remarks' O(k^-1/2)."""
    study = experiments.rates(
        steps=steps,
        runs=runs,
        graph=parse_graph(graph),
        insecure_seed=insecure_seed,
        progress=show_progress(),
    )
    finish(study, out, as_json)
