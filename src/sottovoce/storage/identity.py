"""What a stored number depends on, as JSON: options, data, and the code that a user wrote.

Code counts as the bytecode that runs, with everything it refers to: closures, defaults, base
classes, class attributes, and global functions, classes and values. A comment changes nothing; a
constant in a helper does. Libraries count by name and version.
"""

import functools
import hashlib
import json
import sys
import types
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

_PACKAGE = __name__.partition(".")[0]
_INSTALLED = {"site-packages", "dist-packages"}
_WRAPPERS = {staticmethod: "__func__", classmethod: "__func__", property: "fget"} | {
    functools.cached_property: "func",
    type(functools.cache(len)): "__wrapped__",
}
_DEFINED = (types.FunctionType, *_WRAPPERS)
_APART = {"_parameters", "_buffers", "_modules", "training"}
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

    Objects count by the `spec` that they have, else by their class and state; one that shows no
    state (a lock, an open file) counts by its class alone. seen: objects met before, by `id`.
    """
    seen = {} if seen is None else seen
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, Tensor):
        return {"tensor": fingerprint(value)}
    if isinstance(value, types.ModuleType):
        return {"library": value.__name__}
    if isinstance(value, types.CodeType):
        names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
        return [value.co_code.hex(), value.co_flags, identity([value.co_consts, *names])]
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
        named = {canonical(identity(key)): one for key, one in value.items()}
        return {"dict": [[name, identity(named[name], seen)] for name in sorted(named)]}
    if isinstance(value, type):
        return _class(value, seen)
    if isinstance(value, types.FunctionType):
        return _function(value, seen)
    if isinstance(value, types.MethodType | types.BuiltinMethodType):
        code = getattr(value, "__func__", value.__module__)
        return {"method": value.__qualname__, "of": identity([value.__self__, code], seen)}
    if isinstance(value, nn.Module):
        return _module(value, seen)
    if isinstance(spec := getattr(value, "spec", None), dict):
        return {"spec": spec, "type": identity(type(value), seen)}
    return {"object": identity(type(value), seen), "state": identity(_state(value), seen)}


def _library(module: str | None) -> str | None:
    """Name and version of the library that a module belongs to; None for a user's own code."""
    top = (module or "").partition(".")[0]
    if top == _PACKAGE or top in sys.stdlib_module_names:
        return top
    found = sys.modules.get(top)
    installed = _INSTALLED & {*Path(getattr(found, "__file__", None) or "").parts}
    release = getattr(found, "__version__", None)
    return f"{top} {release}" if installed and release else None


def _function(function: types.FunctionType, seen: Seen) -> Any:
    code, around = function.__code__, function.__globals__
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    filled = {n: cell.cell_contents for n, cell in cells.items() if cell != types.CellType()}
    found = {"bound": identity([function.__defaults__, function.__kwdefaults__, filled], seen)}
    if library := _library(function.__module__):
        name = f"{function.__module__}.{function.__qualname__}"
        return found | {"function": name, "library": library}
    names = _names(code)
    used = {name: around[name] for name in names & {*around}}
    for name, one in used.items():
        if isinstance(one, types.ModuleType) and _library(one.__name__) is None:
            used[name] = {inner: vars(one)[inner] for inner in names & {*vars(one)}}
    return found | {"code": identity(code), "globals": identity(used, seen)}


def _names(code: types.CodeType) -> set[str]:
    inner = (_names(one) for one in code.co_consts if isinstance(one, types.CodeType))
    return set(code.co_names).union(*inner)


def _class(kind: type, seen: Seen) -> Any:
    name, library = f"{kind.__module__}.{kind.__qualname__}", _library(kind.__module__)
    if library:
        return {"class": name, "library": library}
    members = {
        name: member
        for name, member in vars(kind).items()
        if name != "_abc_impl" and (not name.startswith("__") or isinstance(member, _DEFINED))
    }
    return {"class": name, "bases": identity(kind.__bases__, seen), "is": identity(members, seen)}


def _module(model: nn.Module, seen: Seen) -> Any:
    """Architecture, attributes, hooks, weights and buffers, whether it trains or evaluates."""
    layers = [
        [name, type(one), {key: v for key, v in vars(one).items() if key not in _APART}]
        for name, one in model.named_modules()
    ]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {
        "module": str(model),
        "layers": identity(layers, seen),
        "state": {name: fingerprint(tensor) for name, tensor in tensors},
        "frozen": [name for name, weight in model.named_parameters() if not weight.requires_grad],
    }


def _state(value: Any) -> Any:
    """What a wrapper wraps; else the parts from which Python would copy the object."""
    if attribute := _WRAPPERS.get(type(value)):
        return getattr(value, attribute)
    try:
        made = value.__reduce_ex__(4)
    except Exception:
        return None
    made = (made,) if isinstance(made, str) else made
    return [list(one) if isinstance(one, Iterator) else one for one in made]
