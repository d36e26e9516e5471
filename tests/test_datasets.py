"""Datasets: the shipped subset is what it says, and damaged or missing files are named."""

import contextlib
import gzip
import hashlib
import importlib.util
import os
import struct
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.errors import DataError
from sottovoce.problems.data import sets as datasets
from sottovoce.problems.data.sets import FILES, SOURCES, Source, load, read_images, read_labels

SUBSET = files("sottovoce.problems.data") / "files"


def idx(*shape: int, fill: int = 0) -> bytes:
    """A well-formed IDX file of unsigned bytes that are all `fill`."""
    count = 1
    for size in shape:
        count *= size
    return struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape) + bytes([fill]) * count


def write_dataset(folder: Path, suffix: str = "", training: int = 30, fill: int = 3) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    contents = idx(training, 28, 28, fill=7), idx(training, fill=fill), idx(9, 28, 28), idx(9)
    for name, content in zip(FILES, contents, strict=True):
        packed = gzip.compress(content, mtime=0) if suffix else content
        (folder / f"{name}{suffix}").write_bytes(packed)


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOTTOVOCE_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_the_subset_is_balanced_and_complete() -> None:
    data = load()
    for part, size in ((data.training, 5000), (data.validation, 1000)):
        assert len(part) == size
        assert part.images.shape == (size, 1, 28, 28)
        assert part.images.dtype == torch.uint8
        assert part.labels.dtype == torch.int64
        assert torch.bincount(part.labels).tolist() == [size // 10] * 10
        assert len(torch.unique(part.images.flatten(1), dim=0)) == size


def test_the_subset_has_the_bytes_that_its_sums_promise() -> None:
    sums = (SUBSET / "SHA256SUMS").read_text()
    assert hashlib.sha256(sums.encode()).hexdigest() == (
        "f59cd9f17ce63aea38f5c92e750c9e37279f3a174056ccede4270a194226937f"
    )
    listed = dict(reversed(line.split()) for line in sums.splitlines())
    assert sorted(listed) == sorted(f"{name}.gz" for name in FILES)
    for name, known in listed.items():
        assert hashlib.sha256((SUBSET / name).read_bytes()).hexdigest() == known


def test_the_subset_names_its_authors_licence_and_sources() -> None:
    text = (SUBSET / "README.md").read_text()
    assert "Y. LeCun, C. Cortes, C. J. C. Burges" in text
    assert "CC BY-SA 3.0" in text
    assert all(known.removeprefix("sha256:") in text for known in SOURCES["mnist"].hashes)


def test_standardised_pixels_of_the_subset_have_mean_0_and_deviation_1() -> None:
    pixels = load().training.standardised()
    assert pixels.dtype == torch.float32
    assert float(pixels.mean()) == pytest.approx(0, abs=0.02)
    assert float(pixels.std()) == pytest.approx(1, abs=0.02)
    assert float(pixels.min()) == pytest.approx(-0.1307 / 0.3081)
    assert float(pixels.max()) == pytest.approx((1 - 0.1307) / 0.3081)


def test_subset_keeps_the_order_of_its_indices() -> None:
    data = load().validation
    chosen = data.subset([5, 2])
    assert torch.equal(chosen.labels, data.labels[[5, 2]])
    assert torch.equal(chosen.images, data.images[[5, 2]])


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("folder", ["", "mnist"])
def test_full_data_is_found_in_the_folder_or_its_subfolder(
    tmp_path: Path, folder: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(tmp_path / folder, suffix)
    data = load("mnist", tmp_path)
    assert (len(data.training), len(data.validation)) == (30, 9)
    assert data.training.images.unique().tolist() == [7]
    assert data.training.name == "MNIST training"
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path))
    assert len(load("mnist").training) == 30


