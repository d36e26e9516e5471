"""`sottovoce reproduce mnist` and `noise`: the paper's CNN."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from sottovoce import studies
from sottovoce.cli.options import (
    AsJson,
    GraphName,
    InsecureSeed,
    Out,
    PrivateStart,
    Runs,
    WritePage,
)
from sottovoce.cli.show import finish, notes, show_progress
from sottovoce.graphs import parse_graph
from sottovoce.studies import Study, Training

Model = Annotated[str, typer.Option(help="paper (1,676,266 parameters) or small (19,430).")]
Data = Annotated[
    str, typer.Option(help="subset (shipped), full (MNIST) or fashion (Fashion-MNIST).")
]
Activation = Annotated[str, typer.Option(help="sigmoid, relu or tanh.")]
Epochs = Annotated[int, typer.Option(min=1, help="Passes over an agent's data.")]
Batch = Annotated[int, typer.Option("--batch-size", min=1, help="Samples in a gradient.")]
Scale = Annotated[float, typer.Option(help="c in the stepsize c/k.")]
Schedule = Annotated[str, typer.Option(help="What k counts: epoch or iteration.")]
Partition = Annotated[
    str, typer.Option(help="equal, dirichlet:0.5, shards:2 or counts:100,200,...")
]
DataDir = Annotated[str | None, typer.Option(help="Folder of IDX files (or set SOTTOVOCE_DATA).")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Precision = Annotated[str, typer.Option(help="Of activations: float32 or, quicker, bfloat16.")]
Piece = Annotated[
    int | None,
    typer.Option(min=1, help="Finish and keep so many runs at a time, for very many runs."),
]
Resume = Annotated[
    bool, typer.Option("--resume/--fresh", help="Continue a stopped run with the same options.")
]


def _command(
    experiment: Callable[..., Study], default_runs: int, default_out: Path, help: str
) -> Callable[..., None]:
    """A command that trains: all of them take the same options."""

    def run(
        model: Model = "small",
        data: Data = "subset",
        activation: Activation = "sigmoid",
        epochs: Epochs = 10,
        batch: Batch = 8,
        scale: Scale = 0.5,
        schedule: Schedule = "epoch",
        partition: Partition = "equal",
        private_start: PrivateStart = 0.0,
        runs: Runs = default_runs,
        graph: GraphName = "ring:5",
        data_dir: DataDir = None,
        device: Device = "cpu",
        precision: Precision = "float32",
        piece: Piece = None,
        insecure_seed: InsecureSeed = None,
        resume: Resume = True,
        out: Out = default_out,
        report: WritePage = False,
        as_json: AsJson = False,
    ) -> None:
        training = Training(
            model=model,
            data=data,
            activation=activation,
            epochs=epochs,
            batch=batch,
            scale=scale,
            schedule=schedule,  # type: ignore[arg-type]
            partition=partition,
            private_start=private_start,
            data_dir=data_dir,
            device=device,
            precision=precision,  # type: ignore[arg-type]
        )
        study = experiment(
            training,
            graph=parse_graph(graph),
            runs=runs,
            insecure_seed=insecure_seed,
            checkpoint=_checkpoint(out, resume),
            piece=piece,
            progress=show_progress(),
        )
        finish(study, out, as_json, report)
        shutil.rmtree(out / "checkpoint")

    run.__doc__ = help
    return run


def _checkpoint(out: Path, resume: bool) -> Path:
    folder = out / "checkpoint"
    if folder.exists() and not resume:
        shutil.rmtree(folder)
    elif folder.exists():
        notes.print(f"continuing from {folder}", style="dim", soft_wrap=True)
    return folder


mnist = _command(
    studies.mnist,
    5,
    Path("sottovoce-results/mnist"),
    "The CNN experiment: PDSGD against DSGD, training and validation accuracy.",
)
noise = _command(
    studies.noise,
    3,
    Path("sottovoce-results/noise"),
    "Table I: accuracy of NoisyDSGD under noise 0, 1e-4, ..., 1 beside PDSGD's.",
)
