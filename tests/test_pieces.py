"""Runs in pieces are the runs of one simulation, and a finished piece is never computed again."""

from pathlib import Path
from typing import Any

import pytest
import torch

import sottovoce.simulation.pieces
from sottovoce import PDSGD, Quadratic, complete, ring, simulate
from sottovoce.errors import SimulationError
from sottovoce.simulation.checkpoint import Task
from sottovoce.simulation.options import Options
from sottovoce.simulation.pieces import pieces_of, simulate_in_pieces
from sottovoce.simulation.result import Result
from sottovoce.simulation.runner import run_task
from sottovoce.simulation.transcript import Recording
from sottovoce.stepsizes import Custom, Law, PrivateDeviation, Stepsize
from sottovoce.storage.store import Store

MEASURED = [0, 3, 7]


def pieces(folder: Path, **changes: Any) -> Result:
    arguments: dict[str, Any] = {
        "problem": Quadratic.random(5, 4),
        "algorithm": PDSGD(),
        "graph": ring(5),
        "steps": 7,
        "stepsize": Stepsize(),
        "insecure_seed": 1,
    } | changes
    jitter, fresh = arguments.pop("private_start", 0.0), arguments.pop("fresh", False)
    store = Store(folder, fresh, arguments.pop("say", None))
    arguments["runs"] = pieces_of(arguments.pop("runs", 5), arguments.pop("piece", 2))
    return simulate_in_pieces(
        options=Options(measure=MEASURED, checkpoint=store, private_start=jitter), **arguments
    )


def changed(folder: Path, **change: Any) -> bool:
    """Whether a piece is computed anew, with the numbers of an empty folder."""
    computed = []
    pieces(folder, runs=2)
    found = pieces(folder, runs=2, say=computed.append, **change)
    apart = pieces(folder / "apart", runs=2, **change)
    assert torch.equal(found.metrics["distance"], apart.metrics["distance"])
    return computed != [f"reused 1 of 1 pieces from {folder}"]


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
    assert len(list(tmp_path.glob("piece-*.safetensors"))) == 3
    monkeypatch.setattr(sottovoce.simulation.pieces, "run_task", lambda *_: pytest.fail("computed"))
    said: list[str] = []
    again = pieces(tmp_path, say=said.append)
    assert said == [f"reused 3 of 3 pieces from {tmp_path}"]
    assert again.facts == whole.facts
    assert torch.equal(again.metrics["distance"], found.metrics["distance"])


def test_a_stopped_study_continues_with_the_next_piece(tmp_path, monkeypatch):
    pieces(tmp_path, runs=4)
    computed = []

    def counted(task: Task, runs: range) -> Result:
        computed.append(runs)
        return run_task(task, runs)

    monkeypatch.setattr(sottovoce.simulation.pieces, "run_task", counted)
    assert pieces(tmp_path).metrics["distance"].shape == (3, 5)
    assert computed == [range(4, 5)]


def law(highest: float) -> Law:
    class Own:
        name = "own"

        def interval(self, k: int) -> tuple[float, float]:
            return 0.5, highest

    return Own()


def test_the_same_pieces_are_reused(tmp_path):
    assert not changed(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 8},
        {"insecure_seed": 2},
        {"private_start": 0.5},
        {"problem": Quadratic.random(5, 4, seed=1)},
        {"graph": complete(5)},
        {"algorithm": PDSGD("equal")},
        {"stepsize": Stepsize(per="agent")},
        {"stepsize": Stepsize(deviation=PrivateDeviation(5))},
    ],
    ids=lambda change: " ".join(map(str, [*change, len(repr(change)) % 97])),
)
def test_other_settings_are_computed_anew(change, tmp_path):
    assert changed(tmp_path, **change)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Stepsize(deviation=PrivateDeviation(5)), Stepsize(deviation=PrivateDeviation(5, 0.9))),
        (Stepsize(deviation=PrivateDeviation(5)), Stepsize(deviation=PrivateDeviation(4))),
        (Stepsize(Custom(lambda k: 1 / k)), Stepsize(Custom(lambda k: 2 / k))),
        (Stepsize(law=law(1.0)), Stepsize(law=law(2.0))),
    ],
    ids=["probability", "rounds", "schedule", "law"],
)
def test_stepsizes_that_print_alike_are_told_apart(one, other, tmp_path):
    assert str(one) == str(other)
    pieces(tmp_path, runs=2, stepsize=one)
    said: list[str] = []
    pieces(tmp_path, runs=2, stepsize=other, say=said.append)
    assert not said
    pieces(tmp_path, runs=2, stepsize=one, say=said.append)
    assert said == [f"reused 1 of 1 pieces from {tmp_path}"]


def test_a_fresh_call_reuses_nothing_and_leaves_its_own(tmp_path):
    said: list[str] = []
    pieces(tmp_path, insecure_seed=None)
    first = pieces(tmp_path, insecure_seed=None)
    fresh = pieces(tmp_path, insecure_seed=None, fresh=True, say=said.append)
    assert not said
    assert not torch.equal(first.metrics["distance"], fresh.metrics["distance"])
    last = pieces(tmp_path, insecure_seed=None)
    assert torch.equal(last.metrics["distance"], fresh.metrics["distance"])


def test_a_recording_is_not_made_in_pieces(tmp_path):
    with pytest.raises(SimulationError, match="pieces keep measurements alone"):
        simulate_in_pieces(
            Quadratic.random(5, 4),
            PDSGD(),
            ring(5),
            steps=7,
            runs=pieces_of(5, 2),
            stepsize=Stepsize(),
            options=Options(record=Recording([1])),
        )


def test_impossible_pieces_are_refused(tmp_path):
    with pytest.raises(SimulationError, match="piece is 0"):
        pieces(tmp_path, piece=0)
