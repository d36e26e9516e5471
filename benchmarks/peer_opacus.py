"""Opacus' clipped gradients of the paper's CNN, in a process of its own.

Needs PyTorch and Opacus 1.6 on the path, and knows nothing of sottovoce. Answers a line {"mode":
"hooks", "batch": 64, "steps": 20, "clip": 1.0, "precision": "float32"} with the seconds of a step:
forward, backward, clip and add up, without noise and without an update. "hooks" holds a gradient
for each sample (`GradSampleModule`), "ghost" none (ghost clipping). With "compare", a folder of
tensors, it also writes the first step's sum, of the weights and samples that lie there.
"""

import contextlib
import json
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from peer_cnn import DEVICE, paper_cnn, wait
from torch import Tensor, nn

Step = Callable[[Tensor, Tensor], None]


def hooks(model: nn.Module, clip: float, batch: int) -> Step:
    """A gradient for each sample, then clip and add."""
    held = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(held.parameters(), lr=0.1),
        noise_multiplier=0.0,
        max_grad_norm=clip,
        expected_batch_size=batch,
    )

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(held(x), y).backward()
        optimizer.pre_step()

    return step


def ghost(model: nn.Module, clip: float, batch: int) -> Step:
    """Norms first, then a second backward pass of the weighted loss."""
    held = GradSampleModuleFastGradientClipping(model, max_grad_norm=clip, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(held.parameters(), lr=0.1),
        noise_multiplier=0.0,
        max_grad_norm=clip,
        expected_batch_size=batch,
    )
    loss = DPLossFastGradientClipping(held, optimizer, nn.CrossEntropyLoss(), "mean")

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(held(x), y).backward()
        optimizer.pre_step()

    return step


@cache
def prepared(mode: str, batch: int, clip: float) -> tuple[nn.Module, Step, Tensor, Tensor]:
    torch.manual_seed(0)
    model = paper_cnn().to(DEVICE)
    step = {"hooks": hooks, "ghost": ghost}[mode](model, clip, batch)
    x = torch.randn(batch, 1, 28, 28, device=DEVICE)
    return model, step, x, torch.randint(10, (batch,), device=DEVICE)


def respond(
    mode: str, batch: int, steps: int, clip: float, precision: str, compare: str = ""
) -> dict[str, Any]:
    model, step, x, y = prepared(mode, batch, clip)
    if compare:
        given = torch.load(compare, weights_only=True)
        nn.utils.vector_to_parameters(given["vector"].to(DEVICE), model.parameters())
        step(given["inputs"].to(DEVICE), given["targets"].to(DEVICE))
        found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        expected = given["sum"].to(DEVICE) / batch
        return {"difference": float((found - expected).norm() / expected.norm())}
    reduced = torch.autocast(DEVICE.type, torch.bfloat16)
    with reduced if precision == "bfloat16" else contextlib.nullcontext():
        step(x, y)
        wait()
        begun = time.perf_counter()
        for _ in range(steps):
            step(x, y)
        wait()
    return {"seconds": (time.perf_counter() - begun) / steps}


def main() -> None:
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        try:
            answer = respond(**json.loads(line))
        except (RuntimeError, ValueError, TypeError) as error:
            answer = {"refused": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
