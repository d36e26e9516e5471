"""Parts of the table of claims in processes of their own, each with a share of the cores."""

import os
import shlex
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sottovoce.errors import SottovoceError
from sottovoce.storage.execution import Execution
from sottovoce.storage.progress import progress_bar
from sottovoce.studies.claims.cells import DONE, PIECES
from sottovoce.studies.claims.lines import chosen
from sottovoce.studies.claims.settings import ClaimsSettings
from sottovoce.studies.settings import command_line

_PROGRAM = "from sottovoce.cli import main; main()"
_LAST_LINES = 5
"""Of what a process says, kept for the case that it fails."""


def compute_parts(settings: ClaimsSettings, execution: Execution, jobs: int) -> None:
    """Compute the pieces of a table in several processes, into the execution's folder.

    Raise with its last words if one of them fails; the others are then stopped, and their finished
    pieces stay.
    """
    if execution.folder is None:
        raise SottovoceError("several processes need a folder for what they find; name one")
    lines = len(settings.workloads) * len(chosen(settings.mechanism))
    jobs = min(jobs, lines)
    threads = max(1, (os.cpu_count() or 1) // jobs)
    bar = progress_bar("claims", lines * len(PIECES), execution.progress, "pieces")
    with bar as advance:
        running = [
            _Running(_command(replace(settings, part=f"{one}/{jobs}"), execution), threads, advance)
            for one in range(1, jobs + 1)
        ]
        try:
            for one in running:
                one.wait()
        finally:
            for one in running:
                one.stop()


def _command(settings: ClaimsSettings, execution: Execution) -> list[str]:
    asked = replace(settings, jobs=1)
    words = shlex.split(command_line("claims", asked))[1:]
    fresh = ["--fresh"] * execution.fresh
    return [sys.executable, "-c", _PROGRAM, *words, *fresh, "--out", str(_out(execution))]


def _out(execution: Execution) -> Path:
    return Path(execution.folder or "").parent


class _Running:
    """A process that computes a part, and what it last said."""

    def __init__(self, command: list[str], threads: int, advance: Callable[[int], None]) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._reading = threading.Thread(target=self._read, args=(advance,), daemon=True)
        self._reading.start()

    def _read(self, advance: Callable[[int], None]) -> None:
        assert self._process.stderr
        with self._process.stderr as said:
            for line in said:
                self._last.append(line.rstrip())
                if line.rstrip().endswith(DONE):
                    advance(1)

    def wait(self) -> None:
        code = self._process.wait()
        self._reading.join()
        if code:
            raise SottovoceError(
                f"a process that computed a part ended with exit code {code}: "
                + " ".join(self._last)
            )

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._reading.join()
