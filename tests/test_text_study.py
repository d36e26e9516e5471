"""Private sentences: batches of one are read whole, and the page says what its data say."""

from pathlib import Path

import pytest

from sottovoce.storage.execution import Execution
from sottovoce.studies.study import Study
from sottovoce.studies.text import TextSettings, text_study, write_page

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.thorough
def test_a_batch_of_one_is_read_and_a_proof_leaves_nothing_to_read(tmp_path):
    settings = TextSettings(
        batches=(1,),
        stepsizes=("experiment:0.5/k^0.6",),
        round=4,
        runs=2,
        proved_rounds=20,
        proved_runs=2,
        candidates=20,
        insecure_seed=1,
    )
    said = []
    study = text_study(settings, Execution(tmp_path, say=said.append))
    (row,) = study.data["rows"]
    assert row["read"]["mean"] == row["precision"]["mean"] == row["recall"]["mean"] == 1.0
    assert row["blind"][1] < 0.5
    proved = study.data["proved"]
    assert proved["read"]["mean"] == 0.0
    assert proved["control_exact"]["mean"] == 1.0
    assert proved["control_noise"]["mean"] == 0.0
    assert 0.5 < proved["permitted_auc"] < 1.0
    assert proved["permitted_top"] > 0.01
    assert proved["auc_without_noise"]["mean"] > 0.9
    assert text_study(settings, Execution(tmp_path)).data == study.data
    assert study.command in write_page(study.data, study.command)


def test_the_page_says_what_its_data_say():
    kept = Study.load(DOCS / "figures" / "text.json")
    page = (DOCS / "results" / "text.md").read_text("utf-8")
    assert page == write_page(kept.data, kept.command)
    assert {row["batch"] for row in kept.data["rows"]} == {1, 2, 4}
