"""Images that agents train on: a subset of MNIST inside the package, MNIST and Fashion-MNIST."""

import gzip
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from math import prod
from pathlib import Path
from typing import IO, cast

import numpy as np
import torch
from torch import Tensor

from sottovoce.errors import DataError
from sottovoce.problems.data.download import Published

CLASSES = 10
SIDE = 28
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@dataclass(frozen=True, eq=False)
class ImageData:
    """Grey images with their classes; `name` says where they come from in charts and tables.

    images: (n, 1, 28, 28) uint8; labels: (n,) int64 in 0 ... 9.
    """

    images: Tensor
    labels: Tensor
    name: str

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: Tensor | Sequence[int]) -> "ImageData":
        """Keep the images at `indices`, in that order."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        return ImageData(self.images[chosen], self.labels[chosen], self.name)

    def standardised(self, mean: float = 0.1307, std: float = 0.3081) -> Tensor:
        """Return (pixel / 255 - mean) / std as float32, (n, 1, 28, 28); the defaults are MNIST's.

        The result is a new tensor four times as large: compute it once.
        """
        return self.images.float().div_(255).sub_(mean).div_(std)


@dataclass(frozen=True, eq=False)
class Datasets:
    """What one name stands for: images to train on and images that training never sees."""

    training: ImageData
    validation: ImageData


@dataclass(frozen=True)
class Source:
    """Where the four published files of a dataset lie, and how to recognise them.

    `hashes` are in the order of `FILES`; `opening` is how the training labels begin.
    """

    title: str
    mirrors: tuple[str, ...]
    hashes: tuple[str, ...]
    opening: tuple[int, ...]


SOURCES = {
    "mnist": Source(
        "MNIST",
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        (
            "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
        (5, 0, 4, 1, 9, 2, 1, 3, 1, 4),
    ),
    "fashion-mnist": Source(
        "Fashion-MNIST",
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        (
            "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "md5:25c81989df183df01b3e8a0aad5dffbe",
            "md5:bef4ecab320f06d8554ea6380940ec79",
            "md5:bb300cfdad3c16e7a12a480ee83cd310",
        ),
        (9, 0, 0, 3, 0, 2, 7, 2, 5, 5),
    ),
}


OLD_NAMES = {"full": "mnist", "fashion": "fashion-mnist"}
"""What version 0.1 called them in some commands."""


def load(name: str = "subset", data_dir: str | Path | None = None) -> Datasets:
    """Load "subset" (inside the package), "mnist" or "fashion-mnist", offline where possible.

    The full datasets are looked for in `data_dir`, else in the folder that SOTTOVOCE_DATA names,
    in each case in its subfolder `mnist` or `fashion-mnist` and then in the folder itself; files
    may be plain or gzip. Without them there they are downloaded once to the user's cache and their
    checksums verified; a `data_dir` without them is an error. The subset needs neither.
    """
    name = OLD_NAMES.get(name, name)
    if name == "subset":
        return _read(files("sottovoce.problems.data") / "files", "MNIST subset")
    if name not in SOURCES:
        raise DataError(f"unknown dataset {name!r}; accepted are subset, {', '.join(SOURCES)}")
    source = SOURCES[name]
    folder = _find(name, data_dir)
    data = _read(_download(name) if folder is None else folder, source.title)
    for other in SOURCES.values():
        if other is not source and tuple(data.training.labels[:10].tolist()) == other.opening:
            raise DataError(f"{folder} holds {other.title}, but {source.title} was asked for")
    return data


def read_images(file: Path | Traversable) -> Tensor:
    """Read an IDX file of 28x28 images, plain or gzip, into (n, 1, 28, 28) uint8."""
    images = read_idx(file, dimensions=3)
    if images.shape[1:] != (SIDE, SIDE):
        raise DataError(
            f"{file} holds images of {images.shape[1]}x{images.shape[2]} pixels; "
            f"{SIDE}x{SIDE} is accepted"
        )
    return torch.from_numpy(images).unsqueeze(1)


def read_labels(file: Path | Traversable) -> Tensor:
    """Read an IDX file of labels 0 ... 9, plain or gzip, into (n,) int64."""
    labels = read_idx(file, dimensions=1)
    if labels.max() >= CLASSES:
        place = int((labels >= CLASSES).argmax())
        raise DataError(
            f"{file} is corrupt: label {labels[place]} at position {place}; "
            f"labels run from 0 to {CLASSES - 1}"
        )
    return torch.from_numpy(labels.astype(np.int64))


def read_idx(
    file: Path | Traversable, dimensions: int
) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    """Read unsigned bytes in IDX: 0 0 8 `dimensions`, the sizes as big-endian uint32, the data."""
    try:
        with file.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw) if packed else raw)
            magic = stream.read(4)
            expected = bytes([0, 0, 8, dimensions])
            if magic != expected:
                raise DataError(
                    f"{file} is not the IDX file it should be: it begins with "
                    f"{magic.hex() or 'nothing'}, expected {expected.hex()}"
                )
            header = stream.read(4 * dimensions)
            if len(header) < 4 * dimensions:
                raise DataError(f"{file} is truncated inside its header")
            shape = tuple(int(size) for size in np.frombuffer(header, dtype=">u4"))
            content = _read_at_most(stream, prod(shape) + 1)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    except EOFError as error:
        raise DataError(f"{file} is truncated: its gzip stream has no end") from error
    except zlib.error as error:
        raise DataError(f"{file} is corrupt: {error}") from error
    if len(content) != prod(shape):
        problem = "truncated" if len(content) < prod(shape) else "corrupt: bytes follow its end"
        raise DataError(
            f"{file} is {problem} (its header {'x'.join(map(str, shape))} promises {prod(shape)} "
            f"bytes of data, found {min(len(content), prod(shape))}"
            f"{' and more' if len(content) > prod(shape) else ''})"
        )
    if not content:
        raise DataError(f"{file} is empty: its header {'x'.join(map(str, shape))} promises no data")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape).copy()


def _read_at_most(stream: IO[bytes], limit: int) -> bytes:
    # In pieces, because one read of the size that a corrupt header promises may ask for terabytes.
    content = bytearray()
    while piece := stream.read(min(1 << 20, limit - len(content))):
        content += piece
    return bytes(content)


def _read(folder: Path | Traversable, title: str) -> Datasets:
    parts = []
    for split, images_name, labels_name in (("training", *FILES[:2]), ("validation", *FILES[2:])):
        image_file, label_file = _file(folder, images_name), _file(folder, labels_name)
        images, labels = read_images(image_file), read_labels(label_file)
        if len(images) != len(labels):
            raise DataError(
                f"{image_file} holds {len(images)} images, {label_file} {len(labels)} labels"
            )
        parts.append(ImageData(images, labels, f"{title} {split}"))
    return Datasets(*parts)


def _file(folder: Path | Traversable, name: str) -> Path | Traversable:
    plain = folder / name
    return plain if plain.is_file() else folder / f"{name}.gz"


def _find(name: str, data_dir: str | Path | None) -> Path | None:
    """Return the folder that holds the files, or None where they may be downloaded instead."""
    given = data_dir if data_dir is not None else os.environ.get("SOTTOVOCE_DATA") or None
    if given is None:
        return None
    places = [Path(given) / name, Path(given)]
    for place in places:
        missing = [file for file in FILES if not _file(place, file).is_file()]
        if not missing:
            return place
        if len(missing) < len(FILES):
            raise DataError(f"{place} has no {' and no '.join(missing)} (plain or .gz)")
    if data_dir is None:
        return None
    raise DataError(
        f"no {SOURCES[name].title} in {places[0]} or {places[1]}; expected are the files "
        f"{', '.join(FILES)}, plain or .gz"
    )


def _download(name: str) -> Path:
    """Fetch what the user's cache lacks and return the cache's folder; checksums are verified."""
    source = SOURCES[name]
    hashes = {f"{file}.gz": known for file, known in zip(FILES, source.hashes, strict=True)}
    return Published(source.title, name, source.mirrors, hashes).fetch()
