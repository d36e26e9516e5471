"""Every figure and table of the paper, one study after the other, resumable."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sottovoce import __version__
from sottovoce.errors import ResultError
from sottovoce.problems.data import sets
from sottovoce.storage.files import write_json
from sottovoce.studies.bound import bound_study
from sottovoce.studies.estimation import estimation
from sottovoce.studies.leakage import leakage
from sottovoce.studies.learning import mnist, noise
from sottovoce.studies.rates import rates
from sottovoce.studies.study import Study, Table
from sottovoce.studies.training import DATA, Training

INTRO = (
    "Every experiment of “Decentralized Stochastic Optimization with Inherent Privacy Protection” "
    "(Wang and Poor), repeated: what the paper says, what came out here, whether the two agree, "
    "and the command that shows it. Where the paper leaves a choice open, the command names ours."
)
_MADE_BY = "made-by.json"
_CHECKPOINT = "checkpoint"
_VERDICTS = {True: "agrees", None: "agrees in part", False: "does not agree"}


@dataclass(frozen=True)
class Scale:
    """How large the studies are; the defaults are the paper's sizes.

    model, data, device, data_dir: of the studies that train a network, as for `Training`.
    """

    model: str = "paper"
    data: str = "full"
    device: str = "cpu"
    data_dir: str | None = None
    estimation: dict[str, Any] = field(default_factory=lambda: {"steps": 1000, "runs": 1000})
    rates: dict[str, Any] = field(default_factory=lambda: {"steps": 10_000, "runs": 100})
    training: dict[str, Any] = field(default_factory=lambda: {"epochs": 10})
    mnist: dict[str, Any] = field(default_factory=lambda: {"runs": 5})
    noise: dict[str, Any] = field(default_factory=lambda: {"runs": 3})
    leakage: dict[str, Any] = field(default_factory=lambda: {"targets": 16, "iterations": 300})


QUICK = Scale(
    model="small",
    data="subset",
    estimation={"steps": 1000, "runs": 100},
    rates={"steps": 2000, "runs": 20},
    training={"epochs": 4},
    mnist={"runs": 3},
    noise={"runs": 1},
    leakage={"targets": 5, "iterations": 100, "restarts": 1},
)
"""Every study in minutes on two cores: the small CNN on the subset inside the package."""

Make = Callable[[], Study]


def everything(
    folder: str | Path,
    scale: Scale | None = None,
    *,
    insecure_seed: int | None = None,
    progress: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> list[Study]:
    """Run all studies into `folder`, one subfolder each, skipping those that are there already.

    A study counts as there when its files were made with the same arguments by the same version.
    Studies that train continue from their checkpoints.
    """
    folder = Path(folder)
    scale = scale or Scale()
    plan = _plan(folder, scale, insecure_seed, progress)
    # Images that cannot be had are better known before hours of other work.
    sets.load(DATA[scale.data], scale.data_dir)
    studies = []
    for name, (arguments, make) in plan.items():
        made_by = {"version": __version__, "insecure_seed": insecure_seed, **arguments}
        place = folder / name
        if (study := _finished(place, name, made_by)) is not None:
            say(f"{name}: there already, made with the same arguments.")
        else:
            say(f"{name}: running ...")
            study = make()
            study.write(place)
            write_json(place / _MADE_BY, made_by)
            shutil.rmtree(place / _CHECKPOINT, ignore_errors=True)
        studies.append(study)
    return studies


def verdicts(studies: Sequence[Study]) -> Table:
    """Whether the paper's statements came out, one line for each study."""
    rows = [(one.name, _VERDICTS[one.agrees], one.findings[-1]) for one in studies]
    return Table("The paper’s statements", ("study", "our numbers", "what was found"), rows)


def _plan(
    folder: Path, scale: Scale, seed: int | None, progress: bool
) -> dict[str, tuple[dict[str, Any], Make]]:
    """The arguments of each study and what runs it, in the order of the paper."""
    network: dict[str, Any] = {
        "model": scale.model,
        "data": scale.data,
        "device": scale.device,
        "data_dir": scale.data_dir,
    }
    training = Training(**network, **scale.training)
    shown: dict[str, Any] = {"insecure_seed": seed, "progress": progress}

    def checkpoint(name: str) -> Path:
        return folder / name / _CHECKPOINT

    leaking = {**network, "data": DATA[scale.data], **scale.leakage}
    return {
        "estimation": (scale.estimation, lambda: estimation(**scale.estimation, **shown)),
        "rates": (scale.rates, lambda: rates(**scale.rates, **shown)),
        "mnist": (
            asdict(training) | scale.mnist,
            lambda: mnist(training, checkpoint=checkpoint("mnist"), **scale.mnist, **shown),
        ),
        "noise": (
            asdict(training) | scale.noise,
            lambda: noise(training, checkpoint=checkpoint("noise"), **scale.noise, **shown),
        ),
        "leakage": (leaking, lambda: leakage(folder=checkpoint("leakage"), **leaking, **shown)),
        "bound": ({"kappa": 5.0}, lambda: bound_study(kappa=5.0)),
    }


def _finished(place: Path, name: str, made_by: dict[str, Any]) -> Study | None:
    """The study that lies there, if it is whole and was made with these arguments."""
    try:
        found = json.loads((place / _MADE_BY).read_text(encoding="utf-8"))
        return Study.load(place / f"{name}.json") if found == made_by else None
    except (OSError, ValueError, ResultError):
        return None
