"""`sottovoce audit` and `sottovoce reproduce leakage`: what an observer of the messages learns."""

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.options import (
    AsJson,
    GraphName,
    InsecureSeed,
    Out,
    PrivateStart,
    RuleForW,
    Runs,
    WritePage,
)
from sottovoce.cli.show import finish, notes, show_progress
from sottovoce.errors import AttackError
from sottovoce.graphs import parse_graph
from sottovoce.mechanisms import parse_algorithm
from sottovoce.privacy.adversaries import parse_adversary
from sottovoce.privacy.attacks import attack_named
from sottovoce.privacy.auditor.scores import THRESHOLD, Effort, Row
from sottovoce.privacy.auditor.targets import Recorded
from sottovoce.privacy.readers import Search
from sottovoce.stepsizes import parse_stepsize
from sottovoce.studies import frontier as frontiers
from sottovoce.studies import hidden_states
from sottovoce.studies import leakage as leaks
from sottovoce.studies.audited import AuditSettings, audit_images
from sottovoce.studies.frontier import LEVELS, Sizes
from sottovoce.studies.leakage import row_line

Model = Annotated[str, typer.Option(help="paper (1,676,266 parameters) or small (19,430).")]
Weights = Annotated[
    str | None,
    typer.Option(help="Starting weights: trainable (standardised pixels) or glorot:4."),
]
Targets = Annotated[int, typer.Option(min=1, help="How many (run, agent) pairs to attack.")]
Iterations = Annotated[int, typer.Option(min=1, help="L-BFGS steps of an inversion.")]
Warmup = Annotated[
    int | None, typer.Option(min=0, help="Adam steps before them; by default as the model asks.")
]
Restarts = Annotated[int, typer.Option(min=1, help="Starting points of an inversion.")]
Data = Annotated[str, typer.Option(help="subset (shipped), mnist or fashion-mnist.")]
DataDir = Annotated[str | None, typer.Option(help="Folder of IDX files (or set SOTTOVOCE_DATA).")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Epochs = Annotated[int, typer.Option(min=1, help="Passes over an agent's data.")]
_ROWS = "finished-rows"


def audit(
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            help="dsgd, pdsgd:coordinate, noisy-dsgd:0.01, zero-sum:0.1, ...; repeatable."
        ),
    ] = None,
    stepsize: Annotated[
        str, typer.Option(help="Law and schedule: experiment:0.1/k, uniform:0.1/k.")
    ] = "experiment:0.1/k",
    adversary: Annotated[
        list[str] | None, typer.Option(help="eavesdropper or agents:1,3; repeatable.")
    ] = None,
    knows: Annotated[
        list[str] | None, typer.Option(help="Side information: state, stepsizes; repeatable.")
    ] = None,
    attack: Annotated[
        list[str] | None, typer.Option(help="An attack by name; all unless given; repeatable.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Inversions, such as dlg or projection; all that suit unless given."),
    ] = None,
    controls: Annotated[bool, typer.Option(help="Attack the exact gradient and noise too.")] = True,
    model: Model = "small",
    weights: Weights = None,
    data: Data = "subset",
    data_dir: DataDir = None,
    graph: GraphName = "ring:5",
    mixing_weights: RuleForW = "metropolis",
    private_start: PrivateStart = 0.0,
    batch: Annotated[int, typer.Option("--batch-size", min=1, help="Images in a gradient.")] = 1,
    targets: Targets = 8,
    rounds: Annotated[str, typer.Option(help="Rounds to attack: 50 or 1,10,50.")] = "50",
    iterations: Iterations = 200,
    warmup: Warmup = None,
    restarts: Restarts = 2,
    threshold: Annotated[
        float, typer.Option(help="Summed squared error below which an image counts as recovered.")
    ] = THRESHOLD,
    load: Annotated[
        Path | None, typer.Option(help="Attack a recording that --save wrote, not a fresh run.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Keep the recording here; it holds every secret.")
    ] = None,
    device: Device = "cpu",
    insecure_seed: InsecureSeed = None,
    out: Out = Path("sottovoce-results/audit"),
    report: WritePage = False,
    as_json: AsJson = False,
) -> None:
    """Train, record the messages, attack them in every way the adversary can, and say what leaked.

    A stopped audit goes on where it was when the same command is given again.
    """
    network = parse_graph(graph, mixing_weights)
    settings = AuditSettings(
        algorithms=tuple(parse_algorithm(text) for text in algorithm or ["pdsgd"]),
        stepsize=parse_stepsize(stepsize),
        adversaries=tuple(
            parse_adversary(text, knows or ()) for text in adversary or ["eavesdropper"]
        ),
        attacks=None if attack is None else tuple(attack_named(name) for name in attack),
        rounds=_whole_numbers(rounds),
        targets=targets,
        effort=Effort(
            Search(iterations=iterations, warmup=warmup, restarts=restarts),
            None if method is None else tuple(method),
            threshold,
            controls,
            confined=model == "paper",
        ),
        private_start=private_start,
    )
    study = audit_images(
        settings,
        graph=network,
        model=model,
        weights=weights,
        batch=batch,
        data=data,
        data_dir=data_dir,
        device=device,
        recorded=None if load is None else Recorded.load(load),
        save=save,
        folder=out / _ROWS,
        insecure_seed=insecure_seed,
        progress=show_progress(),
        report=_say,
    )
    finish(study, out, as_json, report)


