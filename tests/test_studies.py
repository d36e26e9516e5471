"""The paper's convex experiments: what they say must follow from the numbers they keep."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sottovoce.errors import ResultError, SimulationError
from sottovoce.simulation.result import Result
from sottovoce.studies import Study, bound_study, estimation, rates
from sottovoce.studies.estimation import _compare, _overall, _phases_text
from sottovoce.studies.rates import _slope


@pytest.fixture(scope="module")
def estimated() -> Study:
    return estimation(steps=60, runs=30, scales=(0.5, 1.0), insecure_seed=1)


@pytest.fixture(scope="module")
def bounded() -> Study:
    return bound_study(last_round=100, samples=4000)


@pytest.fixture(scope="module")
def rated() -> Study:
    return rates(steps=400, runs=20, insecure_seed=1)


@pytest.fixture(params=["estimated", "bounded", "rated"])
def study(request: pytest.FixtureRequest) -> Study:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Study)
    return found


def test_studies_are_json_without_nan(study: Study) -> None:
    text = json.dumps(study.to_json(), allow_nan=False)
    assert json.loads(text)["name"] == study.name


def test_studies_read_back_whole(study: Study, tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    path.write_text(json.dumps(study.to_json()))
    loaded = Study.load(path)
    assert loaded.to_json() == json.loads(path.read_text())


def test_studies_draw_their_chart_with_letters_that_the_font_has(study: Study) -> None:
    """The PNG renderer falls back to another font where ours lacks a letter (a bar, ϱ, ‖)."""
    charts = study.charts()
    assert list(charts) == [study.name]
    drawn = json.dumps(charts[study.name].to_dict(), ensure_ascii=False)
    assert "vega-lite" in drawn
    assert not {"\u0304", "ϱ", "‖"} & set(drawn)


@pytest.mark.parametrize("content", ["", "[]", '{"kind": "result"}', '{"kind": "study"}'])
def test_files_that_are_no_study_are_refused_by_name(content: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(content)
    with pytest.raises(ResultError, match=r"mine\.json"):
        Study.load(path)


def test_phases_follow_from_the_curves(estimated: Study) -> None:
    """Where the means are told apart, they are apart in the direction that is said."""
    assert len(estimated.data["scales"]) == 2
    for scale in estimated.data["scales"]:
        curves = scale["curves"]
        rounds = curves["rounds"][1:]
        ours, theirs = (curves[f"{name}.distance"]["mean"][1:] for name in ("PDSGD", "DSGD"))
        spans = [(phase["from"], phase["to"]) for phase in scale["phases"]]
        assert spans[0][0] == rounds[0]
        assert spans[-1][1] == rounds[-1]
        for k, mine, other in zip(rounds, ours, theirs, strict=True):
            (verdict,) = [p["pdsgd"] for p in scale["phases"] if p["from"] <= k <= p["to"]]
            if verdict != "equal":
                assert verdict == ("better" if mine < other else "worse")
        assert scale["final_ratio"] == pytest.approx(ours[-1] / theirs[-1], rel=1e-12)
        assert scale["final"]["PDSGD"]["mean"] == pytest.approx(ours[-1], rel=1e-12)
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        assert scale["best_ratio"] == pytest.approx(min(ratios), rel=1e-12)
        assert rounds[ratios.index(min(ratios))] == scale["best_ratio_round"]
        assert any(scale["phases_text"] in sentence for sentence in estimated.findings)


def made(values: Any, rounds: list[int]) -> Result:
    tensor = torch.as_tensor(values, dtype=torch.float64)
    return Result(rounds, {"distance": tensor}, torch.zeros(tensor.shape[1], 1, 1), {})


def test_verdicts_are_those_of_a_known_case() -> None:
    """Below by far, equal in mean, above by far: the phases must come out so."""
    spread = np.linspace(-0.1, 0.1, 20)
    base = np.stack([1 + spread] * 5)
    shifted = base + np.array([0.0, -0.5, -0.5, 0.0, 0.5])[:, None]
    rounds = [0, 1, 2, 3, 4]
    found = _compare({"PDSGD": made(shifted, rounds), "DSGD": made(base, rounds)})
    assert [(p["from"], p["to"], p["pdsgd"]) for p in found["phases"]] == [
        (1, 2, "better"),
        (3, 3, "equal"),
        (4, 4, "worse"),
    ]
    assert found["phases_text"] == "better in rounds 1-2; worse in round 4"
    assert found["final_verdict"] == "worse"
    assert found["final_ratio"] == pytest.approx(1.5)
    assert _phases_text([{"from": 1, "to": 9, "pdsgd": "equal"}]) == "nowhere distinguishable"


def test_the_verdict_in_words_is_that_of_the_numbers() -> None:
    def case(final: str, *phases: str) -> dict[str, Any]:
        return {"final_verdict": final, "phases": [{"pdsgd": phase} for phase in phases]}

    assert _overall({0.5: case("better", "better")}) == (
        "The paper's claim held at every scale tried, through the last round."
    )
    assert _overall({0.5: case("worse", "worse"), 1.0: case("equal", "better", "equal")}) == (
        "The paper's claim held in part: PDSGD is ahead in some rounds for scale 1; at the last "
        "round it is more accurate for no scale, less accurate for scale 0.5."
    )
    assert _overall({k: case("worse", "worse") for k in (1.0, 2.0, 3.0)}) == (
        "The paper's claim did not hold: PDSGD is ahead in no round; at the last round it is more "
        "accurate for no scale, less accurate for scale 1, 2 and 3."
    )


def test_estimation_is_repeatable_and_free_without_a_seed() -> None:
    def curve(seed: int | None) -> list[float]:
        found = estimation(steps=5, runs=2, scales=(1.0,), insecure_seed=seed)
        return list(found.data["scales"][0]["curves"]["PDSGD.distance"]["mean"])

    assert curve(3) == curve(3)
    assert curve(None) != curve(None)


def test_one_run_has_no_spread_to_compare() -> None:
    with pytest.raises(SimulationError, match="runs is 1; a comparison"):
        estimation(runs=1, steps=2)
    with pytest.raises(SimulationError, match="needs at least 10 and 2"):
        rates(runs=1, steps=20)


@pytest.mark.parametrize("exponent", [-1.0, -0.5, -0.3])
def test_the_slope_of_a_power_law_is_recovered(exponent: float) -> None:
    rounds = [0, *np.unique(np.geomspace(1, 10_000, 100).round().astype(int)).tolist()]
    rng = np.random.default_rng(0)
    exact = np.array([1.0, *(k**exponent for k in rounds[1:])])[:, None]
    # What happens before the last decade must not matter.
    exact[: np.searchsorted(rounds, 900)] = 1e6
    fit = _slope(made(exact * np.ones((1, 20)), rounds), "distance")
    assert fit["slope"] == pytest.approx(exponent, abs=1e-10)
    assert fit["half_width"] < 1e-10
    noisy = exact * np.exp(0.3 * rng.standard_normal((len(rounds), 40)))
    fit = _slope(made(noisy, rounds), "distance")
    assert 0 < fit["half_width"] < 0.2
    assert abs(fit["slope"] - exponent) < 3 * fit["half_width"]


def test_consensus_falls_like_one_over_k(rated: Study) -> None:
    for fits in rated.data["slopes"].values():
        assert fits["consensus"]["slope"] == pytest.approx(-1.0, abs=0.1)


def test_rates_name_what_is_slow(rated: Study) -> None:
    """A slope confidently above -1/2 appears in the findings, and only then."""
    slow = [
        case
        for case, fits in rated.data["slopes"].items()
        if any(fit["slope"] - fit["half_width"] > -0.45 for fit in fits.values())
    ]
    assert (rated.agrees is True) == (not slow)
    for case in rated.data["slopes"]:
        assert (f"of '{case}'" in rated.findings[-1]) == (case in slow)


def test_the_papers_numbers_are_ours(bounded: Study) -> None:
    assert bounded.agrees is True
    closed = bounded.data["closed_form"]
    assert round(closed["entropy_nats"], 4) == bounded.data["paper"]["entropy_nats"] == 1.0322
    assert round(closed["mse_lower_bound"], 4) == bounded.data["paper"]["mse_lower_bound"] == 0.4614
    assert "1.0322" in bounded.findings[0]


def test_the_bound_falls_with_the_round_for_the_experiments_law(bounded: Study) -> None:
    curves, rounds = bounded.data["entropy_nats"], bounded.data["rounds"]
    assert curves["uniform"] == pytest.approx([math.log(5) - np.euler_gamma] * len(rounds))
    falling = np.diff(curves["experiment"])
    assert (falling < 0).all()
    at = dict(zip(rounds, curves["experiment"], strict=True))
    assert [at[k] for k in (1, 2, 10, 100)] == pytest.approx(
        [1.03222, 0.06418, -1.66742, -3.99323], abs=1e-4
    )


def test_the_independent_estimate_agrees(bounded: Study) -> None:
    at = bounded.data["rounds"].index
    for check in bounded.data["monte_carlo"]:
        exact = bounded.data["entropy_nats"][check["law"]][at(check["k"])]
        assert abs(check["estimate"] - exact) < 5 * check["standard_error"]


def test_another_prior_is_not_compared_with_the_paper() -> None:
    found = bound_study(kappa=2.0, last_round=10, samples=800)
    assert found.agrees is None
    assert "paper" not in found.findings[0]
    assert found.data["closed_form"]["entropy_nats"] == pytest.approx(math.log(2) - np.euler_gamma)
