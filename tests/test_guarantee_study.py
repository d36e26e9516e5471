"""The study of what a guarantee costs, on a few rounds of the shipped images."""

import pytest

from sottovoce.errors import ProblemError
from sottovoce.studies import guarantee
from sottovoce.studies.guarantee import MNIST, SUBSET, GuaranteeSettings, Row, guarantee_study
from sottovoce.studies.study import draw


def test_rows_have_names_of_their_own_and_an_unknown_one_is_refused() -> None:
    for rows in (MNIST, SUBSET):
        assert len({row.name for row in rows}) == len(rows)
    with pytest.raises(ProblemError, match="accepted: dp-pdsgd-8, decor-8"):
        GuaranteeSettings(only=("decor-3",)).rows()


def test_a_row_trains_the_chain_that_its_plan_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (
        Row("private", "ring:5", "decor", 8.0, 128, 3, "2:falling=3"),
        Row("open", "ring:5", "clip:1.0+shares:weights", None, 128, 3, "2:falling=3"),
    )
    monkeypatch.setattr(guarantee, "SUBSET", rows)
    study = guarantee_study(GuaranteeSettings(runs=1, insecure_seed=1))
    private, without = study.data["rows"]
    assert private["epsilon"] == pytest.approx(8.0, abs=0.01)
    assert private["algorithm"].startswith("decor:")
    assert private["against"]["any:1"]["epsilon"] > private["epsilon"]
    assert without["epsilon"] is None
    assert all(len(row["accuracies"]) == 1 for row in study.data["rows"])
    assert set(draw("guarantee", study.data)) == {"guarantee"}
