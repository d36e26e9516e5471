"""A page says what the saved results say, and needs nothing but itself."""

import json
import re
import resource
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from pages import Element, parsed

pytest.importorskip("altair")
pytest.importorskip("vl_convert")

from sottovoce import report
from sottovoce.charts.png import encode_text
from sottovoce.errors import ResultError
from sottovoce.graphs import ring
from sottovoce.mechanisms import PDSGD
from sottovoce.problems import Estimation
from sottovoce.report.page import resource as page_resource
from sottovoce.simulation.runner import simulate
from sottovoce.studies import Study, Table
from sottovoce.studies.bound import BoundSettings, bound_study
from sottovoce.studies.everything import verdicts
from sottovoce.studies.judging import Verdict

CLI = [sys.executable, "-c", "from sottovoce.cli import main; main()"]


@pytest.fixture(scope="module")
def study() -> Study:
    return bound_study(BoundSettings(samples=1000, last_round=100))


@pytest.fixture(scope="module")
def page(study: Study) -> Element:
    return parsed(report.page([study], title="A page", intro="What was found."))


def shown(study: Study) -> Element:
    return parsed(report.page([study]))


def hostile(text: str) -> Study:
    table = Table(text, ("name", "value"), [(text, 1), ("b", 2)])
    return Study("plain", text, text, False, [text], {}, f"sottovoce {text}", [table])


def test_tables_are_those_of_the_study(study: Study, page: Element) -> None:
    tables = page.all("table")
    saved = study.to_json()["tables"]
    assert len(tables) == len(saved) == 2
    for drawn, kept in zip(tables, saved, strict=True):
        assert drawn.all("caption")[0].text() == kept["title"]
        assert drawn.rows() == [kept["headings"], *kept["rows"]]


def test_findings_claim_and_command_are_shown(study: Study, page: Element) -> None:
    listed = [item.text() for item in page.all("ul")[0].all("li")]
    assert listed == list(study.findings)
    assert study.claim in page.all("blockquote")[0].text()
    assert page.all("pre")[0].text() == study.command


@pytest.mark.parametrize(
    ("verdict", "words"),
    [("confirmed", "confirm this"), ("undecided", "do not decide"), ("refuted", "refute this")],
)
def test_the_verdict_is_in_words(verdict: Verdict, words: str) -> None:
    found = shown(Study("s", "t", "a claim", verdict, ["f"], {}, "c"))
    assert any(words in one.text() for one in found.all("p"))


def test_a_study_without_a_claim_has_no_verdict() -> None:
    found = shown(Study("s", "t", "", None, ["f"], {}, "c"))
    assert not found.all("blockquote")
    assert not any("verdict" in one.attributes.get("class", "") for one in found.all("p"))


def test_text_from_results_cannot_become_markup() -> None:
    text = "<script>alert('x')</script> & \"quoted\""
    found = shown(hostile(text))
    assert found.all("h2")[0].text() == text
    assert found.all("table")[0].rows()[1] == [text, "1"]
    assert [one.text() for one in found.all("script")] == [page_resource("page.js")]


def test_charts_carry_their_data_and_a_described_picture(study: Study, page: Element) -> None:
    figure = page.all("figure")[0]
    spec = json.loads(figure.all("script")[0].text())
    values = [row for rows in spec["datasets"].values() for row in rows if "series" in row]
    drawn = [row["y"] for row in values if "experiments" in row["series"]]
    assert drawn == study.data["entropy_nats"]["experiment"]
    picture = figure.all("img")[0].attributes
    assert picture["src"].startswith("data:image/svg+xml;base64,")
    last = study.data["entropy_nats"]["experiment"][-1]
    assert f"{last:.4g} at 100" in picture["alt"]


def test_the_page_asks_no_host_and_has_its_landmarks(page: Element) -> None:
    addresses = [
        element.attributes[name]
        for tag in ("img", "link", "script", "a", "iframe", "source")
        for element in page.all(tag)
        for name in ("src", "href")
        if name in element.attributes
    ]
    assert addresses
    assert all(one.startswith(("data:", "#")) for one in addresses)
    policy = next(m for m in page.all("meta") if "http-equiv" in m.attributes)
    assert policy.attributes["content"].startswith("default-src 'none'")
    assert page.all("html")[0].attributes["lang"] == "en"
    assert [len(page.all(tag)) for tag in ("header", "main", "footer", "h1")] == [1, 1, 1, 1]


def test_headings_descend_one_level_at_a_time_and_names_are_unique(study: Study) -> None:
    text = report.page([study, study])
    levels = [int(level) for level in re.findall(r"<h([1-6])[ >]", text)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    names = [one.attributes["id"] for one in parsed(text).all("section")]
    assert names == ["bound", "bound-2"]


def test_images_of_a_study_become_a_strip_with_errors() -> None:
    pictures = {
        "truth": [encode_text(torch.zeros(4, 4))],
        "attack": [encode_text(torch.ones(4, 4))],
    }
    rows = [{"name": "attack", "errors": [16.25]}]
    found = shown(Study("s", "t", "", None, [], {"images": pictures, "rows": rows}, "c"))
    alts = [image.attributes["alt"] for image in found.all("img")]
    assert alts == ["truth, image 1", "attack, image 1, error 16.2"]
    assert found.all("small")[0].text() == "error 16.2"


def test_a_saved_result_becomes_a_section(tmp_path: Path) -> None:
    problem = Estimation.random(5)
    result = simulate(problem, PDSGD(), ring(5), steps=20, runs=3, insecure_seed=0)
    result.save(tmp_path / "run")
    section = report.load_section(tmp_path / "run.json")
    found = parsed(report.page(sections=[section]))
    rows = dict(found.all("table")[0].rows()[1:])
    assert rows["distance"] == f"{float(result.metric('distance')[-1].mean()):.6g}"
    assert len(found.all("figure")) == len(result.metrics)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not JSON"),
        ('{"kind": "transcript"}', "holds 'transcript'"),
        ("[]", "holds 'list'"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(ResultError, match=reason):
        report.load_section(path)


def test_the_command_writes_the_page_and_names_what_it_cannot(study: Study, tmp_path: Path) -> None:
    place = tmp_path / "größe und mehr"
    study.write(place)
    good = [*CLI, "report", str(place / "bound.json"), "--out", str(place / "page.html")]
    done = subprocess.run(good, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert parsed((place / "page.html").read_text("utf-8")).all("table")
    bad = [*CLI, "report", str(tmp_path / "nothing.json")]
    done = subprocess.run(bad, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "nothing.json" in done.stderr
    assert "Traceback" not in done.stderr


def _small_files() -> None:
    # A limit on the size of files stands in for a full disk: writing fails half-way.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))


def test_a_full_disk_is_said_and_leaves_the_old_page(study: Study, tmp_path: Path) -> None:
    study.write(tmp_path)
    page = tmp_path / "page.html"
    page.write_text("the old page")
    command = [*CLI, "report", str(tmp_path / "bound.json"), "--out", str(page)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, preexec_fn=_small_files
    )
    assert done.returncode == 2
    assert "cannot read or write" in done.stderr
    assert page.read_text() == "the old page"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".page")]


def test_the_summary_has_a_line_for_each_study(study: Study) -> None:
    table = verdicts([study])
    assert table.rows == [("bound", "confirmed", study.findings[-1])]
