"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

GraphName = Annotated[
    str, typer.Option("--graph", help="ring:5, grid:3x4, erdos-renyi:20:0.3 or an edge-list file.")
]
Weights = Annotated[
    str,
    typer.Option(
        "--weights", help="metropolis, lazy-metropolis, max-degree, best-constant or a .csv with W."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for data and pictures.")]
Steps = Annotated[int, typer.Option("--steps", min=1, help="Rounds of the algorithm.")]
Runs = Annotated[int, typer.Option("--runs", min=1, help="Independent runs to average over.")]
InsecureSeed = Annotated[
    int | None,
    typer.Option("--insecure-seed", help="Make the private numbers repeatable (studies only)."),
]
WritePage = Annotated[
    bool, typer.Option("--report", help="Write report.html too: all of it on one page.")
]

RuleForW = Annotated[
    str, typer.Option(help="metropolis, lazy-metropolis, max-degree or best-constant.")
]
PrivateStart = Annotated[
    float, typer.Option(help="Standard deviation of private numbers added to the starting point.")
]
