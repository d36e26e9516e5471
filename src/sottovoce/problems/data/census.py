"""UCI Adult: who earns more than 50,000 dollars, by 14 columns coded as 123 features of 0 and 1.

Becker and Kohavi (1996), UCI Machine Learning Repository, doi:10.24432/C5XW20, CC BY 4.0. The
sample inside the package has 6,000 records of the published training file and 2,000 of the test
file; `scripts/make_census_sample.py` makes it. The published files are read alike.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sottovoce.problems.data import adult
from sottovoce.problems.data.records import Records, shipped
from sottovoce.problems.data.sets import read_idx

SUMS = {
    "columns.json": "37454169096e9a60e7e110acf3f334dbd76380cffd5e76caf08d73a5d26d21e7",
    "training.gz": "4389c04f5b1873445ec0dd7ba3398c142abc56d6dad238ce19eb88b07bc06a4e",
    "validation.gz": "fcee994db363a7d36395687d592a4a828725232a3443758444f452cf9bf72779",
}
_OWNER = "occupation"


@dataclass(frozen=True)
class Column:
    """A column of the table: its name, and what each of its features says."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Census:
    """Records to train on and records that training never sees, with what their features mean.

    Inputs are (n, 123) float32 of 0 and 1, labels 1 for an income above 50,000 dollars. The natural
    owner of a record is its occupation.
    """

    training: Records
    validation: Records
    columns: tuple[Column, ...]

    @property
    def groups(self) -> tuple[int, ...]:
        """How many features each column has; a record has at most one of each."""
        return tuple(len(column.values) for column in self.columns)

    def describe(self, features: Tensor) -> list[str]:
        """What the features of one record say: "age 37 to 45", ...; features: (123,)."""
        parts = features.split(list(self.groups))
        return [
            f"{column.name} {column.values[place]}"
            for column, part in zip(self.columns, parts, strict=True)
            for place in (part > 0.5).nonzero()[:, 0].tolist()
        ]


@cache
def load_census() -> Census:
    """Load the shipped sample, after its files were compared with their SHA-256 sums."""
    folder = shipped("census", SUMS)
    columns = tuple(Column(one["name"], tuple(one["values"])) for one in _told())
    training, validation = (
        _records(torch.from_numpy(read_idx(folder / f"{part}.gz", dimensions=2)), columns)
        for part in ("training", "validation")
    )
    return Census(training, validation, columns)


def load_full_census(data_dir: str | Path | None = None) -> Census:
    """Load all of the published files, downloaded once where they are not on this machine."""
    return _full(adult.find(data_dir))


@cache
def _full(folder: Path) -> Census:
    told = _told()
    columns = tuple(Column(one["name"], tuple(one["values"])) for one in told)
    training, validation = (
        _records(torch.from_numpy(adult.coded(adult.read(folder / name), told)), columns)
        for name in adult.HASHES
    )
    return Census(training, validation, columns)


def _told() -> list[dict[str, Any]]:
    """How the columns are coded: the same for the sample and for all records."""
    found: list[dict[str, Any]] = json.loads((shipped("census", SUMS) / "columns.json").read_text())
    return found


def _records(codes: Tensor, columns: tuple[Column, ...]) -> Records:
    """Features, labels and owners of coded records (n, 15)."""
    features = [
        codes[:, at, None] == torch.arange(len(column.values)) for at, column in enumerate(columns)
    ]
    place = next(at for at, column in enumerate(columns) if column.name == _OWNER)
    owners = (*columns[place].values, "unknown")
    owner = codes[:, place].long().clamp(max=len(owners) - 1)
    return Records(torch.cat(features, 1).float(), codes[:, -1].long(), owner, owners)
