"""An agent's files: whole or refused, durable once written, readable by their owner alone."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sottovoce.errors import DistributedError, ResultError
from sottovoce.storage.files import make_folder
from sottovoce.storage.identity import canonical, fingerprint
from sottovoce.storage.tensors import read_tensors, write_tensors

_DIGEST = "digest"


def keep_tensors(
    path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], what: str
) -> None:
    """Write a file with a digest of its tensors and facts, in one step and synced to disk.

    what: what an error names, such as "the checkpoint of round 5".
    """
    sealed = {**facts, _DIGEST: _digest(tensors, facts)}
    with saying(what, path.parent):
        make_folder(path.parent, 0o700)
        write_tensors(path, tensors, sealed, private=True)


def checked_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a file that `keep_tensors` wrote; `ResultError` if a bit changed."""
    tensors, facts = read_tensors(path)
    if facts.pop(_DIGEST, None) != _digest(tensors, facts):
        raise ResultError(f"{path} was altered since it was written: its digest does not fit")
    return tensors, facts


class saying:  # noqa: N801
    """Turn a failed write into an error that says what was not written, why, and what to do."""

    def __init__(self, what: str, folder: Path) -> None:
        self._what, self._folder = what, folder

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise DistributedError(
                f"{self._what} could not be written to {self._folder}: {error.strerror or error}. "
                "What was written earlier is as it was; make room or give a folder that can be "
                "written, then resume"
            ) from error


def require_numbers(name: str, tensor: Tensor, dimension: int | None, dtype: str | None) -> None:
    """Raise `ResultError` unless a tensor has the shape and type expected and is finite."""
    shape, kind = list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if dimension is not None and shape != [dimension]:
        raise ResultError(f"{name} has shape {shape}; accepted: [{dimension}]")
    if dtype is not None and kind != dtype:
        raise ResultError(f"{name} has numbers of type {kind}; accepted: {dtype}")
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise ResultError(f"{name} holds NaN or infinite numbers")


def _digest(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    found = hashlib.sha256(canonical(facts).encode())
    for name in sorted(tensors):
        found.update(f"{name}={fingerprint(tensors[name])};".encode())
    return found.hexdigest()
