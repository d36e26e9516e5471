"""The paper's two attack figures, and what becomes of them when an attack removes the state."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sottovoce.charts.png import encode_text
from sottovoce.errors import ProblemError
from sottovoce.graphs import Graph, ring
from sottovoce.mechanisms import DSGD, PDSGD, Algorithm
from sottovoce.privacy.attacks import Chain, Conventional, Elimination, LeastSquares
from sottovoce.privacy.attacks.base import Attack
from sottovoce.privacy.auditor import Audit, audit
from sottovoce.privacy.auditor.scores import Effort, Row
from sottovoce.privacy.auditor.targets import Recorded, record, suited
from sottovoce.privacy.readers import Search
from sottovoce.privacy.readers.matching import Inputs, jumps
from sottovoce.problems import ModuleProblem
from sottovoce.problems.data import models, partitions, sets
from sottovoce.stepsizes import Experiment, Law, Power, Stepsize, Uniform
from sottovoce.storage.execution import Execution
from sottovoce.studies.judging import Verdict
from sottovoce.studies.study import Study, Table

LEAKAGE_CLAIM = (
    "The attacker recovers the training image under conventional decentralized SGD; under the "
    "proposed algorithm its estimation error is always large."
)
_MODELS: dict[str, Callable[[], nn.Sequential]] = {
    "paper": models.paper_cnn,
    "small": models.small_cnn,
}
_CASES: list[tuple[Algorithm, Law, Attack | None, str]] = [
    (DSGD(), Experiment(), Conventional(), "dlg"),
    (PDSGD(), Experiment(), Conventional(), "dlg"),
    (PDSGD(), Experiment(), Elimination(), "projection"),
    (PDSGD(), Uniform(), Elimination(), "projection"),
    (DSGD(), Experiment(), None, ""),
    (PDSGD(), Experiment(), Chain(), "projection"),
    (PDSGD(), Experiment(), LeastSquares(), "projection"),
    (PDSGD(), Uniform(), Conventional(), "dlg"),
]
"""Algorithm, stepsize law, attack (None being the controls) and inversion, the paper's first."""

_SHOWN = 8
"""Targets whose images are kept in the study."""


def image_problem(
    model: str = "small",
    *,
    agents: int = 5,
    batch: int = 1,
    weights: str = "trainable",
    data: str = "subset",
    data_dir: str | None = None,
    device: str = "cpu",
) -> tuple[ModuleProblem, Inputs]:
    """Training images divided over agents, and what is public about them.

    weights: `trainable`, from which plain SGD learns, with standardised pixels; `glorot:4`,
    Glorot's uniform weights times a gain, biases 0 and pixels in [0, 1].
    """
    if model not in _MODELS:
        raise ProblemError(f"model {model!r} is not known; accepted: {', '.join(_MODELS)}")
    kind, _, gain = weights.partition(":")
    if kind not in ("trainable", "glorot") or (gain and not gain.replace(".", "", 1).isdecimal()):
        raise ProblemError(f"weights {weights!r} are not known; accepted: trainable, glorot:4")
    images = sets.load(data, data_dir).training
    trainable = kind == "trainable"
    inputs = Inputs((1, 28, 28), batch, *((0.0, 1.0, 0.1307, 0.3081) if trainable else ()))
    fed = inputs.standardise(images.images.float() / 255)
    parts = partitions.parse_partition("equal")(images.labels, agents, 0).indices

    def initialise(module: nn.Module, run: int) -> None:
        if trainable:
            models.initialise(module, run)
        else:
            _glorot(module, run, float(gain or 4))

    problem = ModuleProblem(
        _MODELS[model](),
        cross_entropy,
        [(fed[part], images.labels[part]) for part in parts],
        batch=batch,
        initialise=initialise,
        device=device,
    )
    return problem, inputs


