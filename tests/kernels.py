"""Where tests of kernels run: on a GPU, or on a CPU through Triton's interpreter.

TRITON_INTERPRET=1 in the environment asks for the interpreter; Triton must be installed.
"""

import pytest
import torch
from torch import Tensor

from sottovoce.kernels import interpreted, usable

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
DEVICE = CUDA if torch.cuda.is_available() and usable(CUDA) else CPU

needs_triton = pytest.mark.skipif(
    not usable(DEVICE), reason="needs Triton with a CUDA device, or with TRITON_INTERPRET=1"
)
in_plain_torch = pytest.mark.skipif(
    interpreted() and usable(CPU),
    reason="of plain torch, on a CPU; the interpreter would play the kernels in its place",
)
on_gpu = pytest.mark.skipif(DEVICE == CPU, reason="needs Triton and a CUDA device")


def whole_numbers(*shape: int, seed: int = 0, most: int = 3) -> Tensor:
    """Small whole numbers: their products and sums are exact in every precision used."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, shape, generator=generator).float()


if interpreted() and usable(CPU):
    from triton.runtime import interpreter

    _patch = interpreter._patch_lang_tensor

    def _patch_with_bounds(tensor, scope):
        """NumPy 2.4 takes no array of one number as the bound of a loop, which Triton 3.6 gives."""
        _patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = _patch_with_bounds
