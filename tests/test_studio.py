"""The studio: refusals of its server, what listeners get, and the page in a real browser."""

import http.client
import json
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from browser import Browser
from command_line import CommandLine
from pages import browser
from sottovoce.errors import GraphError
from sottovoce.studio.lesson import Lesson
from sottovoce.studio.server import Studio
from sottovoce.studio.wishes import Wish, WishError

HEADLESS = pytest.mark.skipif(browser() is None, reason="no Chromium")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    command = [sys.executable, "-c", "from sottovoce.cli import main; main()", "studio", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    ) as process:
        assert process.stdout is not None
        said = ""
        while "}" not in said:
            said += process.stdout.readline()
        yield json.loads(said)["address"]
        process.terminate()


def asked(address: str, path: str, body: Any = None, **headers: str) -> tuple[int, str, Any]:
    """Status, text and headers of an answer; headers replace those that the page sends."""
    host, _, token = address.removeprefix("http://").partition("/?token=")
    connection = http.client.HTTPConnection(host, timeout=60)
    sent = {"x-sottovoce-token": token, **{k.replace("_", "-"): v for k, v in headers.items()}}
    content = None if body is None else json.dumps(body)
    with closing(connection):
        connection.request("GET" if body is None else "POST", path, content, sent)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers


def test_the_page_is_for_its_own_host_origin_and_token(address: str) -> None:
    status, page, headers = asked(address, "/")
    assert status == 200
    assert "sottovoce" in page
    assert "default-src 'none'" in headers["content-security-policy"]
    for wrong in (
        {"x_sottovoce_token": "guess"},
        {"host": "evil.example"},
        {"host": "127.0.0.1:1"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
    ):
        status, said, _ = asked(address, "/api/choices", **wrong)
        assert status == 403, wrong
        assert "mechanisms" not in said
    assert asked(address, "/api/choices")[0] == 200


@pytest.mark.parametrize(
    "said",
    [
        [],
        {"graph": "/etc/passwd"},
        {"graph": "ring:5.csv"},
        {"mechanism": "own.py:rule"},
        {"rounds": 10**6},
        {"rounds": True},
        {"epsilon": 0.1},
        {"data": "mnist"},
        {"data": ["digits"]},
        {"mechanism": {}},
        {"graph": "complete:999"},
        {"graph": "hypercube:40"},
        {"file": "x"},
    ],
)
def test_a_wish_that_is_not_offered_is_refused(address: str, said: Any) -> None:
    with pytest.raises(WishError):
        Wish.of(said)
    status, text, _ = asked(address, "/api/trainings", said)
    assert status == 400
    assert "error" in json.loads(text)


def test_requests_that_are_not_understood_are_refused(address: str) -> None:
    assert asked(address, "/api/trainings", {"graph": "x" * 20_000})[0] == 400
    assert asked(address, "/api/trainings/99")[0] == 400
    for said in ({}, {"wish": {}, "listener": []}, {"wish": {}, "listener": {"links": [[0]]}}):
        assert asked(address, "/api/command", said)[0] == 400
    assert asked(address, "/../../etc/passwd")[0] == 404
    with pytest.raises((WishError, GraphError)):
        Lesson(Wish.of({"graph": "complete:99"}))
    with pytest.raises(GraphError, match="components"):
        Lesson(Wish.of({"graph": "links:0-1,2-3"}))


@pytest.fixture(scope="module")
def lesson() -> Lesson:
    made = Lesson(Wish.of({"rounds": 40})).start()
    made.wait()
    assert made.state == "done", made.problem_text
    return made


def heard(lesson: Lesson, links: Any = (), inside: Any = (), protection: str = "plain") -> Any:
    said = {"links": links, "agents": inside, "target": 0, "protection": protection}
    return lesson.listen(said)


def test_two_links_give_the_digit_and_one_does_not(lesson: Lesson) -> None:
    one, two = heard(lesson, [[0, 1]]), heard(lesson, [[0, 1], [0, 4]])
    assert one["error"] > 0.5 * one["blind_error"]
    assert two["error"] < 0.01 * two["blind_error"]
    assert two["identification"]["top1"] == 1.0
    assert len(two["found"]) == len(two["truth"]) == 784
    away = sum(abs(a - b) for a, b in zip(two["found"], two["truth"], strict=True)) / 784
    assert away < 3


def test_encryption_and_masks_take_the_digit_from_the_wire(lesson: Lesson) -> None:
    both = [[0, 1], [0, 4]]
    assert not heard(lesson, both, protection="encrypted")["heard"]
    masked = heard(lesson, both, protection="masked")
    assert not masked["heard"] or masked["error"] > 0.5 * masked["blind_error"]
    assert heard(lesson, (), [1], "encrypted")["heard"], "an agent reads what it is sent"


@pytest.mark.parametrize("said", [{"links": [[0, 2]]}, {"agents": [7]}, {"target": 9}, {}])
def test_listeners_that_cannot_be_are_refused(lesson: Lesson, said: Any) -> None:
    whole = {"links": [], "agents": [], "target": 0, "protection": "plain", **said}
    with pytest.raises(WishError):
        lesson.listen(whole if said else {})


def test_the_guarantee_keeps_what_the_proof_permits() -> None:
    made = Lesson(Wish.of({"epsilon": 3.0, "rounds": 60})).start()
    made.wait()
    assert made.state == "done", made.problem_text
    assert made.facts["epsilon"] == pytest.approx(3.0, abs=0.01)
    assert made.facts["epsilon_lower"]["epsilon"] < 3.0
    # An agent knows the edge noise on its own links, so less is proved against it.
    inside, both = (heard(made, (), agents)["identification"] for agents in ([1], [1, 4]))
    found = heard(made, [[0, 1], [0, 4]])["identification"]
    assert found["epsilon"] == pytest.approx(3.0, abs=0.01)
    # Sampling does not hide a record from somebody who looks for those of one batch.
    assert found["in_batch"] > found["epsilon"]
    assert found["permitted"] == pytest.approx(math.exp(found["in_batch"]) / 1000 + 1e-5, rel=0.01)
    assert found["epsilon"] < inside["epsilon"] < both["epsilon"]
    assert found["permitted"] < inside["permitted"] < both["permitted"]
    # Three standard deviations of a proportion of that many records.
    margin = 3 * math.sqrt(found["permitted"] / found["targets"])
    assert found["top1"] <= found["permitted"] + margin


@pytest.mark.parametrize("data", ["census", "words"])
def test_records_and_words_are_read_off_two_links(data: str) -> None:
    made = Lesson(Wish.of({"data": data, "rounds": 30})).start()
    made.wait()
    assert made.state == "done", made.problem_text
    found = heard(made, [[0, 1], [0, 4]])
    assert found["exact"]
    assert sorted(found["found"]) == sorted(found["truth"])


def test_a_training_can_be_stopped() -> None:
    made = Lesson(Wish.of({"rounds": 400, "epsilon": 8.0})).start()
    made.stop()
    assert made.state == "stopped"
    with pytest.raises(WishError, match="not ended"):
        heard(made)


def test_a_second_tab_cannot_disturb_a_training() -> None:
    studio = Studio()
    number, lesson = studio.begin(Wish.of({"rounds": 400, "epsilon": 8.0}))
    with pytest.raises(WishError, match="another training is running"):
        studio.begin(Wish())
    assert studio.at(number) is lesson
    lesson.stop()
    with pytest.raises(WishError, match="is gone"):
        studio.at(number + 1)


def test_a_told_command_gives_the_same_numbers(lesson: Lesson, run: CommandLine) -> None:
    found = heard(lesson, [[0, 1], [0, 4]])
    assert found["command"].startswith("sottovoce listen --data digits --graph ring:5")
    again = run(*shlex.split(found["command"])[1:], "--json").json()
    assert again["heard"] == json.loads(json.dumps(found))
    assert again["training"] == json.loads(json.dumps(lesson.to_json()))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--graph", "ring:5000"), "accepted: ring"),
        (("--epsilon", "2"), "accepted: none, 1, 3, 8"),
        (("--hears", "0-9"), "the graph has no link 0-9"),
        (("--hears", "zero"), "such as 0-1,0-4"),
        (("--target", "1", "--inside", "1"), "the target is agent 1"),
    ],
)
def test_listen_refuses_before_it_trains(
    run: CommandLine, options: tuple[str, ...], reason: str
) -> None:
    done = run("listen", *options)
    assert done.code == 2
    assert reason in " ".join(done.err.split())


