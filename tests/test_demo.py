"""The demo's page tells what its data says, wherever it runs."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pages import Element, parsed

pytest.importorskip("altair")
pytest.importorskip("vl_convert")
pytest.importorskip("cryptography")

from sottovoce.privacy.attacks import Conventional
from sottovoce.report import load_section
from sottovoce.report.demo import DemoSettings, demo_study, open_page, write_demo
from sottovoce.storage.execution import Execution
from sottovoce.storage.identity import package_version

pytestmark = pytest.mark.thorough
TINY = DemoSettings(
    runs=2, block=20, blocks=2, iterations=3, restarts=1, proved_rounds=3, insecure_seed=3
)
CLI = [sys.executable, "-c", "from sottovoce.cli import main; main()"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    said: list[str] = []
    study = demo_study(TINY, Execution(say=said.append))
    assert len(said) == 7
    place = tmp_path_factory.mktemp("Grüße von der demo")
    write_demo(study, place)
    return place


@pytest.fixture(scope="module")
def data(folder: Path) -> Any:
    return json.loads((folder / "data.json").read_text("utf-8"))["data"]


@pytest.fixture(scope="module")
def page(folder: Path) -> Element:
    return parsed((folder / "index.html").read_text("utf-8"))


def at(data: Any, path: str) -> Any:
    for part in path.split("."):
        data = data[int(part) if isinstance(data, list) else part]
    return data


def test_every_number_on_the_page_is_the_one_in_the_data(page: Element, data: Any) -> None:
    numbers = page.all("data")
    assert len(numbers) > 150
    for number in numbers:
        value = at(data, number.attributes["data-from"])
        assert number.attributes["value"] == repr(value)
        shown = number.text().replace(",", "")
        scale = 0.01 if shown.endswith("%") else 1.0
        mantissa, _, exponent = shown.rstrip("%").partition("e")
        decimals = len(mantissa.partition(".")[2]) - int(exponent or 0)
        assert abs(float(shown.rstrip("%")) * scale - value) <= 0.5001 * scale * 10.0**-decimals


def test_no_number_stands_on_the_page_without_its_source(page: Element, data: Any) -> None:
    text = page.all("body")[0].text(leave_out=("data", "script", "code", "style"))
    text = text.replace(f"sottovoce {package_version()}", "")
    rounds = {f"{moment['round']:,}" for moment in data["moments"].values()}
    stray = set(re.findall(r"\d[\d,]*\.\d+|\d[\d,]*\s?%|\d[\d,]*\d", text)) - rounds
    assert not stray


def test_the_training_with_a_proof_says_its_epsilon_and_what_it_permits(data: Any) -> None:
    proved = data["guaranteed"]
    assert proved["epsilon"] == pytest.approx(8.0, rel=1e-2)
    assert proved["epsilon"] <= 8
    assert proved["against"]["eavesdropper"] == proved["epsilon"] < proved["against"]["any_1"]
    plain, ranked = (proved["identified"][name] for name in ("DSGD", "dp-pdsgd"))
    assert plain["records"] == plain["first"] == 5, "without noise every image is found"
    assert ranked["records"] > 400
    assert ranked["first"] <= 0.1 * ranked["records"]
    control = proved["identified"]["dp-pdsgd without its noise"]
    assert control["median_rank"] < ranked["median_rank"], "without noise batches give more away"
    permitted = proved["permitted"]
    assert permitted["chance"] < permitted["first"] < 1
    assert permitted["median_rank"] < ranked["others"] / 2


def test_private_sentences_are_overheard_and_shown(page: Element, data: Any) -> None:
    words = data["words"]
    assert words["places"] == 9 * TINY.agents
    assert words["guessed"] < words["places"] / 4
    assert words["whole"] >= 4
    assert words["whole"] == sum(a == b for a, b in zip(words["said"], words["heard"], strict=True))
    text = page.all("body")[0].text()
    assert all(line in text for line in words["said"])


def test_charts_show_the_curves_of_the_data(page: Element, data: Any) -> None:
    specs = [json.loads(script.text()) for script in page.all("script") if script.attributes]
    rows = [row for rows in specs[0]["datasets"].values() for row in rows]
    for name, curves in data["accuracy"].items():
        drawn = [row for row in rows if row.get("series") == name]
        assert [row["x"] for row in drawn] == curves["rounds"]
        for key, kept in (("y", "mean"), ("low", "low"), ("high", "high")):
            assert [row[key] for row in drawn] == curves["validation"][kept]
    assert len(specs) == 3


def test_every_agent_is_shown_in_both_rounds_with_every_image_described(
    page: Element, data: Any
) -> None:
    images = [one.attributes["alt"] for one in page.all("img")]
    assert all(images)
    for agent in range(TINY.agents):
        assert sum(f"image of agent {agent}" in alt.lower() for alt in images) == 2 * 5
    assert len(set(images)) > 30


def test_the_sections_come_in_the_order_of_the_story(page: Element) -> None:
    names = [section.attributes["id"] for section in page.all("section")]
    story = [
        "learning",
        "links",
        "recovered",
        "words",
        "proof",
        "bound",
        "numbers",
        "limits",
        "own",
    ]
    assert names == story


def test_links_carry_what_the_algorithms_say(data: Any) -> None:
    assert all(link["share"] == 0 and link["away"] < 1e-6 for link in data["links"]["DSGD"])
    sent = dict.fromkeys(range(TINY.agents), 0.0)
    for link in data["links"]["PDSGD"]:
        assert 0 <= link["share"] <= 1
        assert link["numbers"] == 19_430
        sent[link["from"]] += link["share"]
    assert all(0 < total < 1 for total in sent.values())


def test_two_messages_give_the_gradient_away(data: Any) -> None:
    # At k = 2 the stepsizes' relative spread is 0.19, and the cosine 1 / sqrt(1 + 0.19²) = 0.98.
    assert data["closer"]["cosine"] == pytest.approx(1 / math.sqrt(1 + 0.19245**2), abs=0.01)
    for attack in data["moments"]["late"]["attacks"]:
        if attack["attack"] == Conventional.name and attack["algorithm"] == "DSGD":
            assert min(attack["cosines"]) > 0.99
            assert attack["labels_right"] == TINY.agents


def test_the_same_seed_gives_the_same_numbers_over_the_old_page(folder: Path, data: Any) -> None:
    again = demo_study(TINY, Execution(say=lambda line: None))
    assert json.loads(json.dumps(again.data)) == data
    write_demo(again, folder)
    assert parsed((folder / "index.html").read_text("utf-8")).all("table")
    assert {path.name for path in folder.iterdir()} == {
        "index.html",
        "data.json",
        "accuracy.png",
        "network.png",
        "leak.png",
        "bound.png",
    }


def test_the_data_alone_makes_a_report(folder: Path) -> None:
    section = load_section(folder / "data.json")
    assert "What the eavesdropper recovered" in section.body


def test_no_browser_is_started_where_there_is_no_screen(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(opened.append(address)) or True)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert not open_page(folder / "index.html")
    monkeypatch.setenv("DISPLAY", ":0")
    assert open_page(folder / "index.html")
    assert opened == [(folder / "index.html").as_uri()]
    assert " " not in opened[0]


def test_a_folder_that_cannot_be_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    command = [*CLI, "demo", "--quick", "--no-open", "--out", str(tmp_path / "file" / "demo")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 2
    assert "cannot read or write" in done.stderr
    assert "file/demo" in done.stderr
    assert "Training" not in done.stderr
    assert "Traceback" not in done.stderr


def test_the_example_for_other_models_runs_as_shown_but_for_its_sizes(
    page: Element, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"steps=1000": "steps=5", "rounds=[50]": "rounds=[2]", "targets=5": "targets=1"}
    text = page.all("pre")[0].text()
    for shown, small in sizes.items():
        assert shown in text
        text = text.replace(shown, small)
    images = torch.rand(20, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    names = {
        "model": torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3)),
        "loss": torch.nn.functional.cross_entropy,
        "data": [(images, torch.arange(20) % 3)] * 5,
        "shape": (1, 4, 4),
    }
    exec(text, names)
    assert "An eavesdropper, who saw every message of pdsgd" in capsys.readouterr().out
