"""Read pages as tests need them: tables, numbers with their source, and a browser's view."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

_VOID = {"meta", "link", "img", "br", "input", "hr"}
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--hide-scrollbars",
)


@dataclass
class Element:
    """An element with its attributes, children and text, in order."""

    tag: str
    attributes: dict[str, str]
    children: list["Element | str"] = field(default_factory=list)

    def all(self, tag: str) -> list["Element"]:
        found = []
        for child in self.children:
            if isinstance(child, Element):
                found += [child] if child.tag == tag else []
                found += child.all(tag)
        return found

    def text(self, leave_out: tuple[str, ...] = ()) -> str:
        parts = []
        for child in self.children:
            if isinstance(child, str):
                parts.append(child)
            elif child.tag not in leave_out:
                parts.append(child.text(leave_out))
        return "".join(parts)

    def rows(self) -> list[list[str]]:
        """The cells of a table, heading first."""
        return [
            [cell.text() for cell in row.children if isinstance(cell, Element)]
            for row in self.all("tr")
        ]


class _Tree(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parsed(text: str) -> Element:
    """The page as a tree; a tag closed out of order is an error."""
    tree = _Tree()
    tree.feed(text)
    tree.close()
    assert tree.open == [tree.root], f"<{tree.open[-1].tag}> is not closed"
    return tree.root


def browser() -> str | None:
    """A Chromium, if there is one."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((found for name in names if (found := shutil.which(name))), None)


def lightness(colour: str) -> float:
    """0 for black, 1 for white, of a colour as a browser computes it."""
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / (3 * 255)


PROBE = """
<script>
(() => {
  const errors = [];
  const noted = console.error;
  console.error = (...parts) => { errors.push(parts.map(String).join(" ")); noted(...parts); };
  addEventListener("error", (event) => errors.push(String(event.message)));
  addEventListener("unhandledrejection", (event) => errors.push(String(event.reason)));
  addEventListener("securitypolicyviolation",
    (event) => errors.push("blocked " + event.blockedURI));
  window.probeErrors = errors;
})();
</script>
"""

REPORT = """
<script>
const report = () => {
  const figures = [...document.querySelectorAll("figure.chart")];
  const tooltips = [];
  for (const figure of figures) {
    let text = "";
    document.querySelectorAll("#vg-tooltip-element").forEach((one) => one.remove());
    for (const mark of figure.querySelectorAll(".drawn svg path, .drawn svg line")) {
      const box = mark.getBoundingClientRect();
      const at = { bubbles: true, clientX: box.x + box.width / 2, clientY: box.y + box.height / 2 };
      for (const kind of ["pointerover", "pointermove", "mouseover", "mousemove"]) {
        mark.dispatchEvent(new MouseEvent(kind, at));
      }
      const shown = document.querySelector("#vg-tooltip-element.visible");
      if (shown && shown.textContent) { text = shown.textContent; break; }
    }
    tooltips.push(text);
  }
  const labels = [...document.querySelectorAll(".drawn .role-legend-label text")];
  const card = figures.length ? figures[0].querySelector(".card") : null;
  const found = {
    cut: labels.filter((one) => one.getBoundingClientRect().right
      > one.closest(".card").getBoundingClientRect().right).map((one) => one.textContent),
    inks: [...new Set(labels.map((one) => getComputedStyle(one).fill))],
    paper: card ? getComputedStyle(card).backgroundColor : "",
    errors: window.probeErrors,
    requests: performance.getEntriesByType("resource").map((entry) => entry.name)
      .filter((name) => !name.startsWith("data:")),
    charts: figures.length,
    drawn: figures.filter((figure) => figure.querySelector(".drawn svg")
      && figure.querySelector(".drawn svg").getBoundingClientRect().width > 100).length,
    stills: figures.filter((figure) =>
      getComputedStyle(figure.querySelector("img.still")).display !== "none").length,
    menus: document.querySelectorAll(".vega-actions a").length,
    images: [...document.images].map((one) => [one.alt, one.complete && one.naturalWidth > 0]),
    tooltips,
    tables: [...document.querySelectorAll(".scroll")].map((one) => [
      one.scrollWidth > one.clientWidth + 1,
      getComputedStyle(one.querySelector("caption span"), "::after").content.includes("scroll"),
    ]),
    width: document.documentElement.scrollWidth,
    room: document.documentElement.clientWidth,
  };
  parent.postMessage(JSON.stringify(found), "*");
};
const waiting = setInterval(() => {
  const figures = [...document.querySelectorAll("figure.chart")];
  const late = performance.now() > 7000;
  if (late || figures.every((figure) => figure.dataset.drawn)) {
    clearInterval(waiting);
    setTimeout(report, 500);
  }
}, 100);
</script>
"""


def seen(page: Path, folder: Path, width: int = 1280, dark: bool = False) -> Any:
    """What a headless Chromium of this width makes of a page, as the probe reports it."""
    text = page.read_text(encoding="utf-8")
    text = text.replace("<style>", PROBE + "<style>", 1)
    # The last one ends the page: Vega's script holds others.
    before, _, after = text.rpartition("</body>")
    text = before + REPORT + "</body>" + after
    copy = folder / f"probed-{width}.html"
    copy.write_text(text, encoding="utf-8")
    return reported([copy.name], folder, width, dark)[0]


def reported(addresses: list[str], folder: Path, width: int, dark: bool) -> list[Any]:
    """What pages in a folder post to the window around them, opened one after the other.

    addresses: relative to the folder. A page whose script does not report makes the whole fail.
    """
    name = browser()
    assert name is not None
    # A window narrower than a desktop's least width is only had inside a frame.
    frame = folder / f"frame-{width}-{dark}.html"
    frame.write_text(
        "<!DOCTYPE html><body><script>"
        f"const addresses = {json.dumps(addresses)}, found = [];"
        'const view = document.createElement("iframe");'
        f'view.style = "width:{width}px;height:900px;border:0"; document.body.append(view);'
        'addEventListener("message", (event) => { found.push(JSON.parse(event.data));'
        " if (found.length < addresses.length) view.src = addresses[found.length];"
        " else document.body.textContent = JSON.stringify(found); });"
        "view.src = addresses[0];</script>",
        encoding="utf-8",
    )
    profile = folder / f"profile-{width}-{dark}"
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    window = f"--window-size={max(width, 600)},900"
    time = f"--virtual-time-budget={9000 * len(addresses)}"
    flags = ("--headless", *FLAGS, "--dump-dom", f"--user-data-dir={profile}")
    done = subprocess.run(
        [name, *flags, scheme, window, time, frame.as_uri()],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    said = parsed(done.stdout).all("body")[0].text()
    assert said.startswith("["), f"a page did not report: {done.stdout[:500]} {done.stderr}"
    return list(json.loads(said))
