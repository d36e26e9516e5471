"""The entry that a ledger holds of a training is never too small, whichever agent reports first."""

from pathlib import Path
from typing import Any

import pytest

from sottovoce.distributed.launch import Training
from sottovoce.mechanisms import LDPDSGD
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.training_account import TrainingAccount

SIZES = (877, 900, 1000, 1088, 1135)


def report(agent: int, rounds: int, redone: int = 0) -> dict[str, Any]:
    charged = {"training": 7, "rounds": rounds, "redone": redone, "samples": SIZES[agent]}
    return {"epoch": 1, "agent": agent, "accuracy": 0.5, "charged": charged}


def account(folder: Path, sizes: tuple[int, ...] | None, **how: Any) -> TrainingAccount:
    training = Training(algorithm=str(LDPDSGD(0.05)), batch_size=50, rounds=10, epochs=2)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "sottovoce.privacy.training_account.sizes_of", lambda training, agents: sizes
        )
        return TrainingAccount(training, ledger=Ledger(folder / "ledger.json"), **how)


def entry(folder: Path) -> Any:
    (found,) = Ledger(folder / "ledger.json").entries
    return found


def test_the_agent_with_the_most_records_does_not_speak_for_the_others(tmp_path: Path) -> None:
    kept = account(tmp_path, SIZES)
    begun = entry(tmp_path).epsilon
    for agent in (4, 3, 2, 1, 0):
        kept.heard(report(agent, 10))
        assert entry(tmp_path).epsilon == pytest.approx(begun)
    for agent in range(5):
        kept.heard(report(agent, 20))
    assert kept.end().epsilon == pytest.approx(begun)


def test_nothing_is_said_before_everybodys_records_are_known(tmp_path: Path) -> None:
    kept = account(tmp_path, None)
    for agent in (4, 3, 2, 1):
        kept.heard(report(agent, 10))
        assert entry(tmp_path).epsilon is None
    kept.heard(report(0, 10))
    assert entry(tmp_path).epsilon == pytest.approx(
        account(tmp_path / "b", SIZES).expected().epsilon
    )


def test_restarts_that_are_still_allowed_are_added_to_those_reported(tmp_path: Path) -> None:
    kept = account(tmp_path, SIZES, restarts=2)
    assert entry(tmp_path).rounds == 60
    kept.heard(report(0, 15, 5))
    assert entry(tmp_path).rounds == 20 + 5 + 40
    for agent in range(5):
        kept.heard(report(agent, 20, 5))
    assert kept.end().executed == 25
