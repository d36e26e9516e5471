"""The documentation as a site: in a real browser, from disk, on a desk and on a phone."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import sottovoce
from draw_architecture import FIGURE, drawn
from pages import PROBE, browser, lightness, reported

ROOT = Path(__file__).resolve().parent.parent
DOCS, SITE = ROOT / "docs", ROOT / "build" / "site"
PAGES = sorted(page.relative_to(DOCS).with_suffix("") for page in DOCS.rglob("*.md"))
WORDS = ("PDSGD", "plan", "load_weights", "elimination")
VIEWS = [(1280, False), (1280, True), (400, False), (400, True)]

built = pytest.mark.skipif(
    not (SITE / "index.html").exists(), reason="the site is not built (make docs)"
)
in_browser = pytest.mark.skipif(
    browser() is None, reason="no Chromium was found (Debian: apt install chromium)"
)

REPORT = """
<script>
const waiting = setInterval(() => {
  const late = performance.now() > 6000;
  const links = [...document.querySelectorAll("ul.search li a")];
  if (document.readyState !== "complete") return;
  if (location.search && !links.length && !late) return;
  clearInterval(waiting);
  setTimeout(() => parent.postMessage(JSON.stringify({
    page: location.pathname,
    errors: window.probeErrors,
    requests: performance.getEntriesByType("resource").map((entry) => entry.name)
      .filter((name) => !name.startsWith("data:") && !name.startsWith("file:")),
    found: [...document.querySelectorAll("ul.search li a")].map((one) => one.textContent),
    images: [...document.images].filter((one) => !one.alt || !one.naturalWidth)
      .map((one) => one.src),
    ink: getComputedStyle(document.body).color,
    paper: getComputedStyle(document.body).backgroundColor,
    width: document.documentElement.scrollWidth,
    room: document.documentElement.clientWidth,
  }), "*"), 50);
}, 20);
</script>
"""


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the site whose pages report what happened to them."""
    folder = tmp_path_factory.mktemp("site") / "größer"
    shutil.copytree(SITE, folder)
    for page in folder.rglob("*.html"):
        text = page.read_text("utf-8").replace("<head>", "<head>" + PROBE, 1)
        before, _, after = text.rpartition("</body>")
        page.write_text(before + REPORT + "</body>" + after, encoding="utf-8")
    return folder


@pytest.fixture(scope="module", params=VIEWS, ids=["desk", "desk, dark", "phone", "phone, dark"])
def views(request: pytest.FixtureRequest, probed: Path) -> Any:
    width, dark = request.param
    addresses = [f"{page.as_posix()}.html" for page in PAGES]
    addresses += [f"search.html?q={word}" for word in WORDS]
    found = dict(zip(addresses, reported(addresses, probed, width, dark), strict=True))
    return {"pages": found, "asked": width, "dark": dark}


@built
def test_every_page_is_on_the_site() -> None:
    assert [page for page in PAGES if not (SITE / f"{page}.html").exists()] == []


@built
def test_the_reference_has_every_public_name_and_command() -> None:
    names = (SITE / "reference" / "api").glob("*.html")
    told = "".join(page.read_text("utf-8") for page in names)
    missing = [
        name
        for name, home in sottovoce._HOME.items()
        if not re.search(rf'id="({re.escape(home)}|sottovoce)\.{name}"', told)
    ]
    assert missing == []
    from sottovoce.cli.app import COMMANDS

    commands = (SITE / "reference" / "commands.html").read_text("utf-8")
    assert [name for name in COMMANDS if f'id="sottovoce-{name}"' not in commands] == []
    assert 'id="cmdoption-sottovoce-train-tensorboard"' in commands


@built
@pytest.mark.thorough
@in_browser
def test_nothing_goes_wrong_and_no_host_is_asked(views: Any) -> None:
    wrong = {page: one["errors"] for page, one in views["pages"].items() if one["errors"]}
    asked = {page: one["requests"] for page, one in views["pages"].items() if one["requests"]}
    assert (wrong, asked) == ({}, {})


@built
@pytest.mark.thorough
@in_browser
def test_the_search_finds_names_and_commands(views: Any) -> None:
    found = {word: views["pages"][f"search.html?q={word}"]["found"] for word in WORDS}
    assert any("sottovoce.PDSGD" in one for one in found["PDSGD"])
    assert "Command line" in found["plan"]
    assert any("load_weights" in one for one in found["load_weights"])
    assert "Attacks and readers" in found["elimination"]


@built
@pytest.mark.thorough
@in_browser
def test_pages_fit_and_follow_the_scheme(views: Any) -> None:
    for page, one in views["pages"].items():
        assert one["room"] == views["asked"], page
        assert one["width"] <= one["room"], f"{page} scrolls sideways"
        assert one["images"] == [], page
        contrast = lightness(one["ink"]) - lightness(one["paper"])
        assert (contrast > 0.6) if views["dark"] else (contrast < -0.6), page


@pytest.mark.thorough
@in_browser
def test_the_probe_sees_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(
        f"<!DOCTYPE html><html><head>{PROBE}</head><body>"
        '<img src="http://localhost:9/x.png"><div style="width:2000px">wide</div>'
        f"<script>missing();</script>{REPORT}</body></html>"
    )
    (found,) = reported(["bad.html"], tmp_path, 400, False)
    assert any("missing" in error for error in found["errors"])
    assert found["requests"] == ["http://localhost:9/x.png"]
    assert found["images"] == ["http://localhost:9/x.png"]
    assert found["width"] > found["room"] == 400


def test_the_picture_of_the_architecture_is_current() -> None:
    current = drawn(Path(sottovoce.__file__).parent)
    told = "run `python scripts/draw_architecture.py`: the imports between rooms have changed"
    assert FIGURE.read_text("utf-8") == current, told


def test_docstrings_become_text_and_a_list_of_arguments() -> None:
    from docstrings import restructured

    lines = [
        "Refuse |x| * y of `code`s; w_ij and x_ stay.",
        "",
        "first: what it is. second, third: what",
        "they are.",
        "",
        "    literal(*args)",
    ]
    assert [line for line in restructured(lines, ["first", "second", "third"]) if line] == [
        r"Refuse \|x\| \* y of ``code``\ s; w_ij and x\_ stay.",
        "- **first**: what it is.",
        "- **second**, **third**: what they are.",
        "::",
        "    literal(*args)",
    ]


def test_links_to_documents_of_the_root_lead_to_their_pages() -> None:
    pytest.importorskip("sphinx")
    from site_pages import linked

    text = "[a](../../CONTRIBUTING.md#x), [b](SECURITY.md), [c](../README.md), [d](files.md)"
    assert linked(text) == (
        "[a](/project/contributing.md#x), [b](/project/security.md), [c](/index.md), [d](files.md)"
    )


@built
def test_the_search_index_is_a_script() -> None:
    """A page on disk may load scripts and may not fetch files."""
    text = (SITE / "searchindex.js").read_text("utf-8")
    assert text.startswith("Search.setIndex({")
    assert json.loads(text.removeprefix("Search.setIndex(").rstrip().rstrip(";").rstrip(")"))
