"""The study of census records: batches of one are read, its rows are what its table shows."""

from pathlib import Path

import pytest

from sottovoce.storage.execution import Execution
from sottovoce.studies.census import CensusSettings, census_study, write_rows
from sottovoce.studies.study import Study

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def study():
    settings = CensusSettings(batches=(1, 2), round=20, runs=6, candidates=500, insecure_seed=0)
    return census_study(settings, Execution(say=lambda line: None))


def test_batches_of_one_are_read_and_stand_first_in_every_list(study):
    first, second = study.data["rows"]
    assert first["read"]["mean"] == first["listed"]["mean"] == 1.0
    assert first["read"]["low"] > 0.5
    assert second["read"]["mean"] > 0.5
    assert first["precision"]["mean"] == first["recall"]["mean"] == 1.0
    assert first["blind"][1] < 0.5


def test_the_table_and_the_command_say_what_was_computed(study):
    assert study.tables[0].rows[0][:3] == (1, 6, "100.0% (54% to 100%)")
    assert "--batch-size 1 --batch-size 2 --round 20" in study.command
    assert set(study.charts()) == {"census"}


def test_the_page_shows_what_its_data_say():
    kept = Study.load(DOCS / "figures" / "census.json")
    page = (DOCS / "results" / "census.md").read_text("utf-8")
    assert "\n".join(write_rows(kept.data)) in page
    assert kept.command in page
    assert [row["batch"] for row in kept.data["rows"]] == [1, 2, 4, 8, 16, 32, 64]
