"""`sottovoce train`: real agents, one process each, on this machine."""

import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli.options import AsJson, GraphName, InsecureSeed, PrivateStart, Weights
from sottovoce.cli.show import answers, print_json


def train(
    agents: Annotated[
        int | None, typer.Option(help="Processes to start; the graph's size unless given.")
    ] = None,
    graph: GraphName = "ring:5",
    algorithm: Annotated[
        str, typer.Option(help="pdsgd, pdsgd:coordinate, zero-sum:0.1, dsgd or noisy-dsgd:0.01.")
    ] = "pdsgd",
    stepsize: Annotated[
        str | None,
        typer.Option(help="Such as uniform:0.3/k; k counts epochs unless block= is given."),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over an agent's data.")] = 5,
    batch_size: Annotated[int, typer.Option(min=1, help="Images in a gradient.")] = 32,
    data: Annotated[str, typer.Option(help="subset, mnist or fashion-mnist.")] = "subset",
    partition: Annotated[
        str, typer.Option(help="Who holds which images: equal, dirichlet:0.5, shards:2.")
    ] = "equal",
    weights: Weights = "metropolis",
    private_start: PrivateStart = 0.0,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder to save to after each epoch and to resume from.")
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often to start all agents anew after a loss.")
    ] = 0,
    timeout: Annotated[
        float, typer.Option(help="Seconds after which a silent agent counts as lost.")
    ] = 60.0,
    insecure_seed: InsecureSeed = None,
    as_json: AsJson = False,
) -> None:
    """Train a CNN on MNIST with one process for each agent, under torchrun on this machine."""
    from sottovoce.distributed.launch import Training
    from sottovoce.distributed.launch import train as start

    training = Training(
        graph=graph,
        algorithm=algorithm,
        stepsize=stepsize,
        epochs=epochs,
        batch_size=batch_size,
        data=data,
        partition=partition,
        weights=weights,
        private_start=private_start,
        checkpoint=str(checkpoint.absolute()) if checkpoint else None,
        timeout=timeout,
        insecure_seed=insecure_seed,
    )

    def show(report: dict[str, Any]) -> None:
        if not as_json:
            answers.print(
                f"epoch {report['epoch']:>3}  agent {report['agent']:>3}  "
                f"accuracy {report['accuracy']:.3f}"
            )

    # Whatever ends this process stops the agents, which the terminal's signals do not reach.
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        signal.signal(number, signal.default_int_handler)
    result = start(training, agents=agents, max_restarts=max_restarts, heard=show)
    if as_json:
        print_json(result)
