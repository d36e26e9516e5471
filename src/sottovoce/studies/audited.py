"""An audit as a study: one table, the images, and a verdict in words."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Literal

from sottovoce.charts.images import image_grid
from sottovoce.errors import AttackError
from sottovoce.mechanisms import parse_algorithm
from sottovoce.privacy.adversaries import ACCEPTED, LINKS, parse_adversary
from sottovoce.privacy.attacks import ATTACKS, attack_named
from sottovoce.privacy.auditor import Audit, AuditSettings, Recorded, Row, audit, record
from sottovoce.privacy.auditor.rows import MEASURES
from sottovoce.privacy.auditor.settings import CANDIDATES, PAIRS, THRESHOLD
from sottovoce.privacy.membership import ShadowSettings
from sottovoce.privacy.readers import READERS, reader_named
from sottovoce.stepsizes import parse_stepsize
from sottovoce.storage.execution import Execution
from sottovoce.studies.images import Attacking, Images, pictures
from sottovoce.studies.settings import OnGraph, command_line, option
from sottovoce.studies.study import Chart, Data, Kind, Study, Table, register

_SMALL = 100_000
"""Parameters up to which targets are taken from many trainings: then they depend little."""


@dataclass(frozen=True, kw_only=True)
class ImageAuditSettings(Images, Attacking, OnGraph):
    """An audit of one of the package's networks; `audit` itself takes any model and data."""

    algorithm: tuple[str, ...] = option(
        ("pdsgd",), "dsgd, pdsgd:coordinate, noisy-dsgd:0.01, zero-sum:0.1, ...; repeatable."
    )
    stepsize: str = option("experiment:0.1/k", "Law and schedule: experiment:0.1/k, uniform:0.1/k.")
    adversary: tuple[str, ...] = option(("eavesdropper",), f"{ACCEPTED}; repeatable.")
    links: tuple[str, ...] = option(
        ("plain",), f"What protects messages on their way: {', '.join(LINKS)}; repeatable."
    )
    knows: tuple[str, ...] = option((), "Side information: state, stepsizes; repeatable.")
    attack: tuple[str, ...] = option((), "An attack by name; all unless given; repeatable.")
    method: tuple[str, ...] = option(
        (), "A reader by name; all that suit unless given; repeatable."
    )
    controls: bool = option(True, "Read the exact gradient and noise, too.")
    thorough: bool = option(
        False, "Read every estimate; otherwise the closest and the paper's, unless you name some."
    )
    candidates: int = option(
        CANDIDATES, "Records among which a true one is looked for; 0: do not.", min=0
    )
    pairs: int = option(
        PAIRS, "Simulated trainings that bound ε from below; 0: none.", option="--epsilon-pairs"
    )
    targets_a_run: int | None = option(
        None, "Targets of one training; by default 2, or all agents where d is large.", min=1
    )
    private_start: float = option(
        0.0, "Standard deviation of private numbers added to the starting point."
    )
    batch: int = option(1, "Images in a gradient.", option="--batch-size", min=1)
    rounds: str = option("50", "Rounds to attack: 50 or 1,10,50.")
    threshold: float = option(
        THRESHOLD, "Recovered: error below this part of that of the guess that knows the label."
    )
    membership: Literal["none", "shadow"] = option(
        "none", "shadow: tell who was used in whole trainings, by shadow models; takes minutes."
    )
    membership_rounds: int = option(200, "Rounds of these trainings.", min=1)
    membership_runs: int = option(32, "How many of them.", min=8)
    membership_records: int = option(100, "Records of an agent, half of them used.", min=2)
    unconfined: bool = option(
        False, "Let dlg leave the pixel range, as the paper's attacker may.", option="--unconfined"
    )
    load: str | None = option(None, "Attack a recording that --save wrote, not a fresh run.")
    save: str | None = option(None, "Keep the recording here; it holds every secret.")

    def __post_init__(self) -> None:
        self.questions()

    def questions(self) -> AuditSettings:
        """The settings of `audit`, with objects in place of their names."""
        search, confined = self.search(), self.model == "paper" and not self.unconfined
        who = [
            parse_adversary(text, self.knows, links)
            for text in self.adversary
            for links in self.links
        ]
        return AuditSettings(
            stepsize=parse_stepsize(self.stepsize),
            adversaries=who,
            attacks=[attack_named(name) for name in self.attack or ATTACKS],
            readers=[reader_named(name, search, confined) for name in self.method or READERS],
            rounds=_whole_numbers(self.rounds),
            targets=self.targets,
            targets_a_run=self.targets_a_run,
            threshold=self.threshold,
            candidates=self.candidates,
            pairs=self.pairs,
            controls=self.controls,
            thorough=self.thorough or bool(self.attack or self.method),
            private_start=self.private_start,
            membership=self._shadows(),
            insecure_seed=self.insecure_seed,
        )

    def _shadows(self) -> ShadowSettings | None:
        if self.membership == "none":
            return None
        sizes = (self.membership_rounds, self.membership_runs, self.membership_records)
        return ShadowSettings(*sizes)


