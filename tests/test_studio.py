"""The studio: refusals of its server, what listeners get, and the page in a real browser."""

import http.client
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from browser import Browser
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
    found = heard(made, [[0, 1], [0, 4]])["identification"]
    assert found["permitted"] == pytest.approx(math.exp(3.0) / 1000 + 1e-5, rel=0.01)
    # Three standard deviations of a proportion of so many records.
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


@pytest.mark.thorough
@HEADLESS
def test_a_visitor_trains_listens_and_switches_on_the_guarantee(
    address: str, tmp_path: Path
) -> None:
    with Browser(tmp_path) as page:
        page.open(address)
        page.until("document.body.dataset.ready")
        page.run("document.getElementById('graph').value = 'complete:5'")
        page.run("document.getElementById('rounds').value = 40")
        page.run("document.getElementById('train').click()")
        page.until("document.body.dataset.trained", 120)
        press = (
            "document.querySelector('[aria-label=\"link {}\"]').dispatchEvent(new Event('click'))"
        )
        page.run(press.format("0-1"))
        page.until("document.body.dataset.blind")
        blind = float(page.run("document.body.dataset.blind"))
        assert float(page.run("document.body.dataset.error")) > 0.5 * blind
        page.run(press.format("0-4"))
        page.until("Number(document.body.dataset.error) < 1")
        error = page.run("document.body.dataset.error")
        assert "by elimination" in page.run("document.getElementById('verdict').textContent")
        page.run("document.getElementById('command').click()")
        shown = "document.getElementById('shown').textContent"
        assert page.run(shown).startswith("sottovoce audit --algorithm pdsgd --graph complete:5")
        exported = page.run(
            "fetch('/api/trainings/' + document.body.dataset.trained + '/export', {headers: "
            "{'x-sottovoce-token': new URLSearchParams(location.search).get('token')}})"
            ".then((answer) => answer.text())"
        )
        page.run("document.getElementById('epsilon').value = '3'")
        page.run("document.getElementById('train').click()")
        page.until("Number(document.body.dataset.trained) >= 2", 120)
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
    file = tmp_path / "exported.html"
    file.write_text(exported, encoding="utf-8")
    with Browser(tmp_path, dark=True) as page:
        page.open(file.as_uri())
        page.until("document.body.dataset.error")
        assert page.run("document.body.dataset.error") == error
        assert page.errors == []
        assert page.requests == [file.as_uri()]