def leakage(
    model: Model = "small",
    weights: Weights = None,
    round: Annotated[int, typer.Option(min=1, help="Which round to attack.")] = 50,
    targets: Targets = 16,
    iterations: Iterations = 300,
    warmup: Warmup = None,
    restarts: Restarts = 2,
    scale: Annotated[float | None, typer.Option(help="c in the mean stepsize c/k.")] = None,
    data: Data = "subset",
    data_dir: DataDir = None,
    graph: GraphName = "ring:5",
    device: Device = "cpu",
    insecure_seed: InsecureSeed = None,
    out: Out = Path("sottovoce-results/leakage"),
    report: WritePage = False,
    as_json: AsJson = False,
) -> None:
    """The attack figures: images recovered under DSGD and PDSGD, and the error over iterations."""
    study = leaks.leakage(
        model,
        graph=parse_graph(graph),
        round=round,
        targets=targets,
        iterations=iterations,
        warmup=warmup,
        restarts=restarts,
        scale=scale,
        weights=weights,
        data=data,
        data_dir=data_dir,
        device=device,
        insecure_seed=insecure_seed,
        folder=out / _ROWS,
        progress=show_progress(),
        report=lambda line: notes.print(line, style="dim", markup=False, soft_wrap=True),
    )
    finish(study, out, as_json, report)


def states(
    scale: Annotated[float, typer.Option(help="c in the mean stepsize c/k.")] = 0.1,
    graph: GraphName = "ring:5",
    insecure_seed: InsecureSeed = None,
    out: Out = Path("sottovoce-results/states"),
    as_json: AsJson = False,
) -> None:
    """The remark that states stay hidden until consensus: what observers know of them."""
    study = hidden_states.states(
        graph=parse_graph(graph),
        scale=scale,
        insecure_seed=insecure_seed,
        progress=show_progress(),
    )
    finish(study, out, as_json)


def frontier(
    level: Annotated[
        list[float] | None,
        typer.Option(help="Effective noise of the settings with noise; repeatable."),
    ] = None,
    runs: Runs = 3,
    epochs: Epochs = 10,
    targets: Targets = 16,
    iterations: Iterations = 200,
    restarts: Restarts = 2,
    part: Annotated[
        str, typer.Option(help="2/4 does the second quarter; run all four with one --out.")
    ] = "1/1",
    insecure_seed: Annotated[int, typer.Option(help="Draws everything.")] = 0,
    out: Out = Path("sottovoce-results/frontier"),
    report: WritePage = False,
    as_json: AsJson = False,
) -> None:
    """What protection costs: accuracy against the best attack's error, algorithm by algorithm.

    An hour or two on one core; finished pieces are kept, and parts can run side by side.
    """
    first, _, last = part.partition("/")
    if not (first.isdecimal() and last.isdecimal()):
        raise AttackError(f"part {part!r} is not understood; accepted: 1/1, 2/4, ...")
    study = frontiers.frontier(
        level or LEVELS,
        Sizes(runs=runs, epochs=epochs, targets=targets, iterations=iterations, restarts=restarts),
        folder=out / "pieces",
        part=(int(first), int(last)),
        insecure_seed=insecure_seed,
        progress=show_progress(),
        report=lambda line: notes.print(line, style="dim", markup=False, soft_wrap=True),
    )
    finish(study, out, as_json, report)


def _say(row: Row) -> None:
    notes.print(row_line(row), style="dim", markup=False, soft_wrap=True)


def _whole_numbers(text: str) -> tuple[int, ...]:
    parts = text.replace(" ", "").split(",")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise AttackError(f"rounds {text!r} are not usable; accepted: 50 or 1,10,50")
    return tuple(int(part) for part in parts)
