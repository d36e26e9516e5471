"""Make the subset of MNIST that ships inside the package from the four original files.

    python scripts/make_mnist_subset.py FOLDER_OF_ORIGINALS [--output FOLDER]

500 images of each digit are chosen from the training files and 100 from the t10k files, in the
order of sha256("<seed> <file name> <index>"): the choice depends on no library's random numbers.
"""

import argparse
import gzip
import hashlib
import io
from pathlib import Path

import numpy as np
from torch import Tensor

from sottovoce.errors import DataError
from sottovoce.problems.data.sets import CLASSES, FILES, SOURCES, read_images, read_labels
from sottovoce.storage.files import write_atomic

SEED = 1
PER_CLASS = {"train": 500, "t10k": 100}
DEFAULT_OUTPUT = Path(__file__).parents[1] / "src" / "sottovoce" / "problems" / "data" / "files"


def choose(labels: Tensor, per_class: int, file: str) -> list[int]:
    """Return `per_class` indices of each class, mixed, in an order that only the hash decides."""

    def key(index: int) -> bytes:
        return hashlib.sha256(f"{SEED} {file} {index}".encode()).digest()

    chosen: list[int] = []
    for digit in range(CLASSES):
        chosen += sorted((labels == digit).nonzero().flatten().tolist(), key=key)[:per_class]
    return sorted(chosen, key=key)


def idx_gz(values: Tensor) -> bytes:
    """Pack (n,) or (n, rows, columns) bytes as gzip IDX without time stamp or file name."""
    array = values.numpy().astype(np.uint8)
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=packed, mtime=0) as file:
        file.write(header + array.tobytes())
    return packed.getvalue()


def check_originals(folder: Path) -> None:
    """Refuse files that are not the published archives, byte for byte."""
    for name, known in zip(FILES, SOURCES["mnist"].hashes, strict=True):
        found = hashlib.sha256((folder / f"{name}.gz").read_bytes()).hexdigest()
        if f"sha256:{found}" != known:
            raise DataError(f"{folder / name}.gz has sha256:{found}, the published file {known}")


def make(folder: Path, output: Path) -> None:
    """Write the subset's four files and their SHA256SUMS into `output`."""
    sums = ""
    for images_name, labels_name in (FILES[:2], FILES[2:]):
        images, labels = (
            read_images(folder / f"{images_name}.gz"),
            read_labels(folder / f"{labels_name}.gz"),
        )
        chosen = choose(labels, PER_CLASS[labels_name.split("-")[0]], labels_name)
        for name, values in ((images_name, images[chosen, 0]), (labels_name, labels[chosen])):
            content = idx_gz(values)
            write_atomic(output / f"{name}.gz", content)
            sums += f"{hashlib.sha256(content).hexdigest()}  {name}.gz\n"
    write_atomic(output / "SHA256SUMS", sums.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("originals", type=Path, help="folder with the four published .gz files")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    arguments = parser.parse_args()
    check_originals(arguments.originals)
    make(arguments.originals, arguments.output)


if __name__ == "__main__":
    main()