class Visit(Browser):
    """A visitor of the studio, with a keyboard and a pointer."""

    def read(self, name: str) -> str:
        return str(self.run(f"document.getElementById('{name}').textContent"))

    def choose(self, name: str, value: Any) -> None:
        at = f"document.getElementById('{name}')"
        self.run(f"{at}.value = '{value}'; {at}.dispatchEvent(new Event('change'))")

    def press(self, name: str) -> None:
        """Click a thing of the form with the pointer, wherever it stands on the page."""
        self.click(f"#{name}")

    def click(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        x, y = self._point(selector, across, down)
        for kind in ("mousePressed", "mouseReleased"):
            where = {"x": x, "y": y, "button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **where)

    def tap(self, selector: str) -> None:
        """Touch a thing with a finger."""
        x, y = self._point(selector)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def _point(self, selector: str, across: float = 0.5, down: float = 0.5) -> Any:
        return self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            "one.scrollIntoView({block: 'center'}); const box = one.getBoundingClientRect();"
            f"return [box.x + {across} * box.width, box.y + {down} * box.height]; }})()"
        )

    def enter(self, selector: str) -> None:
        """Focus a thing and press Enter, as one does without a pointer."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        given = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        self.call("Input.dispatchKeyEvent", type="keyDown", **given)
        self.call("Input.dispatchKeyEvent", type="keyUp", **given)

    def train(self, **choices: Any) -> None:
        for name, value in choices.items():
            self.choose(name, value)
        before = int(self.run("document.body.dataset.trained || 0"))
        self.press("train")
        self.until(f"Number(document.body.dataset.trained) > {before}", 200)

    def visit(self, address: str) -> None:
        self.open(address)
        self.until("document.body.dataset.ready")


LINK = '[aria-label="link {}"]'


@pytest.mark.thorough
@HEADLESS
def test_without_a_pointer_one_draws_a_graph_and_listens(address: str, tmp_path: Path) -> None:
    with Visit(tmp_path) as page:
        page.visit(address)
        page.choose("graph", "draw")
        page.enter("#clear")
        for _ in range(4):
            page.enter("#add")
        for one, other in ((0, 1), (1, 2), (2, 0)):
            page.enter(f'[aria-label="agent {one}"]')
            page.enter(f'[aria-label="agent {other}"]')
        page.press("train")
        assert "Agent 3 has no link" in page.read("said")
        page.enter('[aria-label="agent 2"]')
        page.enter('[aria-label="agent 3"]')
        page.train(rounds=20)
        assert page.read("tile-accuracy") != "-"
        assert page.read("learned-3").startswith(".")
        page.enter(LINK.format("0-1"))
        page.until("document.body.dataset.blind")
        page.enter(LINK.format("0-2"))
        page.until("Number(document.body.dataset.error) < 1")
        page.press("command")
        page.until("!document.getElementById('shown').hidden")
        assert "--graph links:0-1,0-2,1-2,2-3 " in page.read("shown")
        page.enter(LINK.format("0-1"))
        page.enter(LINK.format("0-2"))
        page.until("document.getElementById('verdict').textContent.startsWith('Click a link')")
        assert page.read("tile-top1") == "-"
        # Free space of the picture takes an agent once one draws again.
        page.choose("click", "join")
        page.click("#picture", 0.5, 0.3)
        page.until("document.querySelector('[aria-label=\"agent 4\"]')")
        assert page.errors == []


@pytest.mark.thorough
@HEADLESS
def test_a_finger_listens_to_words_on_a_phone(address: str, tmp_path: Path) -> None:
    with Visit(tmp_path, 400) as page:
        page.call("Emulation.setTouchEmulationEnabled", enabled=True)
        page.visit(address)
        page.train(data="words", rounds=20)
        page.tap(LINK.format("0-1"))
        page.tap(LINK.format("0-4"))
        page.until("document.getElementById('verdict').textContent.includes('is right')")
        words = "[...document.querySelectorAll('#{} li')].map((one) => one.textContent)"
        truth, found = (page.run(words.format(name)) for name in ("truth-words", "found-words"))
        assert truth
        assert found == truth
        assert page.run("document.documentElement.scrollWidth") <= 400
        page.tap("input[value=encrypted]")
        page.until("document.getElementById('verdict').textContent.includes('reads nothing')")
        assert page.run(words.format("found-words")) == []
        page.tap("input[value=masked]")
        page.until("document.getElementById('verdict').textContent.includes('masked links')")
        assert page.run(words.format("found-words")) != truth
        assert page.errors == []


@pytest.mark.thorough
@HEADLESS
def test_an_address_a_stop_a_second_tab_and_a_wrong_token(address: str, tmp_path: Path) -> None:
    choices = "#graph=star%3A6&data=census&mechanism=dsgd&rounds=30&seed=7&links=0-2&target=2"
    with Visit(tmp_path / "first") as page, Visit(tmp_path / "second") as other:
        page.visit(address + choices)
        page.press("share")
        assert "graph=star%3A6&mechanism=dsgd&data=census" in page.read("shown")
        page.train()
        page.until("document.getElementById('verdict').textContent.includes('agent 2')")
        page.choose("epsilon", "8")
        page.choose("rounds", "400")
        page.press("train")
        page.until("document.getElementById('said').textContent.startsWith('Round')")
        other.visit(address)
        other.press("train")
        other.until("document.getElementById('said').textContent.includes('another tab')")
        page.press("stop")
        page.until("document.getElementById('said').textContent.startsWith('Stopped')", 60)
        other.train(rounds=20)
        page.run("location.hash = 'graph=path%3A4&links=0-1'")
        page.until("document.querySelectorAll('#picture .agent').length === 4")
        # The server's refusals are errors to a browser, and sentences to a visitor.
        assert all("400" in error for error in other.errors)
        other.open(address.partition("=")[0] + "=guess")
        assert "token is missing or wrong" in other.run("document.body.textContent")


@pytest.mark.thorough
@HEADLESS
def test_a_visitor_trains_listens_and_switches_on_the_guarantee(
    address: str, tmp_path: Path
) -> None:
    with Visit(tmp_path) as page:
        page.visit(address)
        downloads = {"behavior": "allow", "downloadPath": str(tmp_path)}
        page.call("Browser.setDownloadBehavior", **downloads)
        page.train(graph="complete:5", rounds=40)
        page.click(LINK.format("0-1"))
        page.until("document.body.dataset.blind")
        blind = float(page.run("document.body.dataset.blind"))
        assert float(page.run("document.body.dataset.error")) > 0.5 * blind
        page.click(LINK.format("0-4"))
        page.until("Number(document.body.dataset.error) < 1")
        error, verdict = page.run("document.body.dataset.error"), page.read("verdict")
        assert "by elimination" in verdict
        page.until("/[0-9]/.test(document.getElementById('tile-lower').textContent)")
        tiles = [page.read(f"tile-{name}") for name in ("accuracy", "epsilon", "lower", "top1")]
        page.press("command")
        page.until("!document.getElementById('shown').hidden")
        assert page.read("shown").endswith("--hears 0-1,0-4 --target 0 --links plain")
        page.press("export")
        file = tmp_path / "sottovoce-studio.html"
        wait_for(file)
        page.train(epsilon=3)
        page.until("document.body.dataset.permitted")
        top1, permitted = (
            float(page.run(f"document.body.dataset.{name}")) for name in ("top1", "permitted")
        )
        assert top1 <= permitted + 3 * math.sqrt(permitted / 50)
        page.resize(400)
        assert page.run("document.documentElement.scrollWidth") <= 400
        assert page.errors == []
        host = address.partition("/?")[0]
        assert all(one.startswith((host, "data:")) for one in page.requests)
    with Visit(tmp_path, dark=True) as page:
        page.open(file.as_uri())
        page.until("document.body.dataset.error")
        assert page.run("document.body.dataset.error") == error
        assert page.read("verdict") == verdict
        shown = [page.read(f"tile-{name}") for name in ("accuracy", "epsilon", "lower", "top1")]
        assert shown == tiles
        page.click(LINK.format("2-3"))
        page.until("document.getElementById('verdict').textContent.includes('not in the exported')")
        assert page.errors == []
        assert page.requests == [file.as_uri()]


def wait_for(file: Path, seconds: float = 30.0) -> None:
    last = time.monotonic() + seconds
    while not file.exists():
        assert time.monotonic() < last, f"{file} was not saved"
        time.sleep(0.1)
