"""What protection costs: accuracy against what the best of all attacks gets, rule by rule."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any

import torch

from sottovoce.errors import SottovoceError
from sottovoce.graphs import ring
from sottovoce.mechanisms import DSGD, PDSGD, NoisyDSGD, ZeroSumDSGD, parse_algorithm
from sottovoce.privacy.adversaries import CuriousAgents, Eavesdropper
from sottovoce.privacy.advice import protection
from sottovoce.privacy.auditor import Audit, AuditSettings, audit
from sottovoce.privacy.auditor.recording import suited
from sottovoce.privacy.readers import READERS, Search, reader_named
from sottovoce.simulation.options import Options
from sottovoce.simulation.result import Result
from sottovoce.simulation.runner import simulate
from sottovoce.stepsizes import LAWS, Power, Stepsize
from sottovoce.storage.execution import Execution
from sottovoce.storage.identity import code_of
from sottovoce.storage.store import lock
from sottovoce.studies.frontier_drawing import frontier_chart
from sottovoce.studies.images import Images
from sottovoce.studies.judging import Verdict, all_hold, judge
from sottovoce.studies.settings import command_line, option
from sottovoce.studies.study import Data, Kind, Study, Table, register
from sottovoce.studies.training import Training

CLAIM = (
    "Randomness in stepsizes and coefficients protects gradients without the loss of accuracy that "
    "noise for differential privacy brings."
)
_LEFT_OUT = ("dlg",)
"""Readers that `projection` outdoes wherever both suit."""
_ADVERSARIES = {
    "eavesdropper": (Eavesdropper(), None),
    "two colluding neighbours": (CuriousAgents([0, 2]), (1,)),
}
"""Who attacks, and whom: everybody, or the agent between the two who collude."""

_ZERO_SUM = {"ZeroSumDSGD": "metropolis", "ZeroSumDSGD, lazy W": "lazy-metropolis"}
"""Families of zero-sum noise, and the rule for W of each."""

Piece = tuple[dict[str, Any], Callable[[], dict[str, Any]]]
"""What a part of a point depends on, and how it is computed."""


@dataclass(frozen=True)
class Setting:
    """One point of the frontier: an algorithm, the law of its stepsizes, the rule for W."""

    family: str
    algorithm: str
    law: str
    weights: str = "metropolis"
    effective_noise: float = 0.0
    """What an eavesdropper who knows nothing about gradients is left with, per unit stepsize."""


@dataclass(frozen=True, kw_only=True)
class FrontierSettings:
    """How large the study is.

    Trainings have batches of 8; the better of the stepsize scales counts for every setting. Attacks
    are on batches of one image with the mean stepsize 0.05/k, small enough that the states are
    known almost exactly: what helps the attacker is granted to it.
    """

    levels: tuple[float, ...] = option(
        (0.1, 0.2, 0.35, 0.5, 0.7, 1.0),
        "Noise left on a gradient for an eavesdropper, whose own size is about 0.09; repeatable.",
        option="--level",
    )
    runs: int = option(3, "Independent runs to average over.", min=1)
    epochs: int = option(10, "Passes over an agent's data.", min=1)
    scales: tuple[float, ...] = option(
        (0.25, 0.5), "c in the stepsize c/k; the better one counts; repeatable.", option="--scale"
    )
    targets: int = option(16, "How many trainings to attack, one agent of each.", min=1)
    candidates: int = option(5000, "Records among which a true one is looked for.", min=2)
    round: int = option(50, "Which round to attack.", min=1)
    iterations: int = option(200, "L-BFGS steps of a search.", min=1)
    restarts: int = option(2, "Starting points of a search.", min=1)
    part: str = option("1/1", "2/4 does the second quarter; run all four with one --out.")
    insecure_seed: int = option(0, "Draws everything.")

    def __post_init__(self) -> None:
        if not self.levels or min(self.levels) <= 0:
            raise SottovoceError(f"noise levels are {self.levels}; accepted: numbers above 0")
        first, _, last = self.part.partition("/")
        if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
            raise SottovoceError(f"part {self.part!r} does not exist; accepted: 1/1, 2/4, ...")


def points(levels: Sequence[float]) -> list[Setting]:
    """Every algorithm; those with noise at each effective noise level."""
    public = "deterministic"
    found = [Setting("DSGD", str(DSGD()), public)]
    for mixing, kind in (("uniform", "scalar"), ("coordinate", "coordinate")):
        for law in ("experiment", "uniform"):
            found.append(Setting(f"PDSGD, {kind} mixing", str(PDSGD(mixing)), law))
    for level in levels:
        found.append(Setting("NoisyDSGD", str(NoisyDSGD(level)), public, effective_noise=level))
    for family, weights in _ZERO_SUM.items():
        gain = protection(ZeroSumDSGD(1.0), ring(5, weights)).left
        for level in levels:
            noisy = str(ZeroSumDSGD(round(level / gain, 6)))
            found.append(Setting(family, noisy, public, weights, level))
    return found


def frontier_study(
    settings: FrontierSettings | None = None, execution: Execution | None = None
) -> Study:
    """What protection costs: accuracy against the best attack's error, algorithm by algorithm.

    The same model, data, rounds and adversaries for all. An hour or two on one core; finished
    pieces are kept, and parts can run side by side with one folder: the study covers what is there.
    """
    settings, execution = settings or FrontierSettings(), execution or Execution()
    first, last = map(int, settings.part.split("/"))
    store, pieces = execution.store(), _pieces(settings, execution)
    done: dict[Setting, dict[str, dict[str, Any]]] = {}
    with lock(execution.folder, shared=True):
        for number, ((one, name), (spec, compute)) in enumerate(pieces.items()):
            if stored := store.load(spec):
                done.setdefault(one, {})[name] = stored.facts
            elif number % last == first - 1:
                found = done.setdefault(one, {})[name] = compute()
                store.save(spec, {}, found)
                execution.say(f"{one.algorithm}, {one.law} law: {name} done")
    store.report("frontier", "pieces")
    wanted = Counter(one for one, _ in pieces)
    whole = [_point(one, parts) for one, parts in done.items() if len(parts) == wanted[one]]
    if not whole:
        raise SottovoceError(
            f"no setting is finished in {execution.folder} yet; run the other parts with the same "
            "folder"
        )
    return _study(whole, settings)


def _pieces(settings: FrontierSettings, execution: Execution) -> dict[tuple[Setting, str], Piece]:
    """The trainings and the audits of every point."""
    seed = settings.insecure_seed
    training = Training(epochs=settings.epochs)
    learning = training.problem(*training.portions(5)[:2])
    attacked, inputs = Images().problem(5)
    specs = learning.spec, attacked.spec
    steps = settings.epochs * learning.rounds_an_epoch
    asked: dict[str, Any] = {"steps": steps, "runs": settings.runs, "insecure_seed": seed}
    options = Options(measure=[steps], progress=execution.progress)
    alone = Execution(say=execution.say)
    search = Search(settings.iterations, restarts=settings.restarts)
    readers = [reader_named(name, search) for name in READERS if name not in _LEFT_OUT]
    found: dict[tuple[Setting, str], Piece] = {}
    for one in points(settings.levels):
        graph, algorithm = ring(5, one.weights), parse_algorithm(one.algorithm)
        about = {"kind": "frontier", "algorithm": code_of(algorithm), "graph": graph.spec}
        for scale in settings.scales:
            training = Training(epochs=settings.epochs, scale=scale)
            stepsize = training.stepsize(LAWS[one.law], learning.rounds_an_epoch)
            spec = {**about, "problem": specs[0], "stepsize": stepsize.spec, **asked}
            more = {**asked, "stepsize": stepsize, "options": options}
            train = partial(simulate, learning, algorithm, graph, **more)
            found[one, f"accuracy {scale:g}"] = spec, partial(_accuracies, train)
        for name, (adversary, agents) in _ADVERSARIES.items():
            questions = AuditSettings(
                stepsize=suited(Stepsize(Power(0.05), LAWS[one.law]), algorithm),
                adversaries=[adversary],
                readers=readers,
                rounds=(settings.round,),
                targets=settings.targets,
                targets_a_run=1,
                agents=agents,
                candidates=settings.candidates,
                pairs=0,
                thorough=False,
                insecure_seed=seed,
            )
            spec = {**about, "problem": specs[1], "audit": code_of(questions)}
            run = partial(audit, attacked, algorithm, graph, inputs, questions, alone)
            found[one, name] = spec, partial(_found, run)
    return found


def _accuracies(train: Callable[[], Result]) -> dict[str, Any]:
    """Validation accuracy after the last epoch, mean over agents, run by run."""
    return {"accuracies": train().metrics["validation_accuracy"][-1].mean(-1).tolist()}


def _found(run: Callable[[], Audit]) -> dict[str, Any]:
    """What an adversary got in one round by the best of all attacks whose controls passed."""
    audited = run()
    (found,) = audited.findings
    first, told, rebuilt = found.identification, found.membership, found.reconstruction
    assert first is not None
    assert told is not None
    return {
        "top1": first.top1,
        "top1_interval": [first.low, first.high],
        "candidates": first.candidates,
        "chance": first.chance,
        "auc": told.auc,
        "auc_interval": [told.low, told.high],
        "tpr": told.tpr,
        "error": rebuilt and rebuilt.median_error,
        "blind": found.beside.blind_error,
        "label_error": found.beside.label_error,
        "recovered": rebuilt.recovered if rebuilt else 0,
        "share": [rebuilt.recovered_low, rebuilt.recovered_high] if rebuilt else [0.0, 1.0],
        "labels": found.labels.right if found.labels else 0,
        "by": dict(found.by),
        "not_evidence": list(found.not_evidence),
        "succeeded": found.succeeded,
    }


def _point(one: Setting, pieces: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """All pieces of a setting put together."""
    by_scale = {
        name.split()[1]: found["accuracies"]
        for name, found in pieces.items()
        if name not in _ADVERSARIES
    }
    scale = max(by_scale, key=lambda one: sum(by_scale[one]))
    accuracies = by_scale[scale]
    return {
        **asdict(one),
        "scale": float(scale),
        "accuracies": by_scale,
        "accuracy": float(torch.tensor(accuracies, dtype=torch.float64).mean()),
        "low": min(accuracies),
        "high": max(accuracies),
        "attacks": {who: pieces[who] for who in _ADVERSARIES},
    }


def verdict(points: Sequence[Data]) -> Verdict:
    """Whether PDSGD hides records, and is no less accurate than noise that hides them.

    Hiding means that the strongest attacks recover less than a quarter of the images and put less
    than a quarter first among the candidates, by their 95 % intervals; accuracies are compared by
    the range of their runs, which a single run does not have.
    """
    private = [point for point in points if point["family"].startswith("PDSGD")]
    noisy = [point for point in points if point["effective_noise"] and _withstands(point)]
    several = all(point["low"] < point["high"] for point in (*private, *noisy))
    parts: list[Verdict] = [
        judge(*found[share], below=0.25)
        for one in private
        for found in one["attacks"].values()
        for share in ("share", "top1_interval")
    ]
    if several:
        parts += [
            judge(one["low"] - other["high"], one["high"] - other["low"], above=0.0)
            for one, other in product(private, noisy)
        ]
    return all_hold(parts if several else [*parts, "undecided"])


def _study(points: list[dict[str, Any]], settings: FrontierSettings) -> Study:
    headings = ("algorithm", "noise", "effective noise", "accuracy", "stepsize scale")
    blind = points[0]["attacks"]["eavesdropper"]["blind"]
    table = Table(
        f"Validation accuracy (mean, range of {settings.runs} runs), and what the best of all "
        f"attacks gets of {settings.targets} images: first among {settings.candidates:,}, and "
        f"median error; a blind guess has {blind:.3g}",
        (*headings, *_ADVERSARIES, "membership AUC", "labels"),
        [_cells(point, settings.targets) for point in points],
    )
    title = "What protection costs: small CNN, ring of five agents"
    said = [_recommendation(points, settings), *_at_equal_noise(points)]
    data = {"points": points, "sizes": asdict(settings), "blind": blind, "levels": settings.levels}
    command = command_line("reproduce frontier", settings)
    return Study("frontier", title, CLAIM, verdict(points), said, data, command, [table])


def _cells(point: Data, targets: int) -> tuple[str, ...]:
    law = "" if point["law"] == "deterministic" else f", {point['law']} law"
    level = point["effective_noise"]
    noise = (point["algorithm"].split(":")[1], f"{level:g}") if level else ("", "")
    return (
        f"{point['family']}{law}",
        *noise,
        f"{point['accuracy']:.4f} ({point['low']:.4f} to {point['high']:.4f})",
        f"{point['scale']:g}",
        *(_got(found) for found in point["attacks"].values()),
        f"{point['attacks']['eavesdropper']['auc']:.3f}",
        f"{point['attacks']['eavesdropper']['labels']} of {targets}",
    )


def write_rows(data: Data) -> list[str]:
    """The points as a table in Markdown: accuracy, and what the best of all attacks gets."""
    who = [f"first among {data['sizes']['candidates']:,}: {name}" for name in _ADVERSARIES]
    others = ("membership: AUC", *(f"median error: {name}" for name in _ADVERSARIES))
    headings = ("rule", "effective noise", "accuracy", *who, *others)
    lines = ["| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
    for point in data["points"]:
        law = "" if point["law"] == "deterministic" else f", {point['law']} law"
        found = point["attacks"]
        heard = found["eavesdropper"]
        low, high = heard["auc_interval"]
        cells = [
            point["family"] + law,
            f"{point['effective_noise']:g}" if point["effective_noise"] else "",
            f"{point['accuracy']:.3f} ({point['low']:.3f} to {point['high']:.3f})",
            *(
                "{:.0%} ({:.0%} to {:.0%})".format(x["top1"], *x["top1_interval"])
                for x in found.values()
            ),
            f"{heard['auc']:.3f} ({low:.2f} to {high:.2f})",
            *("none read" if x["error"] is None else f"{x['error']:.3g}" for x in found.values()),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _got(found: Data) -> str:
    error = "none read" if found["error"] is None else f"error {found['error']:.3g}"
    return f"{found['top1']:.0%} first, {error}"


def _withstands(point: Data) -> bool:
    return not any(found["succeeded"] for found in point["attacks"].values())


def _recommendation(points: Sequence[Data], settings: FrontierSettings) -> str:
    """The most accurate setting on which no attack beats guessing, against plain PDSGD."""
    withstood = [point for point in points if _withstands(point)]
    if not withstood:
        return (
            "On every setting tried an attack did better than guessing: none of them hides a "
            "record. `sottovoce plan` finds settings with a proof."
        )
    best = max(withstood, key=lambda point: point["accuracy"])
    text = (
        "The most accurate setting on which no attack of either adversary beats guessing "
        f"is {best['algorithm']} with {best['weights']} weights and the stepsize scale "
        f"{best['scale']:g}: accuracy {best['accuracy']:.4f}"
    )
    for plain in points:
        if (plain["family"], plain["law"]) == ("PDSGD, scalar mixing", "experiment"):
            gap = best["accuracy"] - plain["accuracy"]
            text += f", PDSGD's being {plain['accuracy']:.4f} ({gap:+.4f})"
    return f"{text}. That is no proof: another attack may succeed."


def _at_equal_noise(points: Sequence[Data]) -> list[str]:
    """How far each family of zero-sum noise lies above NoisyDSGD, level by level."""
    noisy = {p["effective_noise"]: p["accuracy"] for p in points if p["family"] == "NoisyDSGD"}
    said = []
    for family in _ZERO_SUM:
        gaps = [
            f"{p['accuracy'] - noisy[level]:+.4f} at {level:g}"
            for p in points
            if p["family"] == family and (level := p["effective_noise"]) in noisy
        ]
        if gaps:
            said.append(
                f"At equal effective noise against the eavesdropper the accuracy of {family} less "
                f"that of NoisyDSGD is {', '.join(gaps)}."
            )
    return said


_CHARTS = {"frontier": frontier_chart}
register(Kind("frontier", _CHARTS, FrontierSettings, frontier_study, parts_are_shared=True))
