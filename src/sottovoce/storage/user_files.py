"""Code that a user keeps in a file of their own, named on a command line as FILE.py:NAME."""

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from sottovoce.errors import SottovoceError

_MARK = ".py:"


def is_in_file(text: str) -> bool:
    """Whether a text has the form FILE.py:NAME."""
    return _MARK in text


def file_and_name(text: str) -> tuple[Path, str]:
    """The file, and all that follows its colon."""
    file, _, rest = text.partition(_MARK)
    return Path(f"{file}.py"), rest


def object_in(file: Path, name: str, error: type[SottovoceError]) -> Any:
    """What `name` is in a user's file, which is run for it; raise `error` if it cannot be had."""
    try:
        module = _module(file)
    except OSError as reason:
        told = reason.strerror or reason
        raise error(f"{file} cannot be read: {told}; accepted: FILE.py:NAME") from reason
    if not hasattr(module, name):
        own = [each for each in vars(module) if not each.startswith("_")]
        raise error(f"{file} has no {name!r}; it has {', '.join(own) or 'no name at all'}")
    return getattr(module, name)


def function_in(text: str, error: type[SottovoceError]) -> Any:
    """The function or class that FILE.py:NAME is."""
    found = object_in(*file_and_name(text), error)
    if not callable(found):
        raise error(f"{text} is {type(found).__name__}; accepted: a function or a class")
    return found


def _module(file: Path) -> ModuleType:
    """The user's file as a module, read anew when it changed; it may import files beside it."""
    content = file.read_bytes()
    # Named for its content: every agent gives it the same name, and a changed file is another.
    name = f"sottovoce_user_{hashlib.sha256(content).hexdigest()[:16]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        # At the end, so that no file of the user's hides an installed module.
        if (folder := str(file.parent.absolute())) not in sys.path:
            sys.path.append(folder)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
