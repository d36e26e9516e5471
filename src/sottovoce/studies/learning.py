"""The paper's second experiment: training a CNN on MNIST, and its table of noise levels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sottovoce.errors import ProblemError
from sottovoce.graphs import Graph, ring
from sottovoce.mechanisms import DSGD, PDSGD, Algorithm, NoisyDSGD
from sottovoce.problems import ModuleProblem
from sottovoce.simulation.options import Options
from sottovoce.simulation.pieces import pieces_of, simulate_in_pieces
from sottovoce.simulation.result import Result
from sottovoce.simulation.runner import simulate
from sottovoce.stepsizes import Deterministic, Experiment, Law
from sottovoce.studies.noise_attack import PAPER_DLG_ERRORS, noise_attack
from sottovoce.studies.study import Study, Table
from sottovoce.studies.training import DATA, Training

MNIST_CLAIM = (
    "The proposed algorithm has a faster converging speed as well as a slightly better "
    "training/validation accuracy than conventional decentralized SGD."
)
NOISE_CLAIM = (
    "To combat DLG, noise on the level of 1e-2 is needed, which significantly compromises training "
    "and validation accuracy; the proposed algorithm sacrifices neither."
)
PAPER_TABLE = {
    0.0: (0.9877, 0.9879),
    1e-4: (0.9823, 0.9871),
    1e-3: (0.7810, 0.7870),
    1e-2: (0.0999, 0.0993),
    1e-1: (0.0995, 0.0992),
    1.0: (0.0995, 0.0993),
}
"""Table I of the paper: noise -> (training accuracy, validation accuracy)."""

_Case = tuple[str, Algorithm, Law]
"""What is trained: its name in the study, the algorithm and the law of its stepsizes."""

_METRICS = ("training_accuracy", "validation_accuracy")


def mnist(
    training: Training | None = None,
    *,
    graph: Graph | None = None,
    runs: int = 5,
    insecure_seed: int | None = None,
    checkpoint: str | Path | None = None,
    piece: int | None = None,
    progress: bool = False,
) -> Study:
    """PDSGD against DSGD: training and validation accuracy over epochs, mean of all runs.

    piece: how many runs to finish and keep at a time, instead of keeping states of all.
    """
    training, graph = training or Training(), graph or ring(5)
    options = f"{training.command_options()} --runs {runs} --graph {graph.name}"
    data, validation, held = training.portions(graph.agents)
    problem = training.problem(data, validation)
    cases: list[_Case] = [
        ("PDSGD", PDSGD(), Experiment()),
        ("DSGD", DSGD(), Deterministic()),
    ]
    found = _train(
        problem, cases, graph, training, runs, insecure_seed, checkpoint, piece, progress
    )
    ours, theirs = (found[name].metric("validation_accuracy")[-1] for name in ("PDSGD", "DSGD"))
    gap = float(ours.mean() - theirs.mean())
    spread = _half_width(ours) + _half_width(theirs)
    verdict = "above" if gap > spread else "below" if gap < -spread else "not distinguishable from"
    judged = f": PDSGD is {verdict} DSGD" if runs > 1 else "; one run tells nothing of the spread"
    findings = [
        f"After {training.epochs} epochs PDSGD's validation accuracy is {_shown(ours)} and DSGD's "
        f"{_shown(theirs)} ({runs} runs, mean ± 95 %){judged}.",
        _halfway(found),
    ]
    if training.schedule == "iteration":
        findings.append(
            "Here k counts iterations: the stepsize has fallen below 1/100 before the agents have "
            "seen a small part of their data, and learning all but stops. Counting epochs keeps "
            "the theorems' conditions and lets the network learn."
        )
    rows = [
        (
            name,
            *(_shown(result.metric(metric)[-1]) for metric in _METRICS),
            f"{result.metric('consensus')[-1].mean():.3g}",
        )
        for name, result in found.items()
    ]
    return Study(
        "mnist",
        "Decentralized training of a CNN on MNIST: PDSGD against DSGD",
        MNIST_CLAIM,
        True if gap >= 0 else None,
        findings,
        {
            **_facts(training, graph, problem, runs, insecure_seed),
            "results": {name: _curves(result, problem) for name, result in found.items()},
        },
        f"sottovoce reproduce mnist {options}",
        [
            Table(
                f"After {training.epochs} epochs, mean of {runs} runs ± 95 %",
                ("algorithm", "training accuracy", "validation accuracy", "consensus error"),
                rows,
            ),
            held,
        ],
    )


def noise(
    training: Training | None = None,
    *,
    graph: Graph | None = None,
    levels: Sequence[float] = tuple(PAPER_TABLE),
    attacked: int = 8,
    runs: int = 3,
    insecure_seed: int | None = None,
    checkpoint: str | Path | None = None,
    piece: int | None = None,
    progress: bool = False,
) -> Study:
    """Table I: accuracies of NoisyDSGD under growing noise, and the attacker's error.

    attacked: how many images the attacker tries to recover at each level; 0 leaves it out. piece:
    see `mnist`.
    """
    training, graph = training or Training(), graph or ring(5)
    options = f"{training.command_options()} --runs {runs} --graph {graph.name}"
    data, validation, _ = training.portions(graph.agents)
    problem = training.problem(data, validation)
    cases: list[_Case] = [
        (f"NoisyDSGD, noise {level:g}", NoisyDSGD(level), Deterministic()) for level in levels
    ]
    cases.append(("PDSGD", PDSGD(), Experiment()))
    found = _train(
        problem, cases, graph, training, runs, insecure_seed, checkpoint, piece, progress
    )
    final = {
        name: tuple(result.metric(metric)[-1] for metric in _METRICS)
        for name, result in found.items()
    }
    clean = float(final[cases[0][0]][1].mean())
    broken = [
        level
        for level, (name, _, _) in zip(levels, cases, strict=False)
        if float(final[name][1].mean()) < clean - 0.1
    ]
    private = float(final["PDSGD"][1].mean())
    findings = [
        (
            f"Accuracy falls by more than 0.1 from noise {broken[0]:g} on"
            if broken
            else "No noise level tried cost more than 0.1 of accuracy"
        )
        + f"; the paper's table collapses at 1e-2. PDSGD reaches {private:.4f} without noise.",
        "The scale at which noise destroys learning depends on stepsize, batch and length of "
        "training, which the paper does not state.",
    ]
    errors = _dlg_errors(training, graph, levels, attacked, insecure_seed)
    findings += _attack_findings(levels, errors)
    rows = []
    for level, (name, _, _) in zip(levels, cases, strict=False):
        paper = PAPER_TABLE.get(level)
        stated = [f"{value:.4f}" for value in paper] if paper else ["", ""]
        error, paper_error = errors.get(level), PAPER_DLG_ERRORS.get(level)
        attack = ["" if value is None else f"{value:.3g}" for value in (error, paper_error)]
        rows.append((name, *map(_shown, final[name]), *stated, *attack))
    rows.append(("PDSGD", *map(_shown, final["PDSGD"]), "", "", "", ""))
    return Study(
        "noise",
        "Accuracy under gradient noise (Table I)",
        NOISE_CLAIM,
        True if broken and min(broken) <= 1e-2 and private > clean - 0.01 else None,
        findings,
        {
            **_facts(training, graph, problem, runs, insecure_seed),
            "levels": list(levels),
            "paper": {f"{level:g}": values for level, values in PAPER_TABLE.items()},
            "dlg_errors": {f"{level:g}": error for level, error in errors.items()},
            "paper_dlg_errors": {f"{level:g}": error for level, error in PAPER_DLG_ERRORS.items()},
            "attacked": attacked,
            "results": {name: _curves(result, problem) for name, result in found.items()},
        },
        f"sottovoce reproduce noise {options}",
        [
            Table(
                f"After {training.epochs} epochs, mean of {runs} runs ± 95 %",
                (
                    "algorithm",
                    "training",
                    "validation",
                    "paper: training",
                    "paper: validation",
                    "DLG error",
                    "paper: DLG error",
                ),
                rows,
            )
        ],
    )


def _dlg_errors(
    training: Training, graph: Graph, levels: Sequence[float], attacked: int, seed: int | None
) -> dict[float, float | None]:
    """The median DLG error of `attacked` images at every noise level."""
    if not attacked:
        return {}
    found = noise_attack(
        levels,
        model=training.model,
        graph=graph,
        targets=attacked,
        data=DATA[training.data],
        data_dir=training.data_dir,
        device=training.device,
        insecure_seed=seed,
    )
    return {level: row.median_error for level, row in found.items()}


def _attack_findings(levels: Sequence[float], errors: dict[float, float | None]) -> list[str]:
    """From which noise on the attacker's images are past recognition."""
    if not errors:
        return []
    blurred = [level for level in levels if (errors[level] or float("inf")) >= 50]
    told = f"from noise {blurred[0]:g} on" if blurred else "at no level tried"
    return [
        f"The median DLG error reaches 50, which the paper takes to be unrecognisable, {told}; in "
        "the paper from 0.01 on. What counts is noise beside the gradient's own size."
    ]


