"""What protection costs: accuracy against the error of the best attack, algorithm by algorithm."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from sottovoce.errors import SottovoceError
from sottovoce.graphs import Graph, ring
from sottovoce.mechanisms import DSGD, PDSGD, Algorithm, NoisyDSGD, ZeroSumDSGD, parse_algorithm
from sottovoce.privacy.adversaries import Adversary, CuriousAgents, Eavesdropper
from sottovoce.privacy.attacks import (
    Chain,
    Conventional,
    Elimination,
    LeastSquares,
    OwnState,
    Smoothing,
)
from sottovoce.privacy.auditor import audit
from sottovoce.privacy.auditor.scores import Effort, Row
from sottovoce.privacy.auditor.targets import suited
from sottovoce.privacy.linear_view import LinearView
from sottovoce.privacy.readers import Search
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.stepsizes import LAWS, Deterministic, Power, Stepsize
from sottovoce.storage.files import write_json
from sottovoce.studies.leakage import image_problem, row_line
from sottovoce.studies.study import Study, Table
from sottovoce.studies.training import Training

CLAIM = (
    "Randomness in stepsizes and coefficients protects gradients without the loss of accuracy that "
    "noise for differential privacy brings."
)
_METHODS = ("projection", "smooth-projection", "magnitude", "likelihood")
_ATTACKS = (Conventional(), LeastSquares(), Elimination(), Chain(), OwnState(), Smoothing())
LEVELS = (0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
"""Effective noise, in units of a gradient; one image's gradient has about 0.09 a coordinate."""

_CALIBRATION = 9
"""Rounds of the model that tells the effective noise; the middle one is read."""


@dataclass(frozen=True)
class Setting:
    """One point of the frontier: an algorithm, the law of its stepsizes, the rule for W."""

    family: str
    algorithm: str
    law: str
    weights: str = "metropolis"
    effective_noise: float = 0.0
    """What an eavesdropper who knows nothing about gradients is left with, per unit stepsize."""


@dataclass(frozen=True)
class Sizes:
    """How large the study is.

    runs, epochs, scales: of the trainings, batch 8; the better of the stepsize scales counts for
    every setting. targets, round, iterations, restarts: of the attacks on batches of one image with
    the mean stepsize 0.05/k, small enough that the states are known almost exactly: what helps the
    attacker is granted to it.
    """

    runs: int = 3
    epochs: int = 10
    scales: tuple[float, ...] = (0.25, 0.5)
    targets: int = 16
    round: int = 50
    iterations: int = 200
    restarts: int = 2


