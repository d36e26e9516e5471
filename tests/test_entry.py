"""A card of a stranger's mechanism: checked as a chain, measured, and put beside the others."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce.errors import AlgorithmError, SottovoceError
from sottovoce.storage.execution import Execution
from sottovoce.studies.claims import ClaimsSettings
from sottovoce.studies.claims import entry as entries
from sottovoce.studies.claims.entry import EntrySettings, enter_study, findings, tables
from sottovoce.studies.study import Study

EXAMPLES = Path(__file__).parents[1] / "examples"
ZIP = f"{EXAMPLES}/entry_zip_dl.py:zip_dl:0.1"
SMALL = {
    "workload": ("census",),
    "adversary": ("eavesdropper",),
    "rounds": 6,
    "targets": 4,
    "pairs": 20,
    "insecure_seed": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where finished pieces are kept from test to test."""
    return tmp_path_factory.mktemp("entry")


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    """Sizes with which a line takes seconds."""
    sizes = ClaimsSettings(rounds=6, targets=4, pairs=20).sizes
    small = replace(
        sizes, shadows=8, records=10, candidates=50, runs=1, batch=4, iterations=5, refined=0
    )
    monkeypatch.setattr(ClaimsSettings, "sizes", small)


def test_a_card_holds_the_entry_and_says_where_the_others_come_from(folder):
    asked = EntrySettings(entry=ZIP, beside=("dsgd",), **SMALL)
    card = enter_study(asked, Execution(folder / "pieces", say=lambda line: None))
    assert dict(card.data["validity"])["keeps the average"] == "yes"
    (row,) = card.data["rows"]
    assert (row["mechanism"], row["word"]) == ("zip_dl:0.1 of entry_zip_dl.py", "not claimed")
    assert [one["mechanism"] for one in card.data["beside"]] == ["dsgd"]
    assert row["identification"]["targets"] == 4
    assert card.tables[1].title == "In a word: census"
    assert [one[0] for one in card.tables[1].rows] == [
        "zip_dl:0.1 of entry_zip_dl.py",
        "dsgd",
        "the commonest label",
    ]
    assert f" {shlex.quote(ZIP)} --workload census" in card.command
    again = Study.from_json(json.loads(json.dumps(card.to_json())))
    assert findings(again.data) == list(card.findings)
    assert [list(one.rows) for one in tables(again.data)] == [list(one.rows) for one in card.tables]
    said = []
    enter_study(asked, Execution(folder / "pieces", say=said.append))
    assert not any("done" in line for line in said)


def test_a_chain_that_does_not_keep_what_it_claims_is_not_scored(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        (EXAMPLES / "entry_zip_dl.py")
        .read_text("utf-8")
        .replace("drawn - weight", "drawn + weight")
    )
    with pytest.raises(AlgorithmError, match="average"):
        enter_study(EntrySettings(entry=f"{file}:zip_dl:0.1", **SMALL))
    with pytest.raises(SottovoceError, match=r"accepted: FILE\.py:NAME"):
        enter_study(EntrySettings(entry="dsgd", **SMALL))


def test_reference_rows_of_other_sizes_are_left_out_and_equal_ones_are_told_apart(
    folder, monkeypatch
):
    asked = EntrySettings(entry=ZIP, beside=("dsgd",), **SMALL)
    quiet = Execution(folder / "pieces", say=lambda line: None)
    card = enter_study(asked, quiet)
    line = "sottovoce claims --graph ring:5 --weights metropolis --delta 1e-05 --device cpu"
    data = json.loads(json.dumps({"rows": card.data["beside"], "sizes": card.data["sizes"]}))
    kept = Study("claims", "", "", None, [], data, line)
    monkeypatch.setattr(entries, "reference", lambda: kept)
    beside = enter_study(replace(asked, beside=()), quiet)
    assert [one["mechanism"] for one in beside.data["beside"]] == ["dsgd"]
    assert "were not computed here" in beside.data["origin"]
    other = replace(kept, data={**data, "sizes": {**data["sizes"], "rounds": 7}})
    monkeypatch.setattr(entries, "reference", lambda: other)
    left = enter_study(replace(asked, beside=()), quiet)
    assert left.data["beside"] == []
    assert "other sizes" in left.data["origin"]


def test_the_table_that_comes_with_the_package_is_that_of_the_small_sizes(monkeypatch):
    monkeypatch.undo()
    kept = entries.reference()
    assert kept is not None
    found, said = entries._stored(EntrySettings(entry=ZIP).table, {"dsgd"})
    assert {one["mechanism"] for one in found} >= {"pdsgd", "ldp-dsgd"}
    assert "dsgd" not in {one["mechanism"] for one in found}
    assert "not computed here" in said


def test_the_command_writes_a_card_and_a_page(folder, run):
    options = ["--workload", "census", "--adversary", "eavesdropper", "--insecure-seed", "1"]
    done = run("enter", ZIP, *options, "--out", str(folder), "--json")
    assert done.code == 0, done.err
    assert done.json()["data"]["entry"] == ZIP
    page = (folder / "report.html").read_text("utf-8")
    assert "Is it a valid chain?" in page
    assert (folder / "entry.json").is_file()
    assert run("enter").code == 2
