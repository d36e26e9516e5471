"""Files are replaced at once, and only files."""

import os
from pathlib import Path

import pytest

from sottovoce.storage.files import write_atomic


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere" / "page.html"
    link = tmp_path / "page.html"
    link.symlink_to(target)
    for content in (b"first", b"second"):
        write_atomic(link, content)
        assert link.is_symlink()
        assert target.read_bytes() == content
    assert [path.name for path in target.parent.iterdir()] == ["page.html"]


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to(os.devnull)
    for path in (tmp_path, pipe, Path(os.devnull), link):
        with pytest.raises(OSError, match="not a regular file"):
            write_atomic(path, b"")
    assert pipe.is_fifo()
    assert not Path(os.devnull).is_file()
