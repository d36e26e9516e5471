"""What the simulator's hot loop computes, as fused GPU kernels beside plain torch.

Every function here has a torch version, which is its definition and serves wherever Triton or a
CUDA device is missing. `sottovoce.kernels.device` holds the Triton code and is imported only by the
functions that launch it.
"""

import os
from functools import cache
from importlib.util import find_spec

import torch


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def usable(device: torch.device) -> bool:
    """Whether Triton kernels can run on `device`: they are launched on the current one alone.

    With TRITON_INTERPRET=1 in the environment Triton plays them on a CPU, for tests.
    """
    if device.type == "cpu":
        return interpreted() and _has_triton()
    if device.type != "cuda" or not _has_triton():
        return False
    return device.index is None or device.index == torch.cuda.current_device()


def interpreted() -> bool:
    """Whether Triton plays kernels on a CPU, as its own variable asks."""
    return os.environ.get("TRITON_INTERPRET") == "1"


__all__ = ["interpreted", "usable"]
