"""What a stored number depends on, as JSON: options, data, and the code that a user wrote.

Code counts as the bytecode that runs, with everything it refers to: closures, defaults, base
classes, class attributes, and global functions, classes and values. A comment changes nothing; a
constant in a helper does. Libraries count by name and version.
"""

import dis
import functools
import hashlib
import json
import sys
import types
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_PACKAGE = __name__.partition(".")[0]
_INSTALLED = {"site-packages", "dist-packages"}
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_READS = ("LOAD_GLOBAL", "LOAD_NAME")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_WRAPPERS: dict[type, str] = {
    staticmethod: "__func__",
    classmethod: "__func__",
    property: "fget",
    functools.cached_property: "func",
    type(functools.cache(len)): "__wrapped__",
}

_DEFINED = (types.FunctionType, *_WRAPPERS)
Seen = dict[int, tuple[int, Any]]


@functools.cache
def package_version() -> str:
    """The version of sottovoce, which is part of every key of a store."""
    try:
        return version(_PACKAGE)
    except PackageNotFoundError:
        return "0+uninstalled"


def digest(spec: Any) -> str:
    """32 hexadecimal digits of a spec's canonical JSON."""
    return hashlib.sha256(canonical(spec).encode()).hexdigest()[:32]


def canonical(spec: Any) -> str:
    """The one JSON text of a spec."""
    return json.dumps(spec, sort_keys=True, separators=(",", ":"))


def fingerprint(*tensors: Tensor) -> str:
    """A digest of tensors' shapes, types and numbers, on whatever device they are."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(f"{tuple(tensor.shape)} {tensor.dtype};".encode())
        plain = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        found.update(memoryview(plain))  # type: ignore[arg-type]
    return found.hexdigest()[:32]


def code_of(thing: Any) -> str:
    """Tell one function, class or object from another by its code and what that refers to.

    A function or class of the package counts by its name, since the version is in every key.
    """
    return digest(identity(thing))


def identity(value: Any, seen: Seen | None = None) -> Any:
    """JSON that differs wherever `value` could give other numbers.

    Objects count by their class and state, or by the `spec` that they have; one that shows no state
    (a lock, an open file) counts by its class alone. seen: objects met before, by `id`.
    """
    seen = {} if seen is None else seen
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return {"tensor": fingerprint(value)}
    if isinstance(value, np.ndarray | np.generic):
        numbers = value.tolist() if value.dtype.hasobject else value.tobytes()
        return {"array": [str(value.dtype), list(value.shape), identity(numbers, seen)]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, types.ModuleType):
        return {"library": value.__name__}
    if isinstance(value, types.CodeType):
        texts = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
        return [value.co_code.hex(), value.co_flags, identity([value.co_consts, *texts])]
    if isinstance(value, tuple):
        return [identity(one, seen) for one in value]
    if isinstance(value, set | frozenset):
        return {"set": sorted((identity(one, seen) for one in value), key=canonical)}
    if id(value) in seen:
        return {"again": seen[id(value)][0]}
    seen[id(value)] = len(seen), value  # The object is held: its id stays its own.
    if isinstance(value, list):
        return [identity(one, seen) for one in value]
    if isinstance(value, dict | types.MappingProxyType):
        pairs = sorted(
            ((canonical(identity(k)), one) for k, one in value.items()), key=itemgetter(0)
        )
        return {"dict": [[key, identity(one, seen)] for key, one in pairs]}
    if isinstance(value, type):
        return _class(value, seen)
    if isinstance(value, types.FunctionType):
        return _function(value, seen)
    if isinstance(value, nn.Module):
        return _module(value, seen)
    if isinstance(value, types.MethodType | types.BuiltinMethodType):
        code = getattr(value, "__func__", value.__module__)
        return {"method": value.__qualname__, "of": identity([value.__self__, code], seen)}
    if isinstance(spec := getattr(value, "spec", None), dict):
        return {"spec": spec, "type": identity(type(value), seen)}
    return _object(value, seen)


def _library(module: str | None) -> str | None:
    """Name and version of the library that a module belongs to; None for a user's own code."""
    top = (module or "").partition(".")[0]
    if top == _PACKAGE or top in sys.stdlib_module_names:
        return top
    found = sys.modules.get(top)
    installed = _INSTALLED & set(Path(getattr(found, "__file__", None) or "").parts)
    release = getattr(found, "__version__", None)
    return f"{top} {release}" if installed and release else None


def _function(function: types.FunctionType, seen: Seen) -> Any:
    named = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    found = {
        "defaults": identity([function.__defaults__, function.__kwdefaults__], seen),
        "closure": {name: identity(_content(cell), seen) for name, cell in named.items()},
    }
    if library := _library(function.__module__):
        return found | {
            "library": library,
            "name": f"{function.__module__}.{function.__qualname__}",
        }
    names, attributes = _names(function.__code__)
    around = {name: function.__globals__[name] for name in names & {*function.__globals__}}
    for name, module in list(around.items()):
        if isinstance(module, types.ModuleType) and _library(module.__name__) is None:
            around[name] = {one: vars(module)[one] for one in attributes & {*vars(module)}}
    return found | {"code": identity(function.__code__), "globals": identity(around, seen)}


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _names(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Global names that code reads, that of inner functions included, and all names in it."""
    read = {step.argval for step in dis.get_instructions(code) if step.opname in _READS}
    inner = [_names(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    return read.union(*(one[0] for one in inner)), {*code.co_names}.union(*(o[1] for o in inner))


def _class(kind: type, seen: Seen) -> Any:
    name = f"{kind.__module__}.{kind.__qualname__}"
    if library := _library(kind.__module__):
        return {"library": library, "name": name}
    members = {
        name: member
        for name, member in sorted(vars(kind).items())
        if name != "_abc_impl" and (not name.startswith("__") or isinstance(member, _DEFINED))
    }
    return {"class": name, "bases": identity(kind.__bases__, seen), "is": identity(members, seen)}


def _module(model: nn.Module, seen: Seen) -> Any:
    """Architecture, plain attributes, hooks, weights and buffers; whether it trains is no part."""
    layers = [
        [
            name,
            identity(type(layer), seen),
            identity({k: v for k, v in vars(layer).items() if k not in _OF_EVERY_MODULE}, seen),
            identity([list(getattr(layer, hooks).values()) for hooks in _HOOKS], seen),
        ]
        for name, layer in model.named_modules()
    ]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {
        "module": str(model),
        "layers": layers,
        "state": {name: fingerprint(tensor) for name, tensor in tensors},
        "frozen": [name for name, weight in model.named_parameters() if not weight.requires_grad],
    }


def _object(value: Any, seen: Seen) -> Any:
    """The class and the state by which Python would copy the object."""
    if attribute := _WRAPPERS.get(type(value)):
        return {"wrapped": identity(getattr(value, attribute), seen)}
    try:
        made = value.__reduce_ex__(4)
    except Exception:
        made = ()
    parts = [made] if isinstance(made, str) else list(made)
    parts = [list(one) if isinstance(one, Iterator) else one for one in parts]
    return {"object": identity(type(value), seen), "state": identity(parts, seen)}
