"""Studies: what they say must follow from the numbers they keep, and their command repeats them."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sottovoce.errors import ResultError, SimulationError
from sottovoce.simulation.result import Result
from sottovoce.studies import Study, bound, mnist, noise, rates
from sottovoce.studies.bound import BoundSettings, bound_study
from sottovoce.studies.estimation import (
    EstimationSettings,
    compare,
    estimation_study,
    overall,
    phases_text,
)
from sottovoce.studies.judging import all_hold, judge, unanimous
from sottovoce.studies.rates import RatesSettings, fit_slope, rates_study
from sottovoce.studies.study import Kind, Table, kinds, register


@pytest.fixture(scope="module")
def estimated() -> Study:
    return estimation_study(
        EstimationSettings(steps=60, runs=30, scales=(0.5, 1.0), insecure_seed=1)
    )


@pytest.fixture(scope="module")
def bounded() -> Study:
    return bound_study(BoundSettings(last_round=100, samples=4000))


@pytest.fixture(scope="module")
def rated() -> Study:
    return rates_study(RatesSettings(steps=400, runs=20, insecure_seed=1))


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


def test_files_of_version_one_are_read(bounded: Study, tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    for agrees, verdict in ((True, "confirmed"), (False, "refuted"), (None, "undecided")):
        old = {k: v for k, v in bounded.to_json().items() if k != "verdict"} | {"agrees": agrees}
        path.write_text(json.dumps(old))
        assert Study.load(path).verdict == verdict
        path.write_text(json.dumps(old | {"claim": ""}))
        assert Study.load(path).verdict is None


def test_a_study_made_elsewhere_has_the_charts_that_it_registers(bounded: Study) -> None:
    made = Study("my-own", "t", "", None, [], bounded.data, "c", [Table("t", ("a",), [(1,)])])
    assert made.charts() == {}
    register(Kind("my-own", {"again": kinds()["bound"].charts["bound"]}))
    assert set(made.charts()) == {"again"}
    assert "my-own" in kinds()


@pytest.mark.parametrize(
    ("low", "high", "limits", "verdict"),
    [
        (1.0, 2.0, {"above": 0.0}, "confirmed"),
        (-2.0, -1.0, {"above": 0.0}, "refuted"),
        (-1.0, 1.0, {"above": 0.0}, "undecided"),
        (1.0, 2.0, {"above": 0.0, "below": 3.0}, "confirmed"),
        (3.5, 4.0, {"above": 0.0, "below": 3.0}, "refuted"),
        (2.5, 4.0, {"above": 0.0, "below": 3.0}, "undecided"),
        (0.0, 0.0, {"above": 0.0}, "undecided"),
        (-math.inf, math.inf, {"below": 0.0}, "undecided"),
        (math.nan, math.nan, {"below": 0.0}, "undecided"),
    ],
)
def test_a_claim_is_judged_by_an_interval(
    low: float, high: float, limits: dict[str, float], verdict: str
) -> None:
    assert judge(low, high, **limits) == verdict


def test_verdicts_of_parts_and_of_cases() -> None:
    assert all_hold(["confirmed", "confirmed"]) == unanimous(["confirmed"]) == "confirmed"
    assert all_hold(["confirmed", "undecided"]) == "undecided"
    assert all_hold(["undecided", "refuted", "confirmed"]) == "refuted"
    assert unanimous(["refuted", "confirmed"]) == "undecided"
    assert unanimous(["refuted", "refuted"]) == "refuted"
    assert all_hold([]) == unanimous([]) == "undecided"


def made(values: Any, rounds: list[int]) -> Result:
    tensor = torch.as_tensor(values, dtype=torch.float64)
    return Result(rounds, {"distance": tensor}, torch.zeros(tensor.shape[1], 1, 1), {})


SPREAD = np.linspace(-0.1, 0.1, 20)
BASE = np.stack([1 + SPREAD] * 5)
SHIFTS = [(-0.5, "confirmed"), (0.5, "refuted"), (0.0, "undecided")]


@pytest.mark.parametrize(("shift", "verdict"), SHIFTS)
def test_estimation_can_come_out_all_three_ways(shift: float, verdict: str) -> None:
    rounds = [0, 1, 2, 3, 4]
    found = compare({"PDSGD": made(BASE + shift, rounds), "DSGD": made(BASE, rounds)})
    assert found["verdict"] == verdict


@pytest.mark.parametrize(
    ("late", "verdict"), [(-0.5, "confirmed"), (0.5, "refuted"), (0.0, "undecided")]
)
def test_estimation_needs_the_last_round_too(late: float, verdict: str) -> None:
    shift = np.array([0.0, -0.6, -0.6, -0.6, late])[:, None]
    rounds = [0, 1, 2, 3, 4]
    found = compare({"PDSGD": made(BASE + shift, rounds), "DSGD": made(BASE, rounds)})
    assert found["mean_log_ratio"] < -0.1
    assert found["verdict"] == verdict


def test_the_interval_of_the_mean_log_ratio_covers_its_spread() -> None:
    """The first-order spread is that of the same number over many independent draws."""
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(300):
        ours, theirs = (np.exp(0.3 * rng.standard_normal((4, 50))) for _ in range(2))
        draws.append(
            compare({"PDSGD": made(ours, [0, 1, 2, 3]), "DSGD": made(theirs, [0, 1, 2, 3])})
        )
    ratios = [one["mean_log_ratio"] for one in draws]
    half = np.mean([one["mean_log_ratio_half_width"] for one in draws])
    assert half == pytest.approx(1.96 * np.std(ratios), rel=0.15)


@pytest.mark.parametrize(
    ("slope", "half", "verdict"),
    [(-1.0, 0.1, "confirmed"), (-0.2, 0.1, "refuted"), (-0.5, 0.2, "undecided")],
)
def test_rates_can_come_out_all_three_ways(slope: float, half: float, verdict: str) -> None:
    good = {"slope": -1.0, "half_width": 0.01}
    slopes = {"a": {"consensus": good}, "b": {"consensus": {"slope": slope, "half_width": half}}}
    assert all_hold(rates.verdicts(slopes).values()) == verdict
    assert ("'b'" in rates._overall(slopes)) == (verdict != "confirmed")


@pytest.mark.parametrize(
    ("kappa", "entropy", "verdict"),
    [(5.0, 1.03222, "confirmed"), (5.0, 1.0321, "refuted"), (4.0, 1.03222, "undecided")],
)
def test_the_bound_can_come_out_all_three_ways(kappa: float, entropy: float, verdict: str) -> None:
    ours = {"entropy_nats": entropy, "mse_lower_bound": 0.46142}
    assert bound.verdict(kappa, ours) == verdict


@pytest.mark.parametrize(("shift", "verdict"), SHIFTS)
def test_mnist_can_come_out_all_three_ways(shift: float, verdict: str) -> None:
    accuracy = torch.tensor(BASE)
    assert mnist.verdict(accuracy - shift, accuracy) == verdict
    # One run has no spread, and a lead on the way that is lost at the end decides against it.
    assert mnist.verdict(accuracy[:, :1] - shift, accuracy[:, :1]) == "undecided"
    lost = accuracy.clone() + 0.5
    lost[-1] -= 1
    assert mnist.verdict(lost, accuracy) == "refuted"


@pytest.mark.parametrize(
    ("noisy", "private", "verdict"),
    [
        (0.1, 0.95, "confirmed"),
        (0.9, 0.95, "refuted"),
        (0.1, 0.8, "refuted"),
        (0.8, 0.95, "undecided"),
        (0.1, 0.89, "undecided"),
    ],
)
def test_noise_can_come_out_all_three_ways(noisy: float, private: float, verdict: str) -> None:
    runs = torch.tensor([-0.01, 0.0, 0.01])
    found = {0.0: 0.9 + runs, 1e-2: noisy + runs}
    assert noise.verdict(found, private + runs) == verdict
    assert noise.verdict({0.0: 0.9 + runs}, private + runs) == "undecided"


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


def test_verdicts_are_those_of_a_known_case() -> None:
    """Below by far, equal in mean, above by far: the phases must come out so."""
    spread = np.linspace(-0.1, 0.1, 20)
    base = np.stack([1 + spread] * 5)
    shifted = base + np.array([0.0, -0.5, -0.5, 0.0, 0.5])[:, None]
    rounds = [0, 1, 2, 3, 4]
    found = compare({"PDSGD": made(shifted, rounds), "DSGD": made(base, rounds)})
    assert [(p["from"], p["to"], p["pdsgd"]) for p in found["phases"]] == [
        (1, 2, "better"),
        (3, 3, "equal"),
        (4, 4, "worse"),
    ]
    assert found["phases_text"] == "better in rounds 1-2; worse in round 4"
    assert found["final_verdict"] == "worse"
    assert found["final_ratio"] == pytest.approx(1.5)
    assert phases_text([{"from": 1, "to": 9, "pdsgd": "equal"}]) == "nowhere distinguishable"


def test_the_verdict_in_words_is_that_of_the_numbers() -> None:
    def case(final: str, *phases: str) -> dict[str, Any]:
        found = {"final_verdict": final, "phases": [{"pdsgd": phase} for phase in phases]}
        return {**found, "verdict": "confirmed" if final == "better" else "undecided"}

    assert overall({0.5: case("better", "better")}) == (
        "The paper's claim held at every scale tried, through the last round."
    )
    assert overall({0.5: case("worse", "worse"), 1.0: case("equal", "better", "equal")}) == (
        "The paper's claim held in part: PDSGD is ahead in some rounds for scale 1; at the last "
        "round it is more accurate for no scale, less accurate for scale 0.5."
    )
    assert overall({k: case("worse", "worse") for k in (1.0, 2.0, 3.0)}) == (
        "The paper's claim did not hold: PDSGD is ahead in no round; at the last round it is more "
        "accurate for no scale, less accurate for scale 1, 2 and 3."
    )


def test_estimation_is_repeatable_and_free_without_a_seed() -> None:
    def curve(seed: int | None) -> list[float]:
        asked = EstimationSettings(steps=5, runs=2, scales=(1.0,), insecure_seed=seed)
        found = estimation_study(asked)
        return list(found.data["scales"][0]["curves"]["PDSGD.distance"]["mean"])

    assert curve(3) == curve(3)
    assert curve(None) != curve(None)


def test_one_run_has_no_spread_to_compare() -> None:
    with pytest.raises(SimulationError, match="runs is 1; a comparison"):
        estimation_study(EstimationSettings(runs=1, steps=2))
    with pytest.raises(SimulationError, match="needs at least 10 and 2"):
        rates_study(RatesSettings(runs=1, steps=20))


@pytest.mark.parametrize("exponent", [-1.0, -0.5, -0.3])
def test_the_slope_of_a_power_law_is_recovered(exponent: float) -> None:
    rounds = [0, *np.unique(np.geomspace(1, 10_000, 100).round().astype(int)).tolist()]
    rng = np.random.default_rng(0)
    exact = np.array([1.0, *(k**exponent for k in rounds[1:])])[:, None]
    # What happens before the last decade must not matter.
    exact[: np.searchsorted(rounds, 900)] = 1e6
    fit = fit_slope(made(exact * np.ones((1, 20)), rounds), "distance")
    assert fit["slope"] == pytest.approx(exponent, abs=1e-10)
    assert fit["half_width"] < 1e-10
    noisy = exact * np.exp(0.3 * rng.standard_normal((len(rounds), 40)))
    fit = fit_slope(made(noisy, rounds), "distance")
    assert 0 < fit["half_width"] < 0.2
    assert abs(fit["slope"] - exponent) < 3 * fit["half_width"]


def test_consensus_falls_like_one_over_k(rated: Study) -> None:
    for fits in rated.data["slopes"].values():
        assert fits["consensus"]["slope"] == pytest.approx(-1.0, abs=0.1)


def test_rates_name_what_is_slow(rated: Study) -> None:
    """F has curvature 0.2 in the flat direction: with λ̄ = 1/k the theory gives k^-0.2 there."""
    assert rated.verdict == "refuted"
    assert "gradient norm ||∇F(x̄)|| of 'convex f_i, flat direction'" in rated.findings[-1]
    assert rated.findings[-1].count(" of '") == 1


def test_the_papers_numbers_are_ours(bounded: Study) -> None:
    assert bounded.verdict == "confirmed"
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
    found = bound_study(BoundSettings(kappa=2.0, last_round=10, samples=800))
    assert found.verdict == "undecided"
    assert "paper" not in found.findings[0]
    assert found.data["closed_form"]["entropy_nats"] == pytest.approx(math.log(2) - np.euler_gamma)
