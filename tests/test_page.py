"""Pages in a real browser: drawn, quiet, and no wider than a phone."""

from pathlib import Path
from typing import Any

import pytest

from pages import browser, lightness, seen

pytest.importorskip("altair")
pytest.importorskip("vl_convert")
pytest.importorskip("cryptography")

from sottovoce.report import write_page
from sottovoce.report.demo import DemoSettings, demo_study, write_demo
from sottovoce.storage.execution import Execution
from sottovoce.studies.bound import BoundSettings, bound_study
from sottovoce.studies.estimation import EstimationSettings, estimation_study

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        browser() is None, reason="no Chromium was found (Debian: apt install chromium)"
    ),
]
TINY = DemoSettings(runs=2, block=20, blocks=2, iterations=3, restarts=1, insecure_seed=3)


@pytest.fixture(scope="module", params=["demo", "report"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in a browser, größer")
    if request.param == "demo":
        return write_demo(demo_study(TINY, Execution(say=lambda line: None)), folder)[0]
    studies = [
        bound_study(BoundSettings(samples=1000)),
        estimation_study(EstimationSettings(steps=30, runs=3, insecure_seed=0)),
    ]
    return write_page(folder / "report.html", studies)


@pytest.fixture(scope="module", params=[(1280, False), (375, True)], ids=["desk", "phone, dark"])
def view(request: pytest.FixtureRequest, page: Path) -> Any:
    width, dark = request.param
    return seen(page, page.parent, width, dark) | {"asked": width, "dark": dark}


def test_nothing_goes_wrong_and_no_host_is_asked(view: Any) -> None:
    assert view["errors"] == []
    assert view["requests"] == []


def test_every_chart_is_drawn_in_place_of_its_picture(view: Any) -> None:
    assert view["charts"] >= 2
    assert view["drawn"] == view["charts"]
    assert view["stills"] == 0
    assert view["menus"] == 0


def test_every_image_is_shown_and_described(view: Any) -> None:
    assert view["images"]
    assert [alt for alt, shown in view["images"] if not alt or not shown] == []


def test_tooltips_tell_values(view: Any) -> None:
    assert len(view["tooltips"]) == view["charts"]
    assert all(any(letter.isdigit() for letter in text) for text in view["tooltips"])


def test_legends_are_whole(view: Any) -> None:
    assert view["inks"]
    assert view["cut"] == []


def test_charts_are_as_dark_as_the_page(view: Any) -> None:
    ink, paper = (max(map(lightness, view["inks"])), lightness(view["paper"]))
    assert (ink - paper > 0.6) if view["dark"] else (paper - ink > 0.6)


def test_nothing_scrolls_sideways(view: Any) -> None:
    assert view["room"] == view["asked"]
    assert view["width"] <= view["room"]


def test_tables_say_that_they_scroll(view: Any) -> None:
    assert [wide for wide, _ in view["tables"]] == [says for _, says in view["tables"]]
    if view["asked"] < 600:
        assert any(wide for wide, _ in view["tables"])


def test_the_probe_sees_what_is_wrong(tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    figure = '<figure class="chart"><img class="still" src="http://localhost:9/x.png"></figure>'
    bad.write_text(
        "<!DOCTYPE html><html><head><style></style></head><body>"
        f'{figure}<div style="width:2000px">wide</div><script>missing();</script></body></html>'
    )
    found = seen(bad, tmp_path, 375)
    assert any("missing" in error for error in found["errors"])
    assert found["requests"] == ["http://localhost:9/x.png"]
    assert found["drawn"] < found["charts"] == found["stills"] == 1
    assert found["width"] > found["room"]
    assert found["images"] == [["", False]]
