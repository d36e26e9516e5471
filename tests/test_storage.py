"""Files: whole or not at all, and refused by name when they are not what they should be."""

import json
import os
from pathlib import Path

import pytest
import torch

from sottovoce.errors import ResultError
from sottovoce.storage.files import write_atomic, write_json
from sottovoce.storage.tensors import load_pair, read_tensors, save_pair, write_tensors

TENSORS = {"x": torch.arange(6.0).view(2, 3), "k": torch.tensor([1, 2])}


def saved(folder: Path) -> Path:
    save_pair(folder / "thing", TENSORS, {"kind": "thing", "answer": 42})
    return folder / "thing"


def test_a_pair_reads_back(tmp_path: Path) -> None:
    tensors, facts = load_pair(saved(tmp_path), "thing")
    assert facts == {"kind": "thing", "answer": 42}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_views_and_gradients_are_written_as_plain_numbers(tmp_path: Path) -> None:
    view = torch.arange(6.0).view(2, 3).requires_grad_().T
    write_tensors(tmp_path / "t.safetensors", {"x": view})
    tensors, _ = read_tensors(tmp_path / "t.safetensors")
    assert torch.equal(tensors["x"], view.detach())


def test_facts_travel_in_the_header(tmp_path: Path) -> None:
    write_tensors(tmp_path / "t.safetensors", TENSORS, {"round": 7})
    assert read_tensors(tmp_path / "t.safetensors")[1] == {"round": 7}


@pytest.mark.parametrize("ending", [".json", ".safetensors"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "noise"])
def test_damaged_files_are_refused_by_name(ending: str, damage: str, tmp_path: Path) -> None:
    path = saved(tmp_path).with_suffix(ending)
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes({"empty": b"", "cut": content[:-7], "noise": b"\xff\xfe" * 50}[damage])
    with pytest.raises(ResultError, match=path.name):
        load_pair(tmp_path / "thing", "thing")


def test_altered_numbers_are_noticed(tmp_path: Path) -> None:
    path = saved(tmp_path).with_suffix(".safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ResultError, match=r"thing\.safetensors was altered or does not belong to"):
        load_pair(tmp_path / "thing", "thing")


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"thing\.json holds 'thing', not a saved result"):
        load_pair(saved(tmp_path), "result")
    (tmp_path / "list.json").write_text("[1, 2]")
    with pytest.raises(ResultError, match="holds 'list', not a saved result"):
        load_pair(tmp_path / "list", "result")


def test_no_pickle_is_read(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "t.safetensors")
    with pytest.raises(ResultError, match=r"t\.safetensors cannot be read as tensors"):
        read_tensors(tmp_path / "t.safetensors")


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_folders_are_made_and_files_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_atomic(path, b"old")
    write_atomic(str(path), b"new")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_written_files_are_as_readable_as_others(tmp_path: Path) -> None:
    """A temporary file is private; what replaces a file must not stay so."""
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    write_atomic(tmp_path / "file", b"")
    assert (tmp_path / "file").stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_has_no_infinities(value: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"value": value})
    assert not (tmp_path / "x.json").exists()


def test_json_reads_back(tmp_path: Path) -> None:
    content = {"λ̄": [1.5, None, True], "text": "ρ"}
    write_json(tmp_path / "x.json", content)
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == content