def audit_study(
    settings: ImageAuditSettings | None = None, execution: Execution | None = None
) -> Study:
    """Train, record the messages, attack them in every way the adversary can, and say what leaked.

    A stopped audit goes on where it was when it is run again with the same settings and folder.
    """
    settings, execution = settings or ImageAuditSettings(), execution or Execution()
    questions, graph = settings.questions(), settings.network()
    algorithms = [parse_algorithm(text) for text in settings.algorithm]
    problem, inputs = settings.problem(graph.agents, settings.batch)
    a_run = questions.targets_a_run or (2 if problem.dimension <= _SMALL else None)
    questions = replace(questions, public=settings.public(), targets_a_run=a_run)
    recorded = None if settings.load is None else Recorded.load(settings.load)
    if settings.save is not None:
        recorded = recorded or record(problem, algorithms[0], graph, inputs, questions)
        recorded.save(settings.save)
    found = audit(problem, algorithms, graph, inputs, questions, execution, recorded)
    return as_study(found, command_line("audit", settings))


def as_study(audit: Audit, command: str) -> Study:
    """An audit as tables: findings, rows with controls, refused attacks; and the images."""
    rows = [_cells(row) for row in audit.rows if row.attacked]
    for k, error in audit.blind.items():
        rows.append(("nobody", "", "", k, "blind guess", "", "", f"{error:.3g}", *[""] * 4))
    measured = Table(
        f"Medians of {audit.facts['targets']} targets; recovered: error below "
        f"{audit.facts['threshold']:.2g} of that of the best guess that knows the label, 95 % "
        "interval",
        ("adversary", "algorithm", "stepsize", "round", "attack + reader", *MEASURES),
        rows,
        optional=("stepsize", "SSIM", "PSNR", "relative error", "round", "labels"),
    )
    refused = Table(
        "Attacks that were refused, for some targets or all",
        ("adversary", "algorithm", "round", "attack", "why"),
        [(r.adversary, r.algorithm, r.round, r.attack, r.refused) for r in audit.rows if r.refused],
    )
    data = {
        **audit.facts,
        "controls_passed": audit.controls_passed,
        "controls": audit.readers,
        "findings": [one.to_json() for one in audit.findings],
        "strongest": audit.strongest and audit.strongest.to_json(),
        "verdicts": audit.verdicts,
        "lined": [one.to_json() for one in audit.lined],
        "supports": [one.to_json() for one in audit.supports],
        "rows": [row.to_json() for row in audit.rows],
        "blind": {str(round): error for round, error in audit.blind.items()},
        "images": _pictures(audit),
    }
    title, findings = "What an observer of the messages recovers", [*audit.verdicts, *audit.advice]
    tables = [_told_apart(audit), _supports(audit), measured, _members(audit), refused]
    tables = [table for table in tables if table.rows]
    return Study("audit", title, "", "undecided", findings, data, command, tables)


