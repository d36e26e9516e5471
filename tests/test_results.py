"""Results: confidence bands against an independent computation, and files that can be trusted."""

import json
import math
from pathlib import Path

import pytest
import torch
from scipy import stats

from sottovoce.errors import ResultError
from sottovoce.graphs import ring
from sottovoce.mechanisms import PDSGD
from sottovoce.problems import Estimation
from sottovoce.simulation.options import Options
from sottovoce.simulation.result import Result, join
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Recording

GENERATOR = torch.Generator().manual_seed(0)


def made(runs: int = 6, agents: int = 0) -> Result:
    shape = (3, runs, agents) if agents else (3, runs)
    values = torch.rand(shape, dtype=torch.float64, generator=GENERATOR)
    final = torch.rand(runs, 2, 4, dtype=torch.float64, generator=GENERATOR)
    return Result([0, 1, 5], {"distance": values}, final, {"steps": 5})


def simulated(record: bool = False) -> Result:
    return simulate(
        Estimation.random(),
        PDSGD(),
        ring(5),
        steps=5,
        runs=3,
        options=Options(record=Recording([1, 2], [0, 2]) if record else None),
    )


@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_band_is_students_interval(confidence: float) -> None:
    result = made()
    band = result.band("distance", confidence)
    for row in range(3):
        sample = result.metrics["distance"][row].tolist()
        test = stats.ttest_1samp(sample, 0.0).confidence_interval(confidence)
        assert float(band.mean[row]) == pytest.approx(sum(sample) / len(sample), rel=1e-14)
        assert (float(band.low[row]), float(band.high[row])) == pytest.approx(
            (test.low, test.high), rel=1e-12
        )


def test_the_band_covers_as_often_as_it_says() -> None:
    """2,000 means of 5 normal numbers: 90 % of the intervals hold the true mean."""
    values = torch.randn(2000, 5, dtype=torch.float64, generator=GENERATOR)
    result = Result(list(range(2000)), {"x": values}, torch.zeros(5, 1, 1), {})
    band = result.band("x", 0.9)
    covered = ((band.low < 0) & (band.high > 0)).double().mean()
    assert float(covered) == pytest.approx(0.9, abs=4 * math.sqrt(0.09 / 2000))


def test_the_band_of_one_run_is_a_point() -> None:
    band = made(runs=1).band("distance")
    assert torch.equal(band.low, band.mean)
    assert torch.equal(band.high, band.mean)


def test_metrics_of_agents_are_averaged() -> None:
    result = made(agents=4)
    assert torch.allclose(result.metric("distance"), result.metrics["distance"].mean(2))
    assert result.band("distance").mean.shape == (3,)


def test_unknown_metrics_are_refused() -> None:
    with pytest.raises(ResultError, match="no metric 'loss'; measured: distance"):
        made().metric("loss")


def test_runs_join_side_by_side() -> None:
    first, second = made(runs=2), made(runs=3)
    both = join([first, second])
    assert torch.equal(both.final, torch.cat([first.final, second.final]))
    assert torch.equal(both.metric("distance")[:, 2:], second.metric("distance"))


@pytest.mark.parametrize("ending", ["", ".json", ".safetensors"])
@pytest.mark.parametrize("record", [False, True])
def test_what_is_saved_is_loaded(ending: str, record: bool, tmp_path: Path) -> None:
    result = simulated(record)
    stem = tmp_path / "deep" / f"a.result{ending}"
    result.save(stem)
    loaded = Result.load(stem)
    assert loaded.rounds == result.rounds
    assert loaded.facts == result.facts
    assert torch.equal(loaded.final, result.final)
    assert loaded.metrics.keys() == result.metrics.keys()
    for name, values in result.metrics.items():
        assert torch.equal(loaded.metrics[name], values)
    if result.transcript is None:
        assert loaded.transcript is None
    else:
        assert loaded.transcript is not None
        assert torch.equal(loaded.transcript.messages, result.transcript.messages)


def test_the_json_beside_holds_the_means(tmp_path: Path) -> None:
    result = simulated()
    result.save(tmp_path / "result")
    facts = json.loads((tmp_path / "result.json").read_text())
    assert facts["means"]["distance"] == result.band("distance").mean.tolist()


def test_an_older_transcript_is_not_taken_for_that_of_a_later_result(tmp_path: Path) -> None:
    simulated(record=True).save(tmp_path / "result")
    simulated(record=False).save(tmp_path / "result")
    assert Result.load(tmp_path / "result").transcript is None


def test_a_missing_transcript_is_said(tmp_path: Path) -> None:
    simulated(record=True).save(tmp_path / "result")
    (tmp_path / "result.transcript.json").unlink()
    with pytest.raises(ResultError, match=r"result\.transcript\.json"):
        Result.load(tmp_path / "result")


def test_results_of_another_format_are_refused(tmp_path: Path) -> None:
    made().save(tmp_path / "result")
    path = tmp_path / "result.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "format": 99}))
    with pytest.raises(ResultError, match="has format 99; this version reads 1"):
        Result.load(path)


@pytest.mark.parametrize("missing", ["rounds", "facts", "recorded"])
def test_results_with_a_part_missing_are_refused(missing: str, tmp_path: Path) -> None:
    made().save(tmp_path / "result")
    path = tmp_path / "result.json"
    facts = json.loads(path.read_text())
    del facts[missing]
    path.write_text(json.dumps(facts))
    with pytest.raises(ResultError, match=f"not a whole result: {missing} is missing"):
        Result.load(path)


def test_rounds_and_measurements_must_fit(tmp_path: Path) -> None:
    made().save(tmp_path / "result")
    path = tmp_path / "result.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "rounds": [0, 1]}))
    with pytest.raises(ResultError, match="one row for each measured round"):
        Result.load(path)
