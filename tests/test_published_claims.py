"""Claims of other papers: exact figures in closed form, and a page that says what its data say."""

from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.studies.published import write_page
from sottovoce.studies.published_claims import by_distance, fading_coupling, ratio
from sottovoce.studies.published_noise import noise_over_time
from sottovoce.studies.study import Study, draw

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_says_what_its_data_say():
    study = Study.load(DOCS / "figures" / "published.json")
    assert (DOCS / "results" / "published.md").read_text("utf-8") == write_page(
        study.data, study.command
    )
    assert set(draw("published", study.data)) == {"published"}
    assert len(study.data["claims"]) >= 4


def test_figures_in_closed_form_are_those_of_the_page():
    kept = Study.load(DOCS / "figures" / "published.json").data["claims"]
    by_name = {one["mechanism"]: one for one in kept}
    for one in (by_distance(), fading_coupling()):
        assert [list(row) for row in one.rows] == by_name[one.mechanism]["rows"]
        assert one.verdict == by_name[one.mechanism]["verdict"]


def test_what_a_curious_agent_learns_with_one_exchange_falls_with_every_hop():
    found = by_distance().figures
    assert all(np.diff(found["1"]["mu"]) < 0)
    assert found["8"]["mu"] == pytest.approx([10**0.5] * 8)
    assert all(a <= b + 1e-9 for a, b in zip(found["1"]["mu"], found["published"], strict=True))


def test_noise_over_time_gains_where_nothing_is_forgotten_and_loses_where_it_is():
    found = noise_over_time(20, 1).figures
    assert found["trained"]["0.002"][2] < 1 < found["trained"]["0.2"][1]
    low, high = found["trained"]["0.002"][1:]
    assert low < found["ring:10"]["ratios"][4] < high


def test_a_ratio_of_means_has_an_interval_around_it():
    one, other = torch.full((50,), 2.0), torch.linspace(3, 5, 50)
    middle, low, high = ratio(one, other)
    assert middle == pytest.approx(0.5)
    assert low < middle < high
    assert ratio(one, one, torch.zeros(50)) == pytest.approx((0.0, 0.0, 0.0))