def noise_gain(weights: str) -> float:
    """The effective noise of `ZeroSumDSGD(1)` on a ring of five against an eavesdropper."""
    view = LinearView.against(
        ring(5, weights),
        ZeroSumDSGD(1.0),
        Stepsize(Power(1.0, 0.0), Deterministic()),
        _CALIBRATION,
        Eavesdropper(),
        start="unknown",
    )
    return view.posterior_sd(1, _CALIBRATION // 2 + 1)


def settings(levels: Sequence[float]) -> list[Setting]:
    """Every algorithm; those with noise at each effective noise level."""
    found = [
        Setting("DSGD", str(DSGD()), "deterministic"),
        *(
            Setting(family, str(PDSGD(mixing)), law)
            for mixing, family in (
                ("uniform", "PDSGD, scalar mixing"),
                ("coordinate", "PDSGD, coordinate mixing"),
            )
            for law in ("experiment", "uniform")
        ),
    ]
    found += [
        Setting("NoisyDSGD", str(NoisyDSGD(level)), "deterministic", effective_noise=level)
        for level in levels
    ]
    for family, weights in (
        ("ZeroSumDSGD", "metropolis"),
        ("ZeroSumDSGD, lazy W", "lazy-metropolis"),
    ):
        gain = noise_gain(weights)
        for level in levels:
            algorithm = ZeroSumDSGD(round(level / gain, 6))
            found.append(Setting(family, str(algorithm), "deterministic", weights, level))
    return found


def frontier(
    levels: Sequence[float] = LEVELS,
    sizes: Sizes | None = None,
    *,
    folder: str | Path,
    part: tuple[int, int] = (1, 1),
    insecure_seed: int = 0,
    progress: bool = False,
    report: Callable[[str], None] | None = None,
) -> Study:
    """Train and attack every setting; same model, data, rounds and adversaries for all.

    levels: effective noise of the settings with noise (`Setting.effective_noise`). folder: where
    finished pieces are kept; a second call continues. part: (i, n) does every n-th piece from the
    i-th on, for n processes with one folder; the study covers what is there.
    """
    sizes = sizes or Sizes()
    if not levels or min(levels) <= 0:
        raise SottovoceError(f"noise levels are {list(levels)}; accepted: numbers above 0")
    if not 1 <= part[0] <= part[1]:
        raise SottovoceError(f"part {part[0]} of {part[1]} does not exist; accepted: 1/4 to 4/4")
    chosen = settings(levels)
    store = _Store(Path(folder), sizes, insecure_seed)
    pieces = [(one, piece) for one in chosen for piece in _pieces(sizes)]
    for one, piece in pieces[part[0] - 1 :: part[1]]:
        if store.load(one, piece) is None:
            found = _compute(one, piece, sizes, insecure_seed, progress, report)
            store.save(one, piece, found)
            if report:
                report(f"{one.algorithm}, {one.law} law, {one.weights}: {piece} done")
    points = [point for one in chosen if (point := _point(one, store, sizes)) is not None]
    if not points:
        raise SottovoceError(
            f"no setting is finished in {folder} yet; run the other parts with the same folder"
        )
    return _study(points, sizes, levels, insecure_seed)


def _pieces(sizes: Sizes) -> list[str]:
    return [f"accuracy {scale:g}" for scale in sizes.scales] + list(_adversaries())


def _adversaries() -> dict[str, tuple[Adversary, list[int] | None]]:
    """Who attacks, and whom: everybody, or the agent between the two who collude."""
    return {
        "eavesdropper": (Eavesdropper(), None),
        "two colluding neighbours": (CuriousAgents([0, 2]), [1]),
    }


class _Store:
    """Finished pieces as JSON files named by what they are pieces of."""

    def __init__(self, folder: Path, sizes: Sizes, seed: int) -> None:
        self.folder, self.facts = folder, {**asdict(sizes), "seed": seed}

    def _path(self, setting: Setting, piece: str) -> Path:
        content = json.dumps([asdict(setting), piece, self.facts], sort_keys=True)
        return self.folder / f"piece-{hashlib.sha256(content.encode()).hexdigest()[:16]}.json"

    def load(self, setting: Setting, piece: str) -> dict[str, Any] | None:
        path = self._path(setting, piece)
        if not path.exists():
            return None
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["found"]
        return found

    def save(self, setting: Setting, piece: str, found: dict[str, Any]) -> None:
        facts = {"setting": asdict(setting), "piece": piece, "sizes": self.facts, "found": found}
        write_json(self._path(setting, piece), facts)


def _compute(
    setting: Setting,
    piece: str,
    sizes: Sizes,
    seed: int,
    progress: bool,
    report: Callable[[str], None] | None,
) -> dict[str, Any]:
    graph, algorithm = ring(5, setting.weights), parse_algorithm(setting.algorithm)
    if piece.startswith("accuracy"):
        scale = float(piece.split()[1])
        return {"accuracies": _accuracies(setting, algorithm, graph, sizes, scale, seed, progress)}
    adversary, agents = _adversaries()[piece]
    problem, inputs = image_problem("small", agents=graph.agents)
    found = audit(
        problem,
        algorithm,
        graph,
        inputs,
        stepsize=suited(Stepsize(Power(0.05), LAWS[setting.law]), algorithm),
        adversary=adversary,
        agents=agents,
        rounds=(sizes.round,),
        targets=sizes.targets,
        attacks=_ATTACKS,
        effort=Effort(
            Search(iterations=sizes.iterations, restarts=sizes.restarts), _METHODS, controls=False
        ),
        insecure_seed=seed,
        report=None if report is None else lambda row: report(row_line(row)),
    )
    return {
        "rows": [row.to_json() for row in found.rows],
        "blind": found.blind[sizes.round],
    }


def _accuracies(
    setting: Setting,
    algorithm: Algorithm,
    graph: Graph,
    sizes: Sizes,
    scale: float,
    seed: int,
    progress: bool,
) -> list[float]:
    """Validation accuracy after the last epoch, mean over agents, run by run."""
    training = Training(epochs=sizes.epochs, scale=scale)
    data, validation, _ = training.portions(graph.agents)
    problem = training.problem(data, validation)
    steps = sizes.epochs * problem.rounds_an_epoch
    result = simulate(
        problem,
        algorithm,
        graph,
        steps=steps,
        runs=sizes.runs,
        stepsize=training.stepsize(LAWS[setting.law], problem.rounds_an_epoch),
        insecure_seed=seed,
        options=Options(measure=[steps], progress=progress),
    )
    accuracies: list[float] = result.metrics["validation_accuracy"][-1].mean(-1).tolist()
    return accuracies


def _point(setting: Setting, store: _Store, sizes: Sizes) -> dict[str, Any] | None:
    """All pieces of a setting put together, or None while one is missing."""
    pieces = {piece: store.load(setting, piece) for piece in _pieces(sizes)}
    if any(found is None for found in pieces.values()):
        return None
    known = {piece: found for piece, found in pieces.items() if found is not None}
    by_scale = {scale: known[f"accuracy {scale:g}"]["accuracies"] for scale in sizes.scales}
    scale = max(by_scale, key=lambda one: sum(by_scale[one]))
    accuracies = torch.tensor(by_scale[scale], dtype=torch.float64)
    return {
        **asdict(setting),
        "scale": scale,
        "accuracies": {f"{one:g}": values for one, values in by_scale.items()},
        "accuracy": float(accuracies.mean()),
        "low": float(accuracies.min()),
        "high": float(accuracies.max()),
        "attacks": {
            who: {"blind": known[who]["blind"], **_best(map(Row.from_json, known[who]["rows"]))}
            for who in _adversaries()
        },
        "rows": {who: known[who]["rows"] for who in _adversaries()},
    }


def _best(rows: Iterable[Row]) -> dict[str, Any]:
    """The attack with the lowest median error."""
    ran = [row for row in rows if row.attacked == row.targets and row.median_error is not None]
    best = min(ran, key=lambda row: row.median_error or 0.0)
    return {
        "attack": f"{best.attack} + {best.inversion}",
        "error": best.median_error,
        "recovered": best.recovered,
        "cosine": max(row.cosine or 0.0 for row in ran if row.attack != "conventional"),
        "labels": max(row.labels_correct or 0 for row in ran),
    }


def _study(points: list[dict[str, Any]], sizes: Sizes, levels: Sequence[float], seed: int) -> Study:
    findings = [*_recommendation(points, sizes), *_at_equal_noise(points)]
    rows = [
        (
            f"{point['family']}{_law(point)}",
            point["algorithm"].partition(":")[2].partition(":")[0] if _is_noisy(point) else "",
            f"{point['effective_noise']:g}" if _is_noisy(point) else "",
            f"{point['accuracy']:.4f} ({point['low']:.4f} to {point['high']:.4f})",
            f"{point['scale']:g}",
            *(f"{found['error']:.3g} by {found['attack']}" for found in point["attacks"].values()),
            f"{point['attacks']['eavesdropper']['labels']} of {sizes.targets}",
        )
        for point in points
    ]
    blind = points[0]["attacks"]["eavesdropper"]["blind"]
    options = " ".join(
        [
            *(f"--level {level:g}" for level in levels),
            f"--runs {sizes.runs} --epochs {sizes.epochs} --targets {sizes.targets}",
            f"--iterations {sizes.iterations} --restarts {sizes.restarts} --insecure-seed {seed}",
        ]
    )
    return Study(
        "frontier",
        "What protection costs: small CNN, ring of five agents",
        CLAIM,
        "undecided",
        findings,
        {"points": points, "sizes": asdict(sizes), "blind": blind, "levels": list(levels)},
        f"sottovoce reproduce frontier {options}",
        [
            Table(
                f"Validation accuracy (mean, range of {sizes.runs} runs) and the best attack's "
                f"median error on {sizes.targets} images; a blind guess has {blind:.3g}",
                (
                    "algorithm",
                    "noise",
                    "effective noise",
                    "accuracy",
                    "stepsize scale",
                    "eavesdropper",
                    "two colluding neighbours",
                    "labels",
                ),
                rows,
            )
        ],
    )


def _is_noisy(point: dict[str, Any]) -> bool:
    return bool(point["effective_noise"])


def _law(point: dict[str, Any]) -> str:
    return "" if point["law"] == "deterministic" else f", {point['law']} law"


def _withstands(point: dict[str, Any]) -> bool:
    return all(found["error"] >= found["blind"] for found in point["attacks"].values())


def _recommendation(points: list[dict[str, Any]], sizes: Sizes) -> list[str]:
    """The most accurate setting that no attack beats the blind guess on, against plain PDSGD."""
    plain = [p for p in points if (p["family"], p["law"]) == ("PDSGD, scalar mixing", "experiment")]
    safe = [point for point in points if _withstands(point)]
    if not safe:
        return ["No setting tried keeps every attack above the blind guess."]
    best = max(safe, key=lambda point: point["accuracy"])
    text = (
        "The most accurate setting on which no attack of either adversary beats the blind guess "
        f"is {best['algorithm']} with {best['weights']} weights and the stepsize scale "
        f"{best['scale']:g}: accuracy {best['accuracy']:.4f}"
    )
    if plain:
        gap = best["accuracy"] - plain[0]["accuracy"]
        text += f", PDSGD's being {plain[0]['accuracy']:.4f} ({gap:+.4f})"
    leaked = best["attacks"]["eavesdropper"]["labels"]
    return [f"{text}. Labels still leak: {leaked} of {sizes.targets} are read off its messages."]


def _at_equal_noise(points: list[dict[str, Any]]) -> list[str]:
    """How far each family of zero-sum noise lies above NoisyDSGD, level by level."""
    noisy = {p["effective_noise"]: p for p in points if p["family"] == "NoisyDSGD"}
    said = []
    for family in ("ZeroSumDSGD", "ZeroSumDSGD, lazy W"):
        gaps = [
            f"{p['accuracy'] - noisy[p['effective_noise']]['accuracy']:+.4f} at "
            f"{p['effective_noise']:g}"
            for p in points
            if p["family"] == family and p["effective_noise"] in noisy
        ]
        if gaps:
            said.append(
                f"At equal effective noise against the eavesdropper the accuracy of {family} less "
                f"that of NoisyDSGD is {', '.join(gaps)}."
            )
    return said
