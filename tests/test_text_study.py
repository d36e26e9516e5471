"""Private sentences: batches of one are read whole, and the page says what its data say."""

from pathlib import Path

import pytest
import torch

from sottovoce.storage.execution import Execution
from sottovoce.studies.study import Study
from sottovoce.studies.text import TextSettings, text_study, write_page
from sottovoce.studies.text_reading import permitted_area

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
        told_runs=3,
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
    proved = kept.data["proved"]
    assert proved["told_passages"] > 50
    assert proved["auc"]["low"] <= proved["permitted_auc"]
    assert proved["top"]["low"] <= proved["permitted_top"]


@pytest.mark.parametrize("others", [1, 5, 40])
def test_no_test_of_one_round_ranks_above_what_the_proof_permits(others):
    """Records of norm 1 behind noise of deviation 0.6: the best test of the true one's rank."""
    multiplier, draws = 0.6, 20_000
    generator = torch.Generator().manual_seed(others)
    # Records that are as far from one another as any can be: a regular simplex, or two opposites.
    records = torch.eye(others + 1, dtype=torch.float64)
    records = records - records.mean(0)
    records /= records.norm(dim=1, keepdim=True)
    noise = torch.randn(draws, others + 1, dtype=torch.float64, generator=generator)
    scores = (records[0] + multiplier * noise) @ records.T
    above = (scores[:, :1] > scores[:, 1:]).double().mean(1)
    error = 4 * float(above.std()) / draws**0.5
    permitted = permitted_area(multiplier, others)
    assert float(above.mean()) <= permitted + error
    # Two opposite records reach it.
    assert float(above.mean()) > permitted - 0.05
