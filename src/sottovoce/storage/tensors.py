"""Tensors and facts on disk: safetensors for numbers, JSON for everything else, no pickle."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from sottovoce.errors import ResultError
from sottovoce.storage.files import write_atomic, write_json


def save_pair(
    stem: str | Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], private: bool = False
) -> None:
    """Write `stem.safetensors` and `stem.json`, which holds the other's digest.

    private: the owner alone can read the tensors.
    """
    content = _encode(tensors, {})
    write_atomic(beside(stem, ".safetensors"), content, private)
    digest = hashlib.sha256(content).hexdigest()
    write_json(beside(stem, ".json"), {**facts, "tensors_sha256": digest})


def load_pair(stem: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_pair` wrote; `kind` is what the facts must say under "kind"."""
    path, beside_it = beside(stem, ".json"), beside(stem, ".safetensors")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ResultError(f"{path} cannot be read as a saved {kind}: {error}") from error
    if not isinstance(facts, dict) or facts.get("kind") != kind:
        found = facts.get("kind") if isinstance(facts, dict) else type(facts).__name__
        raise ResultError(f"{path} holds {found!r}, not a saved {kind}")
    tensors, _ = read_tensors(beside_it)
    with beside_it.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != facts.pop("tensors_sha256", None):
        raise ResultError(f"{beside_it} was altered or does not belong to {path}")
    return tensors, facts


def write_tensors(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    facts: Mapping[str, Any] | None = None,
    private: bool = False,
) -> None:
    """Write one safetensors file in one step, with facts in its header.

    private: its owner alone can read it.
    """
    write_atomic(path, _encode(tensors, facts or {}), private)


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of one safetensors file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            facts = json.loads((file.metadata() or {}).get("facts", "{}"))
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise ResultError(f"{path} cannot be read as tensors: {error}") from error
    if not isinstance(facts, dict):
        raise ResultError(f"{path} is not a file of sottovoce: its facts are no JSON object")
    return tensors, facts


def _encode(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> bytes:
    from safetensors.torch import save

    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return save(content, {"facts": json.dumps(facts)})


def beside(stem: str | Path, ending: str) -> Path:
    """The file of this ending that belongs to `stem`, which may be given with an ending of ours."""
    stem = Path(stem)
    name = stem.name.removesuffix(".json").removesuffix(".safetensors")
    return stem.with_name(name + ending)
