"""Progress without a terminal: a plain line now and then, and nothing when it is not wanted."""

import time

import pytest

from sottovoce.storage.progress import progress_bar


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def said(clock: list[float], capsys: pytest.CaptureFixture[str], pause: float) -> list[str]:
    with progress_bar("PDSGD", 1000) as advance:
        for _ in range(100):
            clock[0] += pause
            advance(10)
    return capsys.readouterr().err.splitlines()


def test_quick_work_says_nothing(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    assert said(clock, capsys, 0.09) == []


def test_long_work_says_each_tenth(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(clock, capsys, 2.0)
    assert len(lines) == 10
    assert lines[0] == "PDSGD: 100/1,000 rounds, 5.0/s"


def test_slow_work_says_each_minute(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(clock, capsys, 30.0)
    assert len(lines) == 50
    assert lines[-1] == "PDSGD: 1,000/1,000 rounds, 0.3/s"


def test_unwanted_progress_is_silent(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bar("PDSGD", 10, enabled=False) as advance:
        clock[0] += 1000.0
        advance(10)
    assert capsys.readouterr().err == ""
