"""Gradients of any module as one compiled function, and as one graph of a GPU's launches.

`torch.compile` fuses what `vmap` computes operation by operation. A CUDA graph launches all
kernels of a computation at once, which saves the time between them where they are short. Both are
made for fixed shapes.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ByName = Callable[[dict[str, Tensor], Tensor, Tensor], dict[str, Tensor]]
"""Parameters by name, inputs and targets -> gradients by name; a row for each replica."""

InPlace = Callable[[Tensor, Tensor, Tensor, Tensor], None]
"""`compute(vectors, inputs, targets, out)`: rows of parameters -> rows of gradients."""


def compiled(compute: ByName) -> ByName:
    """The same as one function for every shape that it meets; making it takes many seconds."""

    def own(parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return compute(parameters, inputs, targets)

    # torch counts what it has compiled of a code object, and stops at a limit: each has its own.
    own.__code__ = own.__code__.replace()
    made: ByName = torch.compile(own, dynamic=False, fullgraph=True)

    def quiet(parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        with warnings.catch_warnings():  # The compiler advises other precisions.
            warnings.simplefilter("ignore")
            return made(parameters, inputs, targets)

    return quiet


def cause(error: Exception) -> str:
    """A compiler's error in a few words: its class and the first lines that say something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:200]}"


class Captured:
    """A computation on a GPU that is recorded once for its shapes, and then replayed.

    The recorded kernels read and write memory of their own: arguments and results are copied.
    """

    def __init__(self, compute: InPlace) -> None:
        self._compute = compute
        self._graphs: dict[Any, tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]] = {}

    def __call__(self, vectors: Tensor, inputs: Tensor, targets: Tensor, out: Tensor) -> None:
        """As `compute` does it."""
        given = (vectors, inputs, targets)
        key = tuple((one.shape, one.dtype) for one in given)
        if key not in self._graphs:
            self._graphs[key] = self._recorded(*given, out)
        graph, (*places, found) = self._graphs[key]
        for place, one in zip(places, given, strict=True):
            place.copy_(one)
        graph.replay()
        out.copy_(found)

    def _recorded(self, *given: Tensor) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]:
        places = tuple(one.clone() for one in given)
        # What is made on first use (handles, compiled functions) must be there beforehand.
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._compute(*places)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._compute(*places)
        return graph, places