def _told_apart(audit: Audit) -> Table:
    """Where each attack puts the true records."""
    headings = ("adversary", "algorithm", "round", "attack", "first", "median rank", "AUC")
    rows = []
    for one in audit.lined:
        ranks, _ = one.spread_out
        first = f"{one.first} of {len(ranks)}"
        middle = f"{sorted(ranks)[len(ranks) // 2]:g}"
        about = (one.adversary, one.algorithm, one.round, f"{one.attack} + {one.identifier}")
        rows.append((*about, first, middle, f"{one.auc:.3f}"))
    most = max((one.candidates for one in audit.lined), default=0)
    return Table(f"The true record among {most:,} candidates", headings, rows)


def _supports(audit: Audit) -> Table:
    """What each attack finds of the features or words of the batches."""
    headings = ("adversary", "algorithm", "round", "attack", "precision", "recall", "all right")
    rows = []
    for one in audit.supports:
        if one.attacked:
            about = (one.adversary, one.algorithm, one.round, one.attack)
            quality = (f"{share:.1%}" for share in one.quality)
            rows.append((*about, *quality, f"{one.exact} of {one.targets}"))
    return Table("Features or words of the batches (support)", headings, rows)


def _members(audit: Audit) -> Table:
    """How well each shadow attack tells who was used in whole trainings."""
    headings = ("algorithm", "rounds", "attack", "AUC (95 %)", "true positives at 1 % (95 %)")
    rows = [
        (
            told["algorithm"],
            told["rounds"],
            one["attack"],
            f"{one['auc']:.3f} ({one['interval'][0]:.3f} to {one['interval'][1]:.3f})",
            f"{one['tpr']:.1%} ({one['tpr_interval'][0]:.1%} to {one['tpr_interval'][1]:.1%})",
        )
        for told in audit.facts.get("training_membership", [])
        for one in told["attacks"]
    ]
    return Table("Who was used in a whole training (shadow models)", headings, rows)


def _cells(row: Row) -> tuple[Any, ...]:
    stepsize = row.stepsize.removesuffix(":coordinate")
    read = f"{row.attack} + {row.inversion}"
    return row.adversary, row.algorithm, stepsize, row.round, read, *row.cells


def _pictures(audit: Audit) -> dict[str, list[str]]:
    """Rows of PNG images for each round; nothing for inputs that are not grey pictures."""
    shape = next(iter(audit.truth.values())).shape
    if len(shape) != 5 or shape[2] != 1:
        return {}
    found: dict[str, list[str]] = {}
    for round, truth in audit.truth.items():
        suffix = f", round {round}" if len(audit.truth) > 1 else ""
        found[f"truth{suffix}"] = pictures(truth)
        names = Counter[str]()
        for at, row in enumerate(audit.rows):
            if row.round == round and at in audit.images:
                name = _name(row, audit) + suffix
                names[name] += 1
                name += f" ({names[name]})" * (names[name] > 1)
                found[name] = pictures(audit.images[at])
        if audit.mean_image is not None:
            found[f"blind guess{suffix}"] = pictures(audit.mean_image.expand_as(truth))
    return found


def _name(row: Row, audit: Audit) -> str:
    if row.is_control:
        return row.name
    parts = [row.adversary] * (len(audit.facts["adversaries"]) > 1)
    parts += [row.algorithm] * (len(audit.facts["algorithms"]) > 1)
    return ", ".join([*parts, f"{row.attack} + {row.inversion}"])


def _whole_numbers(text: str) -> tuple[int, ...]:
    parts = text.replace(" ", "").split(",")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise AttackError(f"rounds {text!r} are not usable; accepted: 50 or 1,10,50")
    return tuple(int(part) for part in parts)


def _chart(data: Data) -> "Chart | None":
    if not data["images"]:
        return None
    return image_grid(
        data["images"],
        title="What the adversary recovers",
        subtitle="every column is one target; the lowest rows are the controls and the blind guess",
    )


register(Kind("audit", {"audit-images": _chart}))
