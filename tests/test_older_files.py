"""Files that version 0.1 wrote (`tests/data/0.1`) are read."""

from pathlib import Path

import torch

from sottovoce import PDSGD, Estimation, Options, ring, simulate
from sottovoce.report.saved import load_section
from sottovoce.simulation.result import Result
from sottovoce.simulation.transcript import Transcript
from sottovoce.studies.study import Study

OLD = Path(__file__).parent / "data" / "0.1"


def test_a_result_is_read_and_its_numbers_are_those_of_today() -> None:
    old = Result.load(OLD / "result")
    assert old.rounds == [0, 2, 4]
    assert old.facts["steps"] == 4
    again = simulate(
        Estimation.random(3),
        PDSGD(),
        ring(3),
        steps=4,
        runs=2,
        insecure_seed=1,
        options=Options(measure=[0, 2, 4]),
    )
    torch.testing.assert_close(old.final, again.final)
    torch.testing.assert_close(old.metric("distance"), again.metric("distance"))


def test_a_transcript_is_read() -> None:
    old = Transcript.load(OLD / "result.transcript")
    assert old.rounds == [1, 2]
    assert old.messages.shape == (2, 1, 6, 2)
    assert old.start is not None
    assert torch.equal(old.start, torch.zeros(1, 2, dtype=torch.float64))
    assert (str(old.algorithm), old.private_start) == ("pdsgd:uniform", 0.0)
    assert old.graph.name == "ring:3"


def test_a_study_is_read_and_shown() -> None:
    old = Study.load(OLD / "bound.json")
    assert old.name == "bound"
    assert len(old.findings) == 3
    assert "1.0322" in load_section(OLD / "bound.json").body