def _train(
    problem: ModuleProblem,
    cases: Sequence[_Case],
    graph: Graph,
    training: Training,
    runs: int,
    insecure_seed: int | None,
    checkpoint: str | Path | None,
    piece: int | None,
    progress: bool,
) -> dict[str, Result]:
    """Train with each algorithm in turn, each with a checkpoint folder of its own."""
    if piece is not None and checkpoint is None:
        raise ProblemError("runs in pieces need a folder to keep them in; give a checkpoint folder")
    epoch = problem.rounds_an_epoch
    steps = training.epochs * epoch
    early = {0, epoch // 4, epoch // 2, 3 * epoch // 4}
    found = {}
    for name, algorithm, law in cases:
        folder = Path(checkpoint) / str(algorithm).replace(":", "-") if checkpoint else None
        arguments: dict[str, Any] = {
            "stepsize": training.stepsize(law, epoch),
            "steps": steps,
            "runs": runs,
            "insecure_seed": insecure_seed,
        }
        options = Options(
            measure=early | set(range(epoch, steps + 1, epoch)),
            private_start=training.private_start,
            checkpoint=folder,
            progress=progress,
        )
        if piece is None or folder is None:
            found[name] = simulate(problem, algorithm, graph, options=options, **arguments)
        else:
            found[name] = simulate_in_pieces(
                problem,
                algorithm,
                graph,
                options=options,
                **arguments | {"runs": pieces_of(runs, piece)},
            )
    return found


def _half_width(values: torch.Tensor) -> float:
    return 0.0 if len(values) < 2 else 1.96 * float(values.std()) / len(values) ** 0.5


def _shown(values: torch.Tensor) -> str:
    if len(values) < 2:
        return f"{float(values.mean()):.4f}"
    return f"{float(values.mean()):.4f} ± {_half_width(values):.4f}"


def _halfway(found: dict[str, Result]) -> str:
    """The first measured epoch at which each algorithm passes the lower final accuracy's 95 %."""
    curves = {name: result.metric("validation_accuracy").mean(1) for name, result in found.items()}
    goal = 0.95 * min(float(curve.max()) for curve in curves.values())
    reached = {
        name: found[name].rounds[int((curve >= goal).nonzero()[0])]
        for name, curve in curves.items()
    }
    return (
        f"Validation accuracy {goal:.3f} is passed "
        + " and ".join(f"by {name} after {rounds} rounds" for name, rounds in reached.items())
        + "."
    )


def _facts(
    training: Training, graph: Graph, problem: ModuleProblem, runs: int, seed: int | None
) -> dict[str, Any]:
    shown = {key: value for key, value in vars(training).items() if key != "data_dir"}
    return {
        "training": shown,
        "graph": graph.describe(),
        "problem": problem.describe(),
        "rounds_an_epoch": problem.rounds_an_epoch,
        "runs": runs,
        "insecure_seed": seed,
    }


def _curves(result: Result, problem: ModuleProblem) -> dict[str, Any]:
    curves: dict[str, Any] = {"rounds": result.rounds}
    for metric, values in result.metrics.items():
        band = result.band(metric)
        curves[metric] = band.to_json()
        if values.ndim == 3:
            curves[metric]["agents"] = values.double().mean(1).tolist()
    return curves
