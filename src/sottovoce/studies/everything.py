"""Every figure and table of the paper, one study after the other, resumable."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sottovoce.problems.data import sets
from sottovoce.storage.execution import Execution
from sottovoce.storage.files import write_json
from sottovoce.storage.identity import fingerprint
from sottovoce.studies.bound import BoundSettings
from sottovoce.studies.estimation import EstimationSettings
from sottovoce.studies.leakage import LeakageSettings
from sottovoce.studies.learning import LearningSettings
from sottovoce.studies.noise import NoiseSettings
from sottovoce.studies.rates import RatesSettings
from sottovoce.studies.settings import command_line, option
from sottovoce.studies.study import Data, Study, Table, kinds
from sottovoce.studies.training import Training

INTRO = (
    "Every experiment of “Decentralized Stochastic Optimization with Inherent Privacy Protection” "
    "(Wang and Poor), repeated: what the paper says, what came out here, what our numbers say of "
    "it, and the command that shows it. Where the paper leaves a choice open, the command names "
    "ours."
)


@dataclass(frozen=True, kw_only=True)
class EverythingSettings:
    """How large the studies are; without `quick` they have the paper's sizes."""

    quick: bool = option(False, "Minutes: small CNN, shipped images, fewer runs.")
    model: str | None = option(None, "paper or small CNN; by default as --quick says.")
    data: str | None = option(None, "subset, mnist or fashion-mnist; by default as --quick says.")
    data_dir: str | None = option(None, "Folder of IDX files (or set SOTTOVOCE_DATA).")
    device: str = option("cpu", "cpu or cuda.")
    insecure_seed: int | None = option(None, "Make the private numbers repeatable (studies only).")


def reproduce_all(
    settings: EverythingSettings | None = None, execution: Execution | None = None
) -> list[Study]:
    """Every figure and table on one page; continues where it was stopped.

    Each study is written to a folder of its own, and what all of them say to `all.json`. One that
    is stored already, from the same settings and the same images, is not computed again.
    """
    settings, execution = settings or EverythingSettings(), execution or Execution()
    folder, store, studies = Path(execution.folder or "."), execution.store(), []
    plan = _plan(settings)
    # Images that cannot be had are better known before hours of other work.
    training = plan["mnist"].training
    images = sets.load(training.data, training.data_dir)
    both = (images.training, images.validation)
    seen = fingerprint(*(tensor for part in both for tensor in (part.images, part.labels)))
    for name, asked in plan.items():
        spec = {"kind": "study", "name": name, "settings": asdict(asked), "images": seen}
        if found := store.load(spec):
            execution.say(f"{name}: reused from {folder}, made with the same settings.")
            study = Study.from_json(found.facts)
        else:
            execution.say(f"{name}: running ...")
            run = kinds()[name].run
            assert run is not None
            parts = folder / name / "checkpoint"
            study = run(asked, replace(execution, folder=parts))
            store.save(spec, {}, study.to_json())
            shutil.rmtree(parts, ignore_errors=True)
        study.write(folder / name)
        studies.append(study)
    write_json(folder / "all.json", said_by(studies, command_line("reproduce all", settings)))
    return studies


def said_by(studies: Sequence[Study], command: str) -> Data:
    """What studies say, without the numbers that their charts are drawn from."""
    every = [{k: v for k, v in one.to_json().items() if k != "data"} for one in studies]
    return {"kind": "studies", "command": command, "studies": every}


def write_markdown(data: Data, elsewhere: Sequence[Study] = ()) -> str:
    """What `said_by` holds as a page in Markdown; elsewhere: studies of other commands."""
    studies = [Study.from_json({"data": {}, **one}) for one in data["studies"]]
    lines = [
        "# Every study of the paper in one command",
        "",
        "The verdicts follow from 95 % intervals, or from exact figures where nothing is drawn. A "
        "test compares this page with [its data](../figures/reproduce-all.json).",
        "",
        "```sh",
        data["command"],
        "```",
        "",
        *_verdicts(studies),
    ]
    if elsewhere:
        lines += ["", "By commands of their own:", "", *_verdicts(elsewhere)]
    for one in (*studies, *elsewhere):
        lines += ["", f"## {one.title}, on a {_machine(one)}", "", "```sh", one.command, "```", ""]
        lines += [f"- The paper: {one.claim}", f"- Our numbers: {one.verdict or 'undecided'}."]
        lines += [f"- {found}" for found in one.findings]
        for table in one.tables:
            lines += ["", f"{table.title}:", "", *_markdown(table.headings, table.rows)]
    return "\n".join(lines) + "\n"


def _verdicts(studies: Sequence[Study]) -> list[str]:
    rows = [(one.name, _machine(one), one.claim, one.verdict or "") for one in studies]
    return _markdown(("study", "run on a", "the paper says", "our numbers"), rows)


def _machine(study: Study) -> str:
    return "GPU" if "--device cuda" in study.command else "CPU"


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    every = [headings, ["---"] * len(headings), *rows]
    return ["| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |" for row in every]


def verdicts(studies: Sequence[Study]) -> Table:
    """What our numbers say of the paper's statements, one line for each study."""
    rows = [(one.name, one.verdict or "", one.findings[-1]) for one in studies]
    return Table("The paper’s statements", ("study", "our numbers", "what was found"), rows)


def _plan(asked: EverythingSettings) -> dict[str, Any]:
    """The settings of each study, in the order of the paper."""
    quick = asked.quick
    seed: dict[str, Any] = {"insecure_seed": asked.insecure_seed}
    training = Training(
        model=asked.model or ("small" if quick else "paper"),
        data=asked.data or ("subset" if quick else "mnist"),
        data_dir=asked.data_dir,
        device=asked.device,
        epochs=4 if quick else 10,
    )
    return {
        "estimation": EstimationSettings(runs=100 if quick else 1000, **seed),
        "rates": RatesSettings(steps=2000 if quick else 10_000, runs=20 if quick else 100, **seed),
        "mnist": LearningSettings(training=training, runs=3 if quick else 5, **seed),
        "noise": NoiseSettings(training=training, runs=1 if quick else 3, **seed),
        "leakage": LeakageSettings(
            model=training.model,
            data=training.data,
            data_dir=training.data_dir,
            device=training.device,
            targets=5 if quick else 16,
            iterations=100 if quick else 300,
            restarts=1 if quick else 2,
            **seed,
        ),
        "bound": BoundSettings(),
    }
