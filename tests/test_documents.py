"""What the documents print as runnable does run, as printed.

A code block counts as runnable when the line before it is `<!-- run -->`. Those of a tutorial go on
from one another: they run as its notebook (tests/test_notebooks.py).
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from make_notebooks import TUTORIALS
from programs import programs

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^<!-- run -->\n+```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")


def blocks() -> list[object]:
    found = []
    for path in DOCUMENTS:
        if path.exists() and path.parent != TUTORIALS:
            for number, (language, text) in enumerate(BLOCK.findall(path.read_text("utf-8")), 1):
                found.append(pytest.param(language, text, id=f"{path.name}-{number}"))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(("language", "text"), blocks())
def test_runnable_block_runs(language: str, text: str, tmp_path: Path) -> None:
    if language == "python":
        command = [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", text]
    elif language in ("sh", "bash", "console"):
        command = [language if language != "console" else "sh", "-eu", "-c", text]
    else:
        pytest.fail(f"a block of {language} cannot be run; accepted: python, sh, bash")
    work = tmp_path / "work"
    work.mkdir()
    if (ROOT / "examples").exists():
        (work / "examples").symlink_to(ROOT / "examples")
    environment = programs(tmp_path / "bin")
    done = subprocess.run(
        command, cwd=work, env=os.environ | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_figure_shown_is_there_with_an_alternative_text() -> None:
    for path in DOCUMENTS:
        for alt, target in FIGURE.findall(path.read_text("utf-8") if path.exists() else ""):
            assert alt, f"{path.name}: {target} has no alternative text"
            if not target.startswith("http"):
                assert (path.parent / target).is_file(), f"{path.name} shows {target}"


def test_every_page_is_in_the_list_of_its_folder() -> None:
    for index in (ROOT / "docs").rglob("index.md"):
        listed = index.read_text("utf-8")
        pages = {page.name for page in index.parent.glob("*.md")} - {"index.md"}
        absent = sorted(page for page in pages if f"]({page}" not in listed)
        assert not absent, f"{index.relative_to(ROOT)} does not list {', '.join(absent)}"


def test_the_marker_finds_blocks_and_nothing_else() -> None:
    text = "<!-- run -->\n```python\nprint(1)\n```\n\n```sh\nfalse\n```\n"
    text += "<!-- run -->\n\n```sh\nls\n```\n"
    assert BLOCK.findall(text) == [("python", "print(1)\n"), ("sh", "ls\n")]
