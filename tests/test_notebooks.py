"""Every tutorial has a notebook that is its page and runs from top to bottom."""

import json
from pathlib import Path

import pytest

from make_notebooks import NOTEBOOKS, notebook, pages
from programs import programs

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")


def test_every_tutorial_has_its_notebook_and_no_other_is_there() -> None:
    made = {f"{page.stem}.ipynb": notebook(page) for page in pages()}
    kept = {file.name: file.read_text("utf-8") for file in NOTEBOOKS.glob("*.ipynb")}
    assert kept.keys() == made.keys()
    stale = [name for name in made if kept[name] != made[name]]
    assert not stale, f"run `python scripts/make_notebooks.py`: {', '.join(stale)} are not current"


def test_a_page_becomes_cells(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n[guide](../guides/a.md#b), [own](c.md), [far](https://x.org/y)\n\n"
        "```sh\nnot run\n```\n\n<!-- file: a.py -->\n```python\nx = 1\n```\n\n"
        "<!-- run -->\n```python\nimport a\n```\n<!-- run -->\n```sh\nls\n```\n"
    )
    cells = json.loads(notebook(page))["cells"]
    assert [cell["cell_type"] for cell in cells] == ["markdown", "code", "code", "code"]
    text = "".join(cells[0]["source"])
    assert "](../docs/guides/a.md#b)" in text
    assert "](../docs/tutorials/c.md)" in text
    assert "](https://x.org/y)" in text
    assert "not run" in text
    assert ["".join(cell["source"]) for cell in cells[1:]] == [
        "%%writefile a.py\nx = 1",
        "import a",
        "%%sh\nls",
    ]


@pytest.mark.thorough
@pytest.mark.integration
@pytest.mark.parametrize("name", [page.stem for page in pages()])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in programs(tmp_path / "bin").items():
        monkeypatch.setenv(variable, value)
    work = tmp_path / "work"
    work.mkdir()
    text = (NOTEBOOKS / f"{name}.ipynb").read_text("utf-8")
    content = nbformat.reads(text, as_version=4)
    nbformat.validate(content)
    # What a cell prints on stderr is shown by the error, not by the notebook.
    client = nbclient.NotebookClient(
        content, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(work)}}
    )
    client.execute()
    outputs = [out for cell in content.cells for out in cell.get("outputs", ())]
    assert any(out.get("name") == "stdout" for out in outputs)
