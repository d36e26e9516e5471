"""All studies in a row: nothing is computed twice, and nothing is taken for something else."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.problems.data import sets
from sottovoce.storage.execution import Execution
from sottovoce.studies import everything as module
from sottovoce.studies.bound import BoundSettings
from sottovoce.studies.estimation import EstimationSettings
from sottovoce.studies.everything import EverythingSettings, reproduce_all, write_markdown
from sottovoce.studies.learning import LearningSettings
from sottovoce.studies.settings import command_line
from sottovoce.studies.study import Study, kinds
from sottovoce.studies.training import Training

DOCS = Path(__file__).parents[1] / "docs"
SMALL = {
    "estimation": EstimationSettings(steps=20, runs=2, scales=(1.0,), insecure_seed=0),
    "bound": BoundSettings(samples=1000, last_round=10),
    "mnist": LearningSettings(training=Training(epochs=1, batch=500), runs=1, insecure_seed=0),
}


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Small studies in place of the paper's sizes; a test may change them."""
    plan: dict[str, Any] = dict(SMALL)
    monkeypatch.setattr(module, "_plan", lambda asked: plan)
    return plan


def ran(folder: Path, **execution: Any) -> tuple[list[str], list[Any]]:
    """Which studies ran, the others having been reused, and all of them as JSON."""
    said: list[str] = []
    studies = reproduce_all(EverythingSettings(), Execution(folder, say=said.append, **execution))
    names = [line.partition(":")[0] for line in said if line.endswith(": running ...")]
    reused = [line.partition(":")[0] for line in said if ": reused from" in line]
    assert sorted(names + reused) == sorted(study.name for study in studies)
    return names, [study.to_json() for study in studies]


@pytest.mark.thorough
def test_a_study_is_reused_until_something_that_it_depends_on_changes(
    plan: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, first = ran(tmp_path)
    assert names == list(SMALL)
    assert ran(tmp_path) == ([], json.loads(json.dumps(first)))
    plan["estimation"] = replace(SMALL["estimation"], insecure_seed=1)
    assert ran(tmp_path)[0] == ["estimation"]
    plan["estimation"] = SMALL["estimation"]
    assert ran(tmp_path)[0] == []
    assert ran(tmp_path, fresh=True)[0] == list(SMALL)
    images = sets.load()
    altered = replace(images.training, labels=images.training.labels.roll(1))
    monkeypatch.setattr(sets, "load", lambda *_: sets.Datasets(altered, images.validation))
    assert "mnist" in ran(tmp_path)[0]


def test_files_are_written_from_what_is_stored(plan: dict[str, Any], tmp_path: Path) -> None:
    del plan["estimation"]
    ran(tmp_path)
    written = tmp_path / "bound" / "bound.json"
    whole = written.read_text()
    written.write_text("{")
    assert ran(tmp_path)[0] == []
    assert written.read_text() == whole
    assert not (tmp_path / "mnist" / "checkpoint").exists()
    said = json.loads((tmp_path / "all.json").read_text())
    assert [one["name"] for one in said["studies"]] == ["bound", "mnist"]
    assert "| bound | CPU |" in write_markdown(said)


@pytest.mark.parametrize("quick", [True, False])
def test_the_plan_names_studies_and_passes_its_seed_and_device_on(quick: bool) -> None:
    plan = module._plan(EverythingSettings(quick=quick, insecure_seed=7, device="cuda"))
    assert list(plan) == ["estimation", "rates", "mnist", "noise", "leakage", "bound"]
    assert set(plan) <= set(kinds())
    assert {getattr(one, "insecure_seed", 7) for one in plan.values()} == {7}
    assert plan["mnist"].training == plan["noise"].training
    assert plan["mnist"].training.device == plan["leakage"].device == "cuda"
    assert plan["mnist"].training.data == plan["leakage"].data == ("subset" if quick else "mnist")


def test_everything_refuses_before_it_works(tmp_path: Path) -> None:
    with pytest.raises(SottovoceError, match="model 'huge' is not known"):
        reproduce_all(EverythingSettings(model="huge"), Execution(tmp_path))
    with pytest.raises(SottovoceError, match=str(tmp_path)):
        reproduce_all(EverythingSettings(data_dir=str(tmp_path)), Execution(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_the_page_says_what_its_data_say() -> None:
    data = json.loads((DOCS / "figures" / "reproduce-all.json").read_text("utf-8"))
    names = ("mnist-1000-runs", "gradients")
    elsewhere = [Study.load(DOCS / "figures" / f"{name}.json") for name in names]
    page = (DOCS / "results" / "reproduce-all.md").read_text("utf-8")
    assert page == write_markdown(data, elsewhere)
    asked = EverythingSettings(model="small", data="subset", insecure_seed=1)
    assert data["command"] == command_line("reproduce all", asked)
    # Each study was run with what this command gives it; its own command names its defaults, too.
    commands = {one["name"]: one["command"].split() for one in data["studies"]}
    plan = module._plan(asked)
    assert list(commands) == list(plan)
    for name, settings in plan.items():
        assert set(command_line(f"reproduce {name}", settings).split()) <= set(commands[name])
