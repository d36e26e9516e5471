"""The published files of UCI Adult, and how their records become small whole numbers.

Becker and Kohavi (1996), UCI Machine Learning Repository, doi:10.24432/C5XW20, CC BY 4.0. Columns
of categories keep their categories; numbers are cut at `EDGES`: age and weight at about the
quintiles of adult.data, years of education and hours around their most frequent values, gains and
losses into none and some.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import DataError
from sottovoce.problems.data.download import Published

MISSING = 255
"""The code of a missing value."""
HASHES = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}
SOURCE = Published(
    "UCI Adult",
    "adult",
    ("https://archive.ics.uci.edu/ml/machine-learning-databases/adult/",),
    {name: f"sha256:{known}" for name, known in HASHES.items()},
)
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
Lines = Sequence[Sequence[str]]


def find(data_dir: str | Path | None = None) -> Path:
    """The folder of both files: in `data_dir`, else in SOTTOVOCE_DATA, else downloaded once."""
    given = data_dir if data_dir is not None else os.environ.get("SOTTOVOCE_DATA")
    for place in (Path(given) / SOURCE.name, Path(given)) if given else ():
        if all((place / name).is_file() for name in HASHES):
            return place
    if data_dir is not None:
        raise DataError(
            f"no {' and '.join(HASHES)} in {Path(data_dir) / SOURCE.name} or {data_dir}"
        )
    return SOURCE.fetch()


def read(file: Path) -> list[list[str]]:
    """The lines of a published file, which must be that file byte for byte, as lists of fields."""
    content = file.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != HASHES[file.name]:
        raise DataError(f"{file} has sha256:{found}, the published file {HASHES[file.name]}")
    lines = [line.strip().rstrip(".") for line in content.decode().splitlines()]
    return [line.split(", ") for line in lines if line and not line.startswith("|")]


def column(name: str, every: Sequence[str]) -> dict[str, Any]:
    """How a column is coded: its categories are those of the training file."""
    if name in EDGES:
        edges = EDGES[name]
        inner = [
            str(low) if high == low + 1 else f"{low} to {high - 1}" for low, high in pairwise(edges)
        ]
        return {"name": name, "values": [f"below {edges[0]}", *inner, f"{edges[-1]} or more"]}
    return {"name": name, "values": sorted(set(every) - {"?"})}


def coded(records: Lines, columns: Sequence[Mapping[str, Any]]) -> NDArray[np.uint8]:
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
