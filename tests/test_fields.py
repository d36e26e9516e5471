"""Settings, their commands and the commands' text are one thing."""

import importlib
import json
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import typer
from hypothesis import given, settings, strategies
from typer.testing import CliRunner

import sottovoce.studies
from sottovoce.cli import reproduce
from sottovoce.cli.fields import command
from sottovoce.errors import ResultError
from sottovoce.storage.execution import Execution
from sottovoce.storage.store import lock
from sottovoce.studies import study
from sottovoce.studies.everything import EverythingSettings
from sottovoce.studies.settings import build, command_line, flag, option, options
from sottovoce.studies.study import kinds

SETTINGS = {kind.name: kind.settings for kind in kinds().values() if kind.settings}
SETTINGS["all"] = EverythingSettings
CHOICES: dict[str, tuple[Any, ...]] = {
    "model": ("paper", "small"),
    "data": ("subset", "mnist", "fashion-mnist"),
    "part": ("1/1", "2/4"),
}


def invoke(run: Any, kind: type, *arguments: str, folder: Path) -> Any:
    """Call a one-command program made of `kind`."""
    app = typer.Typer()
    app.command()(command(kind, run, folder, lambda found, out, as_json, report: None))
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def parsed(kind: type, line: str, folder: Path) -> Any:
    """The settings that a program gets from a command line."""
    seen = []
    done = invoke(
        lambda asked, execution: seen.append(asked), kind, *shlex.split(line)[3:], folder=folder
    )
    assert done.exit_code == 0, done.output
    return seen[0]


def value_of(one: Any, hint: Any) -> strategies.SearchStrategy[Any]:
    """Values that a field may have."""
    least = one.metadata.get("min")
    if one.name in CHOICES:
        return strategies.sampled_from(CHOICES[one.name])
    if type(None) in get_args(hint):
        (inner,) = set(get_args(hint)) - {type(None)}
        return strategies.none() | value_of(one, inner)
    if get_origin(hint) is tuple:
        return strategies.lists(value_of(one, get_args(hint)[0]), min_size=1, max_size=4).map(tuple)
    if get_origin(hint) is Literal:
        return strategies.sampled_from(get_args(hint))
    if hint is int:
        return strategies.integers(-(10**9) if least is None else least, 10**9)
    if hint is float:
        positive = 1e-30 if one.name == "levels" else None
        return strategies.floats(positive, allow_nan=False, allow_infinity=False)
    if hint is bool:
        return strategies.booleans()
    assert hint is str
    return strategies.text(strategies.characters(min_codepoint=32, max_codepoint=1000), min_size=1)


@pytest.mark.parametrize("name", list(SETTINGS))
@given(data=strategies.data())
@settings(max_examples=20, deadline=None)
def test_the_printed_command_gives_the_same_settings(
    name: str, data: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kind = SETTINGS[name]
    values = {one.name: data.draw(value_of(one, hint)) for one, hint in options(kind)}
    asked = build(kind, values)
    line = command_line(f"reproduce {name}", asked)
    assert parsed(kind, line, tmp_path_factory.getbasetemp() / "fields") == asked
    seed = getattr(asked, "insecure_seed", None)
    assert seed is None or f"--insecure-seed {seed}" in line


@pytest.mark.parametrize("name", list(SETTINGS))
def test_every_option_has_help_and_a_default(name: str) -> None:
    found = dict(options(SETTINGS[name]))
    assert all(one.metadata["help"] and one.default is not MISSING for one in found)
    flags = [flag(one) for one in found]
    assert len(set(flags)) == len(flags)
    assert ("--graph" in flags) == ("--weights" in flags)
    shown = CliRunner().invoke(reproduce.app, [name, "--help"], env={"COLUMNS": "200"}).output
    for expected in (*flags, "--out", "--json", "--fresh", "--report"):
        assert f"{expected} " in shown or f"{expected}/" in shown


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("bound", "--last-round 10 --samples 800 --kappa 3"),
        ("estimation", "--steps 20 --runs 3 --scale 0.7 --scale 1.3 --insecure-seed 5"),
        ("rates", "--steps 20 --runs 3 --graph path:4 --weights max-degree --insecure-seed 5"),
        ("mnist", "--epochs 1 --batch-size 500 --runs 2 --insecure-seed 5 --partition shards:2"),
    ],
)
def test_the_printed_command_repeats_the_study(name: str, arguments: str, tmp_path: Path) -> None:
    def run(line: str, out: str) -> dict[str, Any]:
        words = [*shlex.split(line), "--out", str(tmp_path / out), "--json"]
        done = CliRunner().invoke(reproduce.app, words, catch_exceptions=False)
        assert done.exit_code == 0
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    first = run(f"{name} {arguments}", "first")
    prefix = f"sottovoce reproduce {name} "
    assert first["command"].startswith(prefix)
    assert run(f"{name} {first['command'].removeprefix(prefix)}", "second") == first