def test_fashion_mnist_in_mnists_place_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    labels = bytes(SOURCES["fashion-mnist"].opening)
    (tmp_path / FILES[1]).write_bytes(idx(30)[:-30] + labels + bytes(20))
    with pytest.raises(DataError, match="holds Fashion-MNIST, but MNIST was asked for"):
        load("mnist", tmp_path)
    assert load("fashion-mnist", tmp_path).training.name == "Fashion-MNIST training"


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no MNIST in .*train-images-idx3-ubyte"):
        load("mnist", tmp_path)
    write_dataset(tmp_path)
    (tmp_path / FILES[2]).unlink()
    with pytest.raises(DataError, match=f"has no {FILES[2]}"):
        load("mnist", tmp_path)


def test_unknown_datasets_are_refused() -> None:
    with pytest.raises(DataError, match="'cifar'; accepted are subset, mnist, fashion-mnist"):
        load("cifar")


def test_images_and_labels_must_be_equally_many(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    (tmp_path / FILES[1]).write_bytes(idx(29))
    with pytest.raises(DataError, match=r"30 images, .* 29 labels"):
        load("mnist", tmp_path)


GOOD_LABELS = idx(4, fill=3)
PACKED_LABELS = gzip.compress(GOOD_LABELS, mtime=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begins with nothing, expected 00000801"),
        (idx(4, 28, 28), "begins with 00000803"),
        (b"\x00\x00\x0d\x01" + GOOD_LABELS[4:], "begins with 00000d01"),
        (GOOD_LABELS[:6], "truncated inside its header"),
        (GOOD_LABELS[:-1], "is truncated .*promises 4 bytes of data, found 3"),
        (GOOD_LABELS + b"\x00", "bytes follow its end"),
        (idx(0), "is empty"),
        (struct.pack(">4BI", 0, 0, 8, 1, 2**32 - 1), "is truncated .*promises 4294967295"),
        (idx(3)[:-1] + b"\x0a", "label 10 at position 2"),
        (PACKED_LABELS[:-9], "truncated"),
        (PACKED_LABELS[:-8] + bytes(8), "CRC"),
        (PACKED_LABELS + b"garbage", "cannot be read"),
        (PACKED_LABELS[:10] + b"\xff" * 12, "corrupt"),
        (gzip.compress(GOOD_LABELS + b"\x00", mtime=0), "bytes follow its end"),
    ],
)
def test_a_corrupt_label_file_is_refused_by_name(
    tmp_path: Path, content: bytes, message: str
) -> None:
    file = tmp_path / FILES[1]
    file.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_labels(file)
    assert str(file) in str(caught.value)


def test_images_of_another_size_are_refused(tmp_path: Path) -> None:
    file = tmp_path / FILES[0]
    file.write_bytes(idx(2, 32, 32))
    with pytest.raises(DataError, match="32x32 pixels; 28x28"):
        read_images(file)


def test_a_folder_in_a_files_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_labels(tmp_path)


@given(cut=st.integers(0, len(PACKED_LABELS) - 1))
def test_every_truncation_of_a_packed_file_is_refused(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "cut.gz"
    file.write_bytes(PACKED_LABELS[:cut])
    with pytest.raises(DataError, match=r"cut\.gz"):
        read_labels(file)


@given(place=st.integers(0, len(PACKED_LABELS) - 1), flip=st.integers(1, 255))
def test_a_changed_byte_is_refused_or_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, place: int, flip: int
) -> None:
    content = bytearray(PACKED_LABELS)
    content[place] ^= flip
    file = tmp_path_factory.getbasetemp() / "flipped.gz"
    file.write_bytes(content)
    labels = None
    with contextlib.suppress(DataError):
        labels = read_labels(file).tolist()
    assert labels in (None, [3, 3, 3, 3])


@given(content=st.binary(max_size=60))
def test_arbitrary_bytes_never_raise_anything_but_a_data_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "bytes"
    for prefix in (b"", b"\x1f\x8b\x08", b"\x00\x00\x08\x01\x00\x00\x00"):
        file.write_bytes(prefix + content)
        try:
            labels = read_labels(file)
        except DataError:
            continue
        assert int(labels.max()) < 10


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("pooch.os_cache", lambda project: tmp_path / "cache" / project)
    return tmp_path / "cache" / "sottovoce" / "mnist"


