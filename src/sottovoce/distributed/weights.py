"""Trained weights on disk: one safetensors file for each agent, under the model's own names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from sottovoce.distributed.files import checked_tensors, keep_tensors
from sottovoce.errors import ResultError

Model = TypeVar("Model", bound=nn.Module)


def save_weights(
    model: nn.Module, file: str | Path, facts: Mapping[str, Any] | None = None
) -> None:
    """Write the weights and buffers of a model; facts: numbers and texts to keep beside them."""
    # Clones: tied weights share their memory, which the format does not allow.
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    keep_tensors(Path(file), tensors, {**(facts or {}), "kind": "weights"}, "the weights")


def load_weights(model: Model, file: str | Path) -> Model:
    """Give a model the weights that `sottovoce train --out` saved, and return it.

    The file is plain safetensors, which `safetensors.torch.load_file(file)` reads, too; this call
    also refuses a file that was altered, and names what does not fit.
    """
    tensors, facts = checked_tensors(Path(file))
    if facts.get("kind") != "weights":
        raise ResultError(f"{file} holds {facts.get('kind')!r}; accepted: what save_weights wrote")
    wanted = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: list(tensor.shape) for name, tensor in tensors.items()}
    wrong = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    if wrong:
        name = wrong[0]
        raise ResultError(
            f"{file} does not fit the model: {name} is {found.get(name, 'absent')} in the file and "
            f"{wanted.get(name, 'absent')} in the model ({len(wrong)} such in all); build the "
            "model as it was trained"
        )
    model.load_state_dict(tensors)
    return model
