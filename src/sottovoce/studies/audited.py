"""An audit as a study: one table, the images, and a verdict in words."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from sottovoce.charts.png import encode_text
from sottovoce.graphs import Graph, ring
from sottovoce.mechanisms import PDSGD, Algorithm
from sottovoce.privacy.adversaries import Adversary, Eavesdropper
from sottovoce.privacy.attacks import Attack
from sottovoce.privacy.auditor import Audit, audit
from sottovoce.privacy.auditor.scores import Effort, Row
from sottovoce.privacy.auditor.targets import Recorded
from sottovoce.privacy.auditor.work import Report
from sottovoce.stepsizes import Experiment, Power, Stepsize
from sottovoce.studies.leakage import image_problem
from sottovoce.studies.study import Study, Table

_SHOWN = 8


@dataclass(frozen=True)
class AuditSettings:
    """Who attacks what: the questions of an audit, as `sottovoce.privacy.auditor.audit` takes them."""

    algorithms: Sequence[Algorithm] = (PDSGD(),)
    stepsize: Stepsize = Stepsize(Power(0.1), Experiment())  # noqa: RUF009
    adversaries: Sequence[Adversary] = field(default_factory=lambda: (Eavesdropper(),))
    attacks: Sequence[Attack] | None = None
    rounds: Sequence[int] = (50,)
    targets: int = 8
    effort: Effort = field(default_factory=Effort)
    private_start: float = 0.0

    def command_options(self) -> str:
        names = {
            "algorithm": [str(one) for one in self.algorithms],
            "adversary": [str(one).partition(" ")[0] for one in self.adversaries],
            "knows": sorted(self.adversaries[0].knows),
            "attack": [one.name for one in self.attacks or ()],
            "method": list(self.effort.methods or ()),
        }
        repeated = [f"--{name} {value}" for name, values in names.items() for value in values]
        return " ".join(
            [
                *repeated,
                *([] if self.effort.controls else ["--no-controls"]),
                *([f"--private-start {self.private_start:g}"] if self.private_start else []),
                f"--stepsize {self.stepsize}",
                f"--rounds {','.join(map(str, self.rounds))}",
                f"--targets {self.targets}",
                f"--iterations {self.effort.search.iterations}",
                f"--restarts {self.effort.search.restarts}",
            ]
        )


def audit_images(
    settings: AuditSettings,
    *,
    graph: Graph | None = None,
    model: str = "small",
    weights: str | None = None,
    batch: int = 1,
    data: str = "subset",
    data_dir: str | None = None,
    device: str = "cpu",
    recorded: Recorded | None = None,
    save: str | Path | None = None,
    folder: str | Path | None = None,
    insecure_seed: int | None = None,
    progress: bool = False,
    report: Report | None = None,
) -> Study:
    """Audit one of the package's networks on images; `audit` itself takes any model and data.

    weights, data and model: as for `image_problem`. save: where to keep the recording of the last
    algorithm, which `recorded` takes back.
    """
    graph = graph or ring(5)
    weights = weights or ("glorot:4" if model == "paper" else "trainable")
    problem, inputs = image_problem(
        model,
        agents=graph.agents,
        batch=batch,
        weights=weights,
        data=data,
        data_dir=data_dir,
        device=device,
    )
    found = audit(
        problem,
        settings.algorithms,
        graph,
        inputs,
        stepsize=settings.stepsize,
        adversary=settings.adversaries,
        rounds=settings.rounds,
        targets=settings.targets,
        attacks=settings.attacks,
        effort=settings.effort,
        private_start=settings.private_start,
        folder=folder,
        recorded=recorded,
        save=save,
        insecure_seed=insecure_seed,
        progress=progress,
        report=report,
    )
    command = (
        f"sottovoce audit {settings.command_options()} --model {model} --weights {weights} "
        f"--data {data} --batch-size {batch} --graph {graph.name} --mixing-weights {graph.weights} "
        f"--device {device}"
    )
    return audit_study(found, command)


def audit_study(audit: Audit, command: str) -> Study:
    """The rows of an audit as a table with controls, why attacks were refused, and the images."""
    ran = [row for row in audit.rows if row.attacked]
    refused = [row for row in audit.rows if row.refused]
    tables = [
        Table(
            f"Medians of {audit.facts['targets']} targets; recovered: summed squared error below "
            f"{audit.facts['threshold']:g}, 95 % interval",
            (
                "adversary",
                "algorithm",
                "stepsize",
                "round",
                "attack + inversion",
                "cosine",
                "relative error",
                "error",
                "PSNR",
                "SSIM",
                "labels",
                "recovered",
            ),
            [*map(_cells, ran), *_blind(audit)],
            optional=("stepsize", "SSIM", "PSNR", "relative error", "round", "labels"),
        )
    ]
    if refused:
        tables.append(
            Table(
                "Attacks that were refused, for some targets or all",
                ("adversary", "algorithm", "round", "attack", "why"),
                [(r.adversary, r.algorithm, r.round, r.attack, r.refused) for r in refused],
            )
        )
    return Study(
        "audit",
        "What an observer of the messages recovers",
        "",
        None,
        [*audit.verdicts, *audit.advice],
        {
            **audit.facts,
            "rows": [row.to_json() for row in audit.rows],
            "blind": {str(round): error for round, error in audit.blind.items()},
            "images": _pictures(audit),
        },
        command,
        tables,
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.adversary,
        row.algorithm,
        row.stepsize.removesuffix(":coordinate"),
        str(row.round),
        f"{row.attack} + {row.inversion}",
        _number(row.cosine, ".4f"),
        _number(row.relative_error, ".2g") + ("" if row.scale_known else " (scaled)"),
        _number(row.median_error, ".3g"),
        _number(row.psnr, ".1f"),
        _number(row.ssim, ".2f"),
        f"{row.labels_correct}/{row.attacked}",
        f"{row.recovered} of {row.targets} ({row.low:.0%}-{row.high:.0%})" + _missed(row),
    )


def _missed(row: Row) -> str:
    return "" if row.attacked == row.targets else f", {row.attacked} attacked"


def _blind(audit: Audit) -> list[tuple[str, ...]]:
    return [
        ("nobody", "", "", str(round), "blind guess", "", "", f"{error:.3g}", "", "", "", "")
        for round, error in audit.blind.items()
    ]


def _number(value: float | None, form: str) -> str:
    return "not finite" if value is None else format(value, form)


def _pictures(audit: Audit) -> dict[str, list[str]]:
    """Rows of PNG images for each round; nothing for inputs that are no grey pictures."""
    shape = next(iter(audit.truth.values())).shape
    if len(shape) != 5 or shape[2] != 1:
        return {}
    several = len(audit.truth) > 1
    found: dict[str, list[str]] = {}
    for round, truth in audit.truth.items():
        suffix = f", round {round}" if several else ""
        found[f"truth{suffix}"] = _row(truth)
        names = Counter[str]()
        for at, row in enumerate(audit.rows):
            if row.round == round and at in audit.images:
                name = _name(row, audit) + suffix
                names[name] += 1
                found[name if names[name] == 1 else f"{name} ({names[name]})"] = _row(
                    audit.images[at]
                )
        if audit.mean_image is not None:
            found[f"blind guess{suffix}"] = _row(audit.mean_image.expand_as(truth))
    return found


def _name(row: Row, audit: Audit) -> str:
    parts = [row.adversary] if len(audit.facts["adversaries"]) > 1 else []
    if row.adversary == "control":
        return f"control: {row.attack} + {row.inversion}"
    if len(audit.facts["algorithms"]) > 1:
        parts.append(row.algorithm)
    return ", ".join([*parts, f"{row.attack} + {row.inversion}"])


def _row(images: Tensor) -> list[str]:
    return [encode_text(target[0, 0], 2) for target in images[:_SHOWN]]
