"""The frontier: equal effective noise by construction, pieces that resume, findings from points."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from sottovoce.privacy.auditor.scores import Row

from sottovoce.errors import SottovoceError
from sottovoce.mechanisms import parse_algorithm
from sottovoce.studies.frontier import Setting, Sizes, frontier, settings

SIZES = Sizes(runs=2, epochs=1, targets=2, scales=(0.25, 0.5))


def test_noise_is_set_so_that_an_eavesdropper_is_left_with_the_same() -> None:
    chosen = {one.family: one for one in settings([0.5]) if one.effective_noise}
    sizes = {family: parse_algorithm(one.algorithm).noise for family, one in chosen.items()}  # type: ignore[attr-defined]
    assert sizes["NoisyDSGD"] == 0.5
    assert sizes["ZeroSumDSGD"] == pytest.approx(0.5 / 3**0.5, rel=1e-5)
    assert sizes["ZeroSumDSGD, lazy W"] == pytest.approx(0.25 / 3**0.5, rel=1e-5)
    assert {one.law for one in settings([0.5]) if one.family.startswith("PDSGD")} == {
        "experiment",
        "uniform",
    }


def made_up(setting: Setting, piece: str, *_: Any) -> dict[str, Any]:
    """Zero-sum noise hides, everything else is broken; the larger stepsize is the better one."""
    if piece.startswith("accuracy"):
        better = piece.endswith("0.5")
        level = {"ZeroSumDSGD": 0.90, "NoisyDSGD": 0.80}.get(setting.family, 0.91)
        return {"accuracies": [level, level + 0.01 * better]}
    hidden = setting.family == "ZeroSumDSGD" and setting.effective_noise > 0.3
    rows = [
        Row(setting.algorithm, "", piece, 50, name, "projection", 2, attacked=2, cosine=0.5)
        for name in ("least-squares", "smoothing")
    ]
    errors = (60.0, 52.0) if hidden else (9.0, 3.0)
    found = [
        {**row.to_json(), "median_error": error, "labels_correct": 1}
        for row, error in zip(rows, errors, strict=True)
    ]
    refused = Row(setting.algorithm, "", piece, 50, "chain", "", 2, refused="no")
    return {"rows": [*found, refused.to_json()], "blind": 48.0}


def test_the_study_recommends_the_most_accurate_setting_that_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[frontier.__module__], "_compute", made_up)
    study = frontier([0.2, 0.5], SIZES, folder=tmp_path)
    assert "zero-sum:0.288675:weights with metropolis weights" in study.findings[0]
    assert "scale 0.5: accuracy 0.9050, PDSGD's being 0.9150 (-0.0100)" in study.findings[0]
    assert "+0.1000 at 0.2, +0.1000 at 0.5" in study.findings[1]
    best = study.data["points"][0]["attacks"]["eavesdropper"]
    assert (best["attack"], best["error"]) == ("smoothing + projection", 3.0)
    assert "frontier" in study.charts()
    assert study.to_json()["data"]["blind"] == 48.0


def test_parts_share_a_folder_and_finished_pieces_are_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str]] = []

    def counted(setting: Setting, piece: str, *rest: Any) -> dict[str, Any]:
        done.append((str(setting), piece))
        return made_up(setting, piece, *rest)

    monkeypatch.setattr(sys.modules[frontier.__module__], "_compute", counted)
    frontier([0.5], SIZES, folder=tmp_path, part=(1, 1))
    everything = len(done)
    assert everything == len(settings([0.5])) * 4 == len(set(done))
    frontier([0.5], SIZES, folder=tmp_path, part=(2, 3))
    assert len(done) == everything
    kept = next(tmp_path.glob("piece-*.json"))
    assert json.loads(kept.read_text())["sizes"]["seed"] == 0
    frontier([0.5], SIZES, folder=tmp_path, insecure_seed=1)
    assert len(done) == 2 * everything, "another seed is another study"


def test_impossible_levels_and_parts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SottovoceError, match="accepted: numbers above 0"):
        frontier([0.0], SIZES, folder=tmp_path)
    with pytest.raises(SottovoceError, match="part 5 of 4 does not exist"):
        frontier([0.5], SIZES, folder=tmp_path, part=(5, 4))
