"""Runs in pieces are the runs of one simulation, and a finished piece is never computed again."""

from pathlib import Path
from typing import Any

import pytest
import torch

import sottovoce.simulation.pieces
from sottovoce import PDSGD, Quadratic, ring, simulate
from sottovoce.errors import ResultError, SimulationError
from sottovoce.simulation.options import Options
from sottovoce.simulation.pieces import simulate_in_pieces
from sottovoce.simulation.result import Result
from sottovoce.stepsizes import Stepsize

MEASURED = [0, 3, 7]


def pieces(folder: Path, **changes: Any) -> Result:
    arguments: dict[str, Any] = {"steps": 7, "runs": 5, "piece": 2, "insecure_seed": 1} | changes
    jitter = arguments.pop("private_start", 0.0)
    return simulate_in_pieces(
        Quadratic.random(5, 4),
        PDSGD(),
        ring(5),
        stepsize=Stepsize(),
        options=Options(measure=MEASURED, checkpoint=folder, private_start=jitter),
        **arguments,
    )


def test_pieces_are_one_simulation_and_are_kept(tmp_path, monkeypatch):
    whole = simulate(
        Quadratic.random(5, 4),
        PDSGD(),
        ring(5),
        steps=7,
        runs=5,
        insecure_seed=1,
        options=Options(measure=MEASURED),
    )
    found = pieces(tmp_path)
    assert found.facts == whole.facts
    assert found.rounds == whole.rounds
    for name, values in whole.metrics.items():
        assert torch.equal(found.metrics[name], values)
    assert found.final.shape == (5, 5, 0)
    assert {path.stem for path in tmp_path.iterdir()} == {"runs-0-1", "runs-2-3", "runs-4-4"}
    monkeypatch.setattr(
        sottovoce.simulation.pieces, "simulate", lambda *_, **__: pytest.fail("computed")
    )
    again = pieces(tmp_path)
    assert torch.equal(again.metrics["distance"], found.metrics["distance"])


def test_a_stopped_study_continues_with_the_next_piece(tmp_path, monkeypatch):
    pieces(tmp_path, runs=4)
    computed = []

    def counted(*arguments: Any, runs: range, **options: Any) -> Result:
        computed.append(runs)
        return simulate(*arguments, runs=runs, **options)

    monkeypatch.setattr(sottovoce.simulation.pieces, "simulate", counted)
    assert pieces(tmp_path).metrics["distance"].shape == (3, 5)
    assert computed == [range(4, 5)]


@pytest.mark.parametrize("change", [{"steps": 8}, {"insecure_seed": 2}, {"private_start": 0.5}])
def test_pieces_of_other_settings_are_refused(change, tmp_path):
    pieces(tmp_path, runs=2)
    with pytest.raises(ResultError, match="runs-0-1 belongs to a simulation with other settings"):
        pieces(tmp_path, **change)


def test_impossible_pieces_are_refused(tmp_path):
    with pytest.raises(SimulationError, match="piece is 0"):
        pieces(tmp_path, piece=0)
