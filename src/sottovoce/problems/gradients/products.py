"""Products of matrices in full float32, where fewer bits would let samples pass their bound."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

_BACKENDS = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
_Setting = str | tuple[str, ...] | None
"""One word for all backends, one for each, or None where there is nothing to set."""


@contextmanager
def full_products() -> Iterator[None]:
    """Have torch multiply float32 matrices in float32, whatever else the process has asked for.

    The setting is the whole process's: threads that come meanwhile share one change of it, and what
    was set before returns when the last of them leaves.
    """
    _SHARED.enter()
    try:
        yield
    finally:
        _SHARED.leave()


class _Shared:
    """How many threads multiply in float32, and what was set before the first came."""

    def __init__(self) -> None:
        self._lock, self._inside = Lock(), 0
        self._before: _Setting = None

    def enter(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = _pinned()
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                _set(self._before)


_SHARED = _Shared()


def _pinned() -> _Setting:
    """Set float32 products and return what was set."""
    each = tuple(one.fp32_precision for one in _BACKENDS)
    if all(one in ("none", "ieee") for one in each):
        return None
    try:
        before: _Setting = torch.get_float32_matmul_precision()
    except RuntimeError:  # The backends were set one by one, of which one word cannot tell.
        before = each
    _set("highest" if isinstance(before, str) else ("ieee",) * len(each))
    return before


def _set(precision: _Setting) -> None:
    if isinstance(precision, str):
        torch.set_float32_matmul_precision(precision)
        return
    for one, own in zip(_BACKENDS, precision or (), strict=False):
        one.fp32_precision = own
