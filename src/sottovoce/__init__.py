"""Private decentralized training with PyTorch: agents learn one model and talk to neighbours only.

For example, the paper's algorithm on the paper's first problem:

    from sottovoce import PDSGD, Estimation, ring, simulate

    result = simulate(Estimation.random(agents=5), PDSGD(), ring(5), steps=1000, runs=100)
    print(result.band("distance").mean[-1])

A name is imported from its room when it is first used, so that `import sottovoce` is instant.
"""

import re
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

try:
    __version__ = version("sottovoce")
except PackageNotFoundError:
    __version__ = "0+uninstalled"

_STUB = Path(__file__).with_suffix(".pyi").read_text("utf-8")
_HOME = {name: room for room, name in re.findall(r"^from (\S+) import (\w+)", _STUB, re.MULTILINE)}
"""The module of each public name, as the stub beside this file imports it."""

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
