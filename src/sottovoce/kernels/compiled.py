"""CUDA C++ kernels, compiled by NVRTC for the GPU at hand when they are first used.

The sources lie in `sottovoce/kernels/cuda`. NVRTC comes with torch; no compiler need be installed.
"""

import ctypes
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_ARCHITECTURE = (9, 0)
_SHARED_BYTES = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"""


def available(device: torch.device) -> bool:
    """Whether the kernels can run there: they are launched on the current device alone."""
    if device.type != "cuda" or device.index not in (None, torch.cuda.current_device()):
        return False
    return _suits(device)


@cache
def _suits(device: torch.device) -> bool:
    """Whether the device is of the one generation whose instructions the kernels use."""
    if torch.cuda.get_device_capability(device) != _ARCHITECTURE:
        return False
    try:
        _compiler(), _driver()
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class Compiled:
    """A kernel on the GPU, and the bytes of shared memory that each of its blocks gets."""

    function: ctypes.c_void_p
    shared: int

    def __call__(self, blocks: int, threads: int, *arguments: Any) -> None:
        """Start it on torch's current stream; tensors, None and whole numbers."""
        held = [_argument(one) for one in arguments]
        pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(one) for one in held))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        grid, block = (blocks, 1, 1), (threads, 1, 1)
        launch = _driver().cuLaunchKernel
        _call(launch, self.function, *grid, *block, self.shared, stream, pointers, None)


@cache
def kernel(name: str, shared: int, device: int, **constants: int | str) -> Compiled:
    """The kernel of the source `name`, with these constants, on the CUDA device of this number."""
    cubin = _compile(_read("hardware.cuh") + source(name, constants), name)
    driver, module, function = _driver(), ctypes.c_void_p(), ctypes.c_void_p()
    torch.cuda.current_stream()  # Makes torch's context the current one.
    _call(driver.cuModuleLoadData, ctypes.byref(module), cubin)
    _call(driver.cuModuleGetFunction, ctypes.byref(function), module, name.encode())
    _call(driver.cuFuncSetAttribute, function, _SHARED_BYTES, shared)
    return Compiled(function, shared)


def source(name: str, constants: dict[str, int | str]) -> str:
    """A kernel's program, all but what `hardware.cuh` holds."""
    defined = "".join(f"#define {key} {value}\n" for key, value in constants.items())
    return defined + _read("planes.cuh") + _read(f"{name}.cu")


def _read(name: str) -> str:
    return (files("sottovoce.kernels") / "cuda" / name).read_text()


def _compile(source: str, name: str) -> bytes:
    compiler, program, size = _compiler(), ctypes.c_void_p(), ctypes.c_size_t()
    given = (source.encode(), f"{name}.cu".encode(), 0, None, None)
    _call(compiler.nvrtcCreateProgram, ctypes.byref(program), *given)
    major, minor = _ARCHITECTURE
    options = (ctypes.c_char_p * 2)(
        b"--std=c++17", f"--gpu-architecture=sm_{major}{minor}a".encode()
    )
    if compiler.nvrtcCompileProgram(program, len(options), options):
        _call(compiler.nvrtcGetProgramLogSize, program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        _call(compiler.nvrtcGetProgramLog, program, log)
        raise RuntimeError(f"the kernel {name!r} could not be compiled:\n{log.value.decode()}")
    _call(compiler.nvrtcGetCUBINSize, program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    _call(compiler.nvrtcGetCUBIN, program, cubin)
    _call(compiler.nvrtcDestroyProgram, ctypes.byref(program))
    return cubin.raw


def _argument(value: Any) -> Any:
    if value is None or isinstance(value, Tensor):
        return ctypes.c_void_p(None if value is None else value.data_ptr())
    return ctypes.c_uint64(value)


@cache
def _compiler() -> ctypes.CDLL:
    major = (torch.version.cuda or "").split(".")[0]
    name = f"libnvrtc.so.{major}"
    # Where torch came as a wheel, the library lies in a package of NVIDIA's.
    found = find_spec("nvidia")
    for folder in found.submodule_search_locations or () if found else ():
        for path in Path(folder).glob(f"*/lib/{name}"):
            return ctypes.CDLL(str(path))
    return ctypes.CDLL(name)


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _call(function: Any, *arguments: Any) -> None:
    """Call a function of CUDA's that answers with 0, or raise with its name and answer."""
    code = function(*arguments)
    if code:
        raise RuntimeError(
            f"{function.__name__} answered with CUDA's error {code}; bfloat16 convolutions cannot "
            "run on this GPU as it is set up; use precision 'float32'"
        )