@dataclass(frozen=True, kw_only=True)
class Inner:
    """Settings of a part."""

    size: int = option(3, "How large.", min=1)


@dataclass(frozen=True, kw_only=True)
class Outer:
    """Settings with settings inside."""

    part: Inner = field(default_factory=Inner)
    careful: bool = option(True, "Take care.")
    ratio: float = option(0.1, "A ratio.")


def test_a_nested_part_is_flat_on_the_command_line(tmp_path: Path) -> None:
    asked = Outer(part=Inner(size=9), careful=False, ratio=1 / 3)
    line = command_line("reproduce it", asked)
    assert line == f"sottovoce reproduce it --size 9 --no-careful --ratio {1 / 3!r}"
    assert parsed(Outer, line, tmp_path) == asked
    assert build(Outer, {"size": 9, "careful": False, "ratio": 1 / 3}) == asked


def test_old_names_of_data_mean_the_same(tmp_path: Path) -> None:
    kind = SETTINGS["mnist"]
    for old, name in (("full", "mnist"), ("fashion", "fashion-mnist"), ("subset", "subset")):
        assert (
            parsed(kind, f"sottovoce reproduce mnist --data {old}", tmp_path).training.data == name
        )


def test_common_options_say_how_to_run(tmp_path: Path) -> None:
    seen: list[Execution] = []

    def run(asked: Outer, execution: Execution) -> None:
        """Do it.

        Well.
        """
        seen.append(execution)
        execution.say("something of note")
        with ThreadPoolExecutor() as others, pytest.raises(ResultError, match="is in use"):
            others.submit(lock(tmp_path / "checkpoint").__enter__).result()

    done = invoke(run, Outer, folder=tmp_path)
    invoke(run, Outer, "--fresh", folder=tmp_path)
    assert [one.fresh for one in seen] == [False, True]
    assert {one.folder for one in seen} == {tmp_path / "checkpoint"}
    assert "Do it." in invoke(run, Outer, "--help", folder=tmp_path).output
    assert "something of note" in done.stderr


def test_work_that_left_nothing_leaves_no_folder(tmp_path: Path) -> None:
    def fail(asked: Outer, execution: Execution) -> None:
        raise ResultError("no")

    with pytest.raises(ResultError):
        invoke(fail, Outer, folder=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out" / "checkpoint").mkdir(parents=True)
    (tmp_path / "out" / "checkpoint" / "half").touch()
    with pytest.raises(ResultError):
        invoke(fail, Outer, folder=tmp_path / "out")
    assert (tmp_path / "out" / "checkpoint" / "half").exists()


NEW_STUDY = '''
"""Twice a number."""

from dataclasses import dataclass

from sottovoce.charts import Series, line_chart
from sottovoce.studies.judging import judge
from sottovoce.studies.settings import command_line, option
from sottovoce.studies.study import Kind, Study, register


@dataclass(frozen=True, kw_only=True)
class TwiceSettings:
    number: float = option(1.0, "What to double.")


def twice_study(settings, execution):
    """Double a number."""
    found = 2 * settings.number
    verdict = judge(found, found, above=settings.number)
    command = command_line("reproduce twice", settings)
    return Study("twice", "Twice", "It grows.", verdict, ["Done."], {"found": found}, command)


def _chart(data):
    series = [Series("s", [1, 2], [0, data["found"]])]
    return line_chart(series, title="t", x_title="x", y_title="y")


register(Kind("twice", {"twice": _chart}, TwiceSettings, twice_study))
'''


def test_a_new_study_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "twice.py").write_text(NEW_STUDY)
    monkeypatch.setattr(sottovoce.studies, "__path__", [*sottovoce.studies.__path__, str(tmp_path)])
    monkeypatch.setattr(study, "_KINDS", dict(study._KINDS))
    try:
        words = ["twice", "--number", "-3", "--json", "--out", str(tmp_path / "out")]
        done = CliRunner().invoke(importlib.reload(reproduce).app, words, catch_exceptions=False)
        found = json.loads(done.stdout)
        assert (found["data"], found["verdict"]) == ({"found": -6.0}, "refuted")
        assert found["command"] == "sottovoce reproduce twice --number -3"
        written = sorted(path.name for path in (tmp_path / "out").iterdir())
        assert written == [f"twice.{ending}" for ending in ("html", "json", "png", "svg")]
    finally:
        monkeypatch.undo()
        sys.modules.pop("sottovoce.studies.twice", None)
        importlib.reload(reproduce)
