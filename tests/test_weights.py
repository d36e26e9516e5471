"""Trained weights come back as they were, or are refused by name."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from sottovoce.distributed import load_weights, save_weights
from sottovoce.errors import ResultError
from sottovoce.storage.tensors import write_tensors


class Tied(nn.Module):
    """Two names for one weight, a buffer, and views of one vector as the optimizer makes them."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.into, self.back = nn.Linear(width, width), nn.Linear(width, width)
        self.back.weight = self.into.weight
        self.register_buffer("seen", torch.tensor(7))
        flat = torch.randn(2 * width)
        self.into.bias.data, self.back.bias.data = flat[:width], flat[width:]


def test_weights_and_buffers_come_back_bit_for_bit(tmp_path: Path) -> None:
    model, file = Tied(), tmp_path / "trained" / "agent-0.safetensors"
    save_weights(model, file, {"agent": 0})
    other = Tied()
    assert load_weights(other, file) is other
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    assert other.back.weight is other.into.weight
    third = Tied()
    third.load_state_dict(load_file(file))
    assert torch.equal(third.into.weight, model.into.weight)


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "agent-0.safetensors"
    save_weights(Tied(3), file)
    with pytest.raises(ResultError, match=r"into.weight is \[3, 3\] in the file and \[4, 4\] in"):
        load_weights(Tied(4), file)
    with pytest.raises(ResultError, match=r"is absent in the file|absent in the model"):
        load_weights(nn.Linear(3, 3), file)


def test_an_altered_file_and_another_kind_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "agent-0.safetensors"
    save_weights(Tied(), file)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ResultError, match="was altered"):
        load_weights(Tied(), file)
    write_tensors(file, {"weight": torch.ones(2)})
    with pytest.raises(ResultError, match="altered"):
        load_weights(Tied(), file)
    with pytest.raises(ResultError, match="cannot be read"):
        load_weights(Tied(), tmp_path / "absent.safetensors")
