"""Tensors and facts on disk: safetensors for numbers, JSON for everything else, no pickle."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from sottovoce.errors import ResultError
from sottovoce.files import write_atomic, write_json


def save_pair(stem: str | Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write `stem.safetensors` and `stem.json`."""
    write_tensors(_beside(stem, ".safetensors"), tensors)
    write_json(_beside(stem, ".json"), facts)


def load_pair(stem: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_pair` wrote; `kind` is what the facts must say under "kind"."""
    path = _beside(stem, ".json")
    try:
        facts = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ResultError(f"{path} cannot be read as a saved {kind}: {error}") from error
    if not isinstance(facts, dict) or facts.get("kind") != kind:
        found = facts.get("kind") if isinstance(facts, dict) else type(facts).__name__
        raise ResultError(f"{path} holds {found!r}, not a saved {kind}")
    tensors, _ = read_tensors(_beside(stem, ".safetensors"))
    return tensors, facts


def write_tensors(
    path: str | Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any] | None = None
) -> None:
    """Write one safetensors file in one step, with facts in its header."""
    from safetensors.torch import save

    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomic(path, save(content, {"facts": json.dumps(facts or {})}))


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of one safetensors file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, json.loads((file.metadata() or {}).get("facts", "{}"))
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise ResultError(f"{path} cannot be read as tensors: {error}") from error


def _beside(stem: str | Path, ending: str) -> Path:
    stem = Path(stem)
    name = stem.name.removesuffix(".json").removesuffix(".safetensors")
    return stem.with_name(name + ending)
