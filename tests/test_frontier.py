"""The frontier: equal effective noise by construction, pieces that resume, findings from points."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.privacy.readers.metrics import success_rate
from sottovoce.storage.execution import Execution
from sottovoce.studies import frontier
from sottovoce.studies.frontier import (
    FrontierSettings,
    Setting,
    frontier_study,
    points,
    verdict,
    write_rows,
)
from sottovoce.studies.study import Study

SETTINGS = FrontierSettings(levels=(0.5,), runs=2, epochs=1, targets=2)
DOCS = Path(__file__).parents[1] / "docs"
Made = dict[tuple[Setting, str], frontier.Piece]


def quiet(folder: Path | None) -> Execution:
    return Execution(folder, say=lambda line: None)


def test_noise_is_set_so_that_an_eavesdropper_is_left_with_the_same() -> None:
    chosen = {one.family: one for one in points([0.5]) if one.effective_noise}
    sizes = {family: float(one.algorithm.split(":")[1]) for family, one in chosen.items()}
    assert sizes["NoisyDSGD"] == 0.5
    assert sizes["ZeroSumDSGD"] == pytest.approx(0.5 / 3**0.5, rel=1e-5)
    assert sizes["ZeroSumDSGD, lazy W"] == pytest.approx(0.25 / 3**0.5, rel=1e-5)
    assert {one.law for one in points([0.5]) if one.family.startswith("PDSGD")} == {
        "experiment",
        "uniform",
    }


@pytest.mark.slow
def test_a_small_frontier_is_computed_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = {one.family: one for one in points([0.5])}
    chosen = [every["DSGD"], every["PDSGD, coordinate mixing"], every["ZeroSumDSGD"]]
    monkeypatch.setattr(frontier, "points", lambda levels: chosen)
    settings = FrontierSettings(
        levels=(0.5,),
        runs=2,
        epochs=1,
        scales=(0.25,),
        targets=1,
        round=2,
        iterations=1,
        restarts=1,
        candidates=40,
    )
    said: list[str] = []

    def run() -> Study:
        return frontier_study(settings, Execution(tmp_path, say=said.append))

    found = run()
    dsgd, private, noisy = found.data["points"]
    for point in (dsgd, private, noisy):
        assert 0.5 < point["low"] <= point["accuracy"] <= point["high"] < 1
        assert all(found["candidates"] == 40 for found in point["attacks"].values())
    heard = dsgd["attacks"]["eavesdropper"]
    assert (heard["top1"], heard["auc"]) == (1.0, 1.0)
    assert "frontier" in found.charts()
    assert found.verdict == verdict(found.data["points"]) == "undecided"
    assert json.dumps(run().to_json()) == json.dumps(found.to_json())
    assert said[-1] == f"reused 9 of 9 pieces from {tmp_path}"


def made_up(setting: Setting, piece: str) -> dict[str, Any]:
    """Zero-sum noise hides, everything else is broken; the larger stepsize is the better one."""
    if piece.startswith("accuracy"):
        better = piece.endswith("0.5")
        level = {"ZeroSumDSGD": 0.90, "NoisyDSGD": 0.80}.get(setting.family, 0.91)
        return {"accuracies": [level, level + 0.01 * better]}
    hidden = setting.family == "ZeroSumDSGD" and setting.effective_noise > 0.3
    return attacked(0 if hidden else 2, 2)


def attacked(recovered: int, targets: int) -> dict[str, Any]:
    """What attacks found that got as many records as they identified."""
    rate = success_rate([0.0] * recovered + [9.0] * (targets - recovered), threshold=5.0)
    return {
        "top1": recovered / targets,
        "top1_interval": [rate.low, rate.high],
        "auc": 1.0 if recovered else 0.5,
        "error": 3.0 if recovered else 52.0,
        "blind": 48.0,
        "share": [rate.low, rate.high],
        "labels": 1,
        "succeeded": recovered > 0,
    }


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Pieces as they were computed, each made up in place of the work."""
    done: list[tuple[str, str]] = []
    real = frontier._pieces

    def compute(one: Setting, name: str) -> Callable[[], dict[str, Any]]:
        def piece() -> dict[str, Any]:
            done.append((str(one), name))
            return made_up(one, name)

        return piece

    def pieces(settings: FrontierSettings, execution: Execution) -> Made:
        found = real(settings, execution)
        return {case: (spec, compute(*case)) for case, (spec, _) in found.items()}

    monkeypatch.setattr(frontier, "_pieces", pieces)
    return done


