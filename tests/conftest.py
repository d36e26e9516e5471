"""Settings that every test shares."""

import contextlib
import signal
import sys
from pathlib import Path

import pytest
import torch

from command_line import CommandLine, Done

# The cores belong to the test workers; threads inside each would only compete.
torch.set_num_threads(1)

# A shell has its background jobs ignore Ctrl-C, and programs that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

with contextlib.suppress(ImportError):
    from hypothesis import settings

    # A deadline asserts a timing, and a loaded machine breaks it.
    settings.register_profile("sottovoce", deadline=None)
    settings.load_profile("sottovoce")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Starting weights that a test does not seed are the same whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> CommandLine:
    """Call `sottovoce` with these arguments in an empty folder, as the installed script does."""
    from sottovoce.cli import app, show

    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["sottovoce", *map(str, arguments)])
        monkeypatch.setattr(show.notes, "quiet", False)
        capsys.readouterr()
        try:
            app.main()
            code = 0
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        return Done(code, *capsys.readouterr())

    return call
