"""The non-convex theorem's averages: right where gradients are known, falling where one learns."""

from pathlib import Path

import torch

from sottovoce.stepsizes import parse_stepsize
from sottovoce.studies.gradients import GradientsSettings, _averages, gradients_study
from sottovoce.studies.study import Study, draw

DOCS = Path(__file__).parents[1] / "docs"


def test_averages_are_weighted_by_the_mean_stepsizes_of_the_rounds_they_stand_for():
    squares = {"mean": torch.tensor([[4.0, 4.0], [1.0, 1.0], [2.0, 2.0]]).double()}
    found = _averages(squares, [1, 2, 4], parse_stepsize("1/k"))["mean"]
    expected = (4 * 1 + 1 * (1 / 2 + 1 / 3) + 2 / 4) / (1 + 1 / 2 + 1 / 3 + 1 / 4)
    assert abs(found["average"]["mean"][-1] - expected) < 1e-12
    assert abs(found["fall"][0] - expected / 4) < 1e-12


def test_both_averages_fall_where_the_networks_learn():
    study = gradients_study(GradientsSettings(steps=100, runs=2, images=10, insecure_seed=1))
    for one in study.data["models"].values():
        assert one["mean"]["fall"][0] < 1
        assert one["agents"]["fall"][0] < 1
        assert 0 < one["largest"] < 100
    assert set(draw("gradients", study.data)) == {"gradients"}


def test_the_page_has_the_rows_of_its_data():
    study, page = Study.load(DOCS / "figures/gradients.json"), DOCS / "results/reproduce.md"
    text = page.read_text("utf-8")
    assert study.command in text
    for row in study.tables[0].rows:
        assert "| " + " | ".join(row).replace("||", "‖") + " |" in text