def from_mirrors(*mirrors: str, folder: Path | None = None) -> dict[str, Source]:
    hashes = SOURCES["mnist"].hashes
    if folder is not None:
        hashes = tuple(
            "sha256:" + hashlib.sha256((folder / f"{name}.gz").read_bytes()).hexdigest()
            for name in FILES
        )
    return {**SOURCES, "mnist": Source("MNIST", mirrors, hashes, SOURCES["mnist"].opening)}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A mirror of a small dataset on this machine."""
    folder = tmp_path / "mirror"
    write_dataset(folder, ".gz")
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{web.server_address[1]}/", folder
        web.shutdown()
        thread.join()


def test_without_network_the_error_says_what_to_download_and_where_to_put_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrors = "http://127.0.0.1:9/a/", "http://127.0.0.1:9/b/"
    monkeypatch.setattr(datasets, "SOURCES", from_mirrors(*mirrors))
    with pytest.raises(DataError) as caught:
        load("mnist")
    message = str(caught.value)
    assert all(f"http://127.0.0.1:9/a/{name}.gz" in message for name in FILES)
    assert "data_dir (--data-dir) or SOTTOVOCE_DATA" in message
    assert all(mirror in message.split("What failed")[1] for mirror in mirrors)


def test_without_pooch_the_error_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match="SOTTOVOCE_DATA") as caught:
        load("fashion-mnist")
    assert "pooch is not installed" in str(caught.value)


def test_a_download_is_verified_kept_and_shown_on_stderr(
    server: tuple[str, Path],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, folder = server
    sources = from_mirrors("http://127.0.0.1:9/", url, folder=folder)
    monkeypatch.setattr(datasets, "SOURCES", sources)
    assert len(load("mnist").training) == 30
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"{FILES[0]}.gz: 0.0 MB 100 %" in shown.err
    for name in FILES:
        (folder / f"{name}.gz").unlink()
    assert len(load("mnist").training) == 30
    assert sorted(path.name for path in cache.iterdir()) == sorted(f"{name}.gz" for name in FILES)


def test_a_download_with_another_checksum_is_refused_and_not_kept(
    server: tuple[str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "SOURCES", from_mirrors(server[0]))
    with pytest.raises(DataError, match="hash"):
        load("mnist")
    assert list(cache.iterdir()) == []


@pytest.fixture
def script() -> ModuleType:
    path = Path(__file__).parents[1] / "scripts" / "make_mnist_subset.py"
    spec = importlib.util.spec_from_file_location("make_mnist_subset", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_chooses_equally_many_of_each_class_and_mixes_them(script: ModuleType) -> None:
    labels = torch.arange(2000) % 10
    chosen = script.choose(labels, 50, "train-labels-idx1-ubyte")
    assert len(set(chosen)) == 500
    assert torch.bincount(labels[chosen]).tolist() == [50] * 10
    assert labels[chosen[:50]].unique().numel() > 5


def test_the_script_refuses_other_originals(script: ModuleType, tmp_path: Path) -> None:
    write_dataset(tmp_path, ".gz")
    with pytest.raises(DataError, match="the published file sha256:440fcabf"):
        script.check_originals(tmp_path)


@pytest.mark.skipif(
    "MNIST_ORIGINALS" not in os.environ, reason="MNIST_ORIGINALS names no folder of originals"
)
def test_the_script_makes_the_shipped_subset_from_the_originals(
    script: ModuleType, tmp_path: Path
) -> None:
    originals = Path(os.environ["MNIST_ORIGINALS"])
    script.check_originals(originals)
    script.make(originals, tmp_path)
    for name in FILES:
        made, shipped = (tmp_path / f"{name}.gz", SUBSET / f"{name}.gz")
        assert gzip.decompress(made.read_bytes()) == gzip.decompress(shipped.read_bytes())
