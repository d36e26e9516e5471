"""CUDA C++ kernels played on a CPU: `cuda/emulated.hpp` in place of a GPU's own instructions."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sottovoce.kernels import compiled, hopper

COMPILER = shutil.which("g++")
_EMULATED = Path(__file__).parent / "cuda" / "emulated.hpp"
_START = """
extern "C" void start(const u64* given, u32 blocks, u32 threads, bool last_first) {
  emulation::call(%s, given, blocks, threads, last_first);
}
"""


class Emulated:
    """A kernel as a library of the CPU's, called almost like `kernels.compiled.Compiled`."""

    def __init__(self, folder: Path, name: str, constants: dict[str, int | str]) -> None:
        path = folder / "-".join([name, *map(str, constants.values())])
        source, library = path.with_suffix(".cpp"), path.with_suffix(".so")
        if not library.exists():
            program = compiled.source(name, constants)
            source.write_text(f'#include "{_EMULATED}"\n{program}{_START % name}')
            flags = [
                "-std=c++17",
                "-O1",
                "-w",
                "-shared",
                "-fPIC",
                "-fno-strict-aliasing",
                "-U_FORTIFY_SOURCE",
            ]
            assert COMPILER
            subprocess.run([COMPILER, *flags, str(source), "-o", str(library)], check=True)
        self._start = ctypes.CDLL(str(library)).start

    def __call__(self, last_first: bool, blocks: int, threads: int, *arguments: Any) -> None:
        given = [
            one.data_ptr() if isinstance(one, Tensor) else 0 if one is None else one
            for one in arguments
        ]
        self._start(
            (ctypes.c_uint64 * len(given))(*given), blocks, threads, ctypes.c_bool(last_first)
        )


def play_on_cpu(monkeypatch: Any, folder: Path, last_first: bool) -> list[str]:
    """Let `sottovoce.kernels.hopper` serve CPU tensors; return the names of kernels as they run.

    last_first: which group of threads goes on before the others.
    """
    played = list[str]()

    def kernel(name: str, shared: int, device: int, **constants: int | str) -> Any:
        assert 0 < shared <= 227 * 1024
        emulated = Emulated(folder, name, constants)

        def run(*arguments: Any) -> None:
            played.append(name)
            emulated(last_first, *arguments)

        return run

    forget_kernels()
    monkeypatch.setattr(compiled, "kernel", kernel)
    monkeypatch.setattr(compiled, "available", lambda device: device == torch.device("cpu"))
    return played


def forget_kernels() -> None:
    """Let kernels be made anew: those played on a CPU serve no GPU."""
    hopper._convolution.cache_clear()
    hopper._weights.cache_clear()
