"""TensorBoard's own reader finds the curves of a training, and nothing else."""

import sys
from pathlib import Path

import pytest

from sottovoce.distributed.boards import TensorBoard
from sottovoce.errors import DistributedError


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_curves_are_read_back_by_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with TensorBoard(tmp_path) as board:
        board({"epoch": 1, "agent": 0, "accuracy": 0.5, "note": "text"})
        board({"epoch": 2, "agent": 0, "accuracy": 0.75})
        board({"epoch": 1, "agent": 1, "accuracy": 0.25})
    found = EventAccumulator(str(tmp_path)).Reload()
    assert found.Tags()["scalars"] == ["accuracy/agent 0", "accuracy/agent 1"]
    curve = [(one.step, one.value) for one in found.Scalars("accuracy/agent 0")]
    assert curve == [(1, 0.5), (2, 0.75)]


def test_a_missing_tensorboard_is_named_with_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(DistributedError, match=r"pip install 'sottovoce\[tensorboard\]'"):
        TensorBoard(tmp_path)