@pytest.mark.usefixtures("done")
def test_the_study_recommends_the_most_accurate_setting_that_holds(tmp_path: Path) -> None:
    settings = FrontierSettings(levels=(0.2, 0.5), runs=2, epochs=1, targets=2)
    study = frontier_study(settings, quiet(tmp_path))
    assert "zero-sum:0.288675:weights with metropolis weights" in study.findings[0]
    assert "scale 0.5: accuracy 0.9050, PDSGD's being 0.9150 (-0.0100)" in study.findings[0]
    assert "+0.1000 at 0.2, +0.1000 at 0.5" in study.findings[1]
    assert "That is no proof" in study.findings[0]
    assert "100% first, error 3" in study.tables[0].rows[0]
    assert study.to_json()["data"]["blind"] == 48.0


def test_parts_share_a_folder_and_finished_pieces_are_not_computed_again(
    tmp_path: Path, done: list[tuple[str, str]]
) -> None:
    count = len(points([0.5])) * 4

    def run(**changed: Any) -> Study:
        return frontier_study(FrontierSettings(**{**vars(SETTINGS), **changed}), quiet(tmp_path))

    with pytest.raises(SottovoceError, match="no setting is finished"):
        run(part="2/40")
    assert len(done) == 1
    run(part="1/1")
    assert len(done) == count == len(set(done))
    run(part="2/3")
    assert len(done) == count
    run(insecure_seed=1)
    assert len(done) == 2 * count, "another seed is another study"
    run(iterations=7)
    assert len(done) == 2 * count + count // 2, "another search leaves the trainings as they are"


def point(family: str, low: float, high: float, recovered: int, noise: float = 0.0) -> Any:
    return {
        "family": family,
        "low": low,
        "high": high,
        "effective_noise": noise,
        "attacks": {"eavesdropper": attacked(recovered, 16)},
    }


@pytest.mark.parametrize(
    ("private", "noisy", "expected"),
    [
        ((0.90, 0.92, 0), (0.80, 0.82, 0), "confirmed"),
        ((0.90, 0.92, 16), (0.80, 0.82, 0), "refuted"),
        ((0.80, 0.82, 0), (0.90, 0.92, 0), "refuted"),
        ((0.90, 0.92, 0), (0.89, 0.91, 0), "undecided"),
        ((0.90, 0.90, 0), (0.80, 0.80, 0), "undecided"),
    ],
)
def test_the_verdict_weighs_hiding_and_accuracy(private: Any, noisy: Any, expected: str) -> None:
    found = [point("PDSGD, scalar mixing", *private), point("NoisyDSGD", *noisy, noise=0.5)]
    assert verdict(found) == expected


def test_impossible_levels_and_parts_are_refused() -> None:
    with pytest.raises(SottovoceError, match="accepted: numbers above 0"):
        FrontierSettings(levels=(0.0,))
    with pytest.raises(SottovoceError, match="part '5/4' does not exist"):
        FrontierSettings(part="5/4")


def test_the_page_shows_what_its_data_say() -> None:
    kept = Study.load(DOCS / "figures" / "frontier.json")
    page = (DOCS / "results" / "frontier.md").read_text("utf-8")
    assert "\n".join(write_rows(kept.data)) in page
    assert kept.command in page
    assert verdict(kept.data["points"]) == kept.verdict
    assert f"the study calls the claim {kept.verdict}" in page