def leakage(
    model: str = "small",
    *,
    graph: Graph | None = None,
    round: int = 50,
    targets: int = 16,
    iterations: int = 300,
    warmup: int | None = None,
    restarts: int = 2,
    confined: bool | None = None,
    scale: float | None = None,
    weights: str | None = None,
    data: str = "subset",
    data_dir: str | None = None,
    device: str = "cpu",
    insecure_seed: int | None = None,
    seconds: float | None = None,
    folder: str | Path | None = None,
    progress: bool = False,
    report: Callable[[str], None] | None = None,
) -> Study:
    """The paper's attacker on DSGD and PDSGD, then elimination and chain on the same transcripts.

    A batch is one image; an eavesdropper attacks round `round` of training with the mean stepsize
    scale/k (0.05, or 0.005 on the paper's CNN, whose gradients are larger). weights: as for
    `image_problem`; the paper's CNN takes `glorot:4` unless told otherwise. warmup: steps of Adam
    before L-BFGS, 1000 for a model with max pooling unless told otherwise. confined: as for
    `Effort`, by default only on the paper's CNN, where `dlg` is too slow without.
    seconds: no further attack is begun after so long. report: is called with a line for every
    finished attack.
    """
    graph = graph or ring(5)
    weights = weights or ("glorot:4" if model == "paper" else "trainable")
    scale = scale if scale is not None else (0.005 if model == "paper" else 0.05)
    problem, inputs = image_problem(
        model, agents=graph.agents, weights=weights, data=data, data_dir=data_dir, device=device
    )
    warmup = warmup if warmup is not None else 1000 * jumps(problem.model)
    confined = confined if confined is not None else model == "paper"
    total = warmup + iterations
    trace = sorted({0, 1, 2, 3, *(int(step) for step in _spread(4, total, 24)), total})
    search = Search(iterations=iterations, warmup=warmup, restarts=restarts, trace=tuple(trace))
    seed = 0 if insecure_seed is None else insecure_seed
    began = time.monotonic()
    recordings: dict[str, Recorded] = {}
    found: list[Audit] = []
    for algorithm, law, attack, method in _CASES:
        if found and seconds is not None and time.monotonic() - began > seconds:
            break
        stepsize = suited(Stepsize(Power(scale), law), algorithm)
        case = f"{algorithm} {stepsize}"
        if case not in recordings:
            recordings[case] = record(
                problem,
                algorithm,
                graph,
                inputs,
                stepsize=stepsize,
                attacked=[round],
                recorded={max(1, round - 1), round, round + 1},
                runs=-(-targets // graph.agents),
                insecure_seed=seed,
                progress=progress,
            )
        found.append(
            audit(
                problem,
                algorithm,
                graph,
                inputs,
                stepsize=stepsize,
                rounds=(round,),
                targets=targets,
                attacks=[attack] if attack else [],
                effort=Effort(
                    search,
                    (method,) if attack else None,
                    controls=attack is None,
                    confined=confined,
                ),
                recorded=recordings[case],
                folder=folder,
                insecure_seed=seed,
                report=None if report is None else lambda row: report(row_line(row)),
            )
        )
    rows = [row for one in found for row in one.rows]
    images = [one.images[at] for one in found for at in range(len(one.rows))]
    truth = found[0].truth[round]
    names = [row_name(row) for row in rows]
    mean_image = found[0].mean_image
    assert mean_image is not None
    pictures = {"truth": _pictures(truth)}
    pictures |= {name: _pictures(shown) for name, shown in zip(names, images, strict=True)}
    pictures["blind guess"] = _pictures(mean_image.expand_as(truth))
    errors = {name: row.median_error for name, row in zip(names, rows, strict=True)}
    findings, verdict = _findings(errors, rows, names, found[0].blind[round], round)
    options = (
        f"--model {model} --round {round} --targets {targets} --iterations {iterations} "
        f"--warmup {warmup}"
    )
    return Study(
        "leakage",
        f"What an eavesdropper recovers: {model} CNN, one image a batch, {graph.name}",
        LEAKAGE_CLAIM,
        verdict,
        findings,
        {
            "model": model,
            "weights": weights,
            "round": round,
            "targets": targets,
            "scale": scale,
            "restarts": restarts,
            "iterations": iterations,
            "warmup": warmup,
            "confined": confined,
            "graph": graph.describe(),
            "problem": problem.describe(),
            "blind": found[0].blind[round],
            "trace": trace,
            "rows": [
                {"name": name, **row.to_json()} for name, row in zip(names, rows, strict=True)
            ],
            "images": pictures,
        },
        f"sottovoce reproduce leakage {options} --restarts {restarts} --scale {scale:g} "
        f"--weights {weights} --graph {graph.name} --device {device}",
        [_table(rows, found[0].blind[round], targets)],
    )


def row_name(row: Row) -> str:
    """How a row is called in tables and charts."""
    law = row.stepsize.partition(":")[0]
    algorithm = row.algorithm.partition(":")[0].upper()
    if row.adversary == "control":
        return f"control: {row.attack} + {row.inversion}"
    private = "" if law == "deterministic" else f" ({law} law)"
    return f"{algorithm}{private}: {row.attack} + {row.inversion}"


def row_line(row: Row) -> str:
    """One line for people who wait."""
    error = "nothing finite" if row.median_error is None else f"median error {row.median_error:.3g}"
    return (
        f"{row_name(row)}, round {row.round}: {error}, recovered {row.recovered} of {row.targets}, "
        f"{row.seconds:.0f} s"
    )


def _findings(
    errors: dict[str, float | None], rows: list[Row], names: list[str], blind: float, round: int
) -> tuple[list[str], Verdict]:
    """What the attacks that were run show; an attack that was not run is not spoken of."""
    findings = []
    on_dsgd, on_pdsgd = (
        f"{algorithm}: conventional + dlg" for algorithm in ("DSGD", "PDSGD (experiment law)")
    )
    works = _succeeds(errors, on_dsgd, blind)
    if on_dsgd in errors and on_pdsgd in errors:
        fails = not _succeeds(errors, on_pdsgd, blind)
        verdict = "holds" if fails else "does not hold"
        findings.append(
            f"The paper's attacker (conventional + dlg) has the median error "
            f"{_shown(errors[on_dsgd])} on DSGD and {_shown(errors[on_pdsgd])} on PDSGD; a blind "
            f"guess has {blind:.3g}. "
            + (
                f"Against this attacker the paper's claim {verdict}."
                if works
                else "It fails on DSGD too, so that its failure on PDSGD tells nothing."
            )
        )
    broken = False
    for law in ("experiment", "uniform"):
        name = f"PDSGD ({law} law): elimination + projection"
        if name not in errors:
            continue
        succeeds = _succeeds(errors, name, blind)
        broken |= succeeds
        findings.append(
            f"Elimination + projection on round {round} of PDSGD, {law} law, has the median "
            f"error {_shown(errors[name])}: "
            + (
                "whoever sees two messages of one sender removes its state."
                if succeeds
                else "at this effort it does not recover the images."
            )
        )
    by_name = dict(zip(names, rows, strict=True))
    if chain := by_name.get("PDSGD (experiment law): chain + projection"):
        findings.append(
            f"The chain of three rounds {chain.verdict} and knows the state x_j to "
            f"{chain.state_error or 0:.1e}."
        )
    # The claim is about every observer; one that succeeds refutes it.
    return findings, "refuted" if broken and works else "undecided"


def _succeeds(errors: dict[str, float | None], name: str, blind: float) -> bool:
    """Whether an attack's median error is below half that of a blind guess."""
    error = errors.get(name)
    return error is not None and error < blind / 2


def _shown(error: float | None) -> str:
    return "nothing finite" if error is None else f"{error:.3g}"


def _table(rows: list[Row], blind: float, targets: int) -> Table:
    shown = [
        (
            row_name(row),
            "" if row.cosine is None else f"{row.cosine:.4f}",
            "" if row.relative_error is None else f"{row.relative_error:.2g}",
            "not finite" if row.median_error is None else f"{row.median_error:.3g}",
            "" if row.psnr is None else f"{row.psnr:.1f}",
            "" if row.ssim is None else f"{row.ssim:.3f}",
            f"{row.labels_correct} of {row.attacked}",
            f"{row.recovered} of {row.targets} ({row.low:.0%} to {row.high:.0%})"
            + ("" if row.attacked == row.targets else f", {row.attacked} attacked"),
        )
        for row in rows
    ]
    shown.append(("blind guess", "", "", f"{blind:.3g}", "", "", "", ""))
    return Table(
        f"Medians of {targets} images; recovered: error below {rows[0].threshold:g}, 95 % interval",
        (
            "algorithm: attack + inversion",
            "cosine",
            "relative error",
            "summed squared error",
            "PSNR",
            "SSIM",
            "labels",
            "recovered",
        ),
        shown,
    )


def _pictures(images: torch.Tensor) -> list[str]:
    """The first image of the first targets, as PNG in base64."""
    return [encode_text(target[0, 0], 2) for target in images[:_SHOWN]]


def _spread(first: int, last: int, count: int) -> list[float]:
    if last <= first:
        return []
    return [first * (last / first) ** (step / count) for step in range(count + 1)]


def _glorot(model: nn.Module, seed: int, gain: float) -> None:
    """Uniform on ±gain √(6 / (fan_in + fan_out)) (Glorot and Bengio 2010); biases 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                fan_in, area = layer.weight[0].numel(), layer.weight[0, 0].numel()
                bound = gain * math.sqrt(6 / (fan_in + layer.weight.shape[0] * area))
                draws = torch.rand(layer.weight.shape, generator=generator) * 2 - 1
                layer.weight.copy_(bound * draws)
                if layer.bias is not None:
                    layer.bias.zero_()


@dataclass(frozen=True, kw_only=True)
class LeakageSettings:
    """What `leakage` takes, as one object."""

    model: str = "small"
    targets: int = 16
    iterations: int = 300
    restarts: int = 2
    data: str = "subset"
    data_dir: str | None = None
    device: str = "cpu"
    insecure_seed: int | None = None


def leakage_study(settings: LeakageSettings, execution: Execution) -> Study:
    """The attack figures with settings in one object."""
    return leakage(**vars(settings), folder=execution.folder, progress=execution.progress)
