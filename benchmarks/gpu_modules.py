"""Gradients of any module on a GPU: vmap beside what torch.compile and CUDA graphs make of it.

A transformer and a residual network with group norm, 64 replicas with 64 samples each, by turns in
one process; then their clipped sums, in as many chunks as memory asks for. Writes JSON:

    python -m benchmarks.gpu_modules
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from benchmarks.common import by_turns, machine, ratio, save, show
from benchmarks.gpu import CUDA, seconds
from benchmarks.residual import ResidualNetwork
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sottovoce.mechanisms import Clip
from sottovoce.problems.data.word_models import SmallTransformer, initialise_words
from sottovoce.problems.gradients import methods
from sottovoce.problems.gradients.clipped import ClippedGradients
from sottovoce.problems.gradients.methods import Compute, Method, Precision, ReplicaGradients

REPLICAS, BATCH, WORDS, CONTEXT, CLASSES = 64, 64, 1024, 16, 10
METHODS: tuple[Method, ...] = ("vmap", "vmap+graph", "compiled", "compiled+graph")
LEFT = 4 << 30
"""Bytes: a little memory."""
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")


def transformer() -> tuple[nn.Module, Tensor, Tensor]:
    """478,176 parameters; 16 words and the next one."""
    model = SmallTransformer(WORDS, CONTEXT).to(CUDA)
    initialise_words(model, 0)
    words = torch.randint(WORDS, (REPLICAS, BATCH, CONTEXT + 1), device=CUDA)
    return model, words[..., :-1].contiguous(), words[..., -1].contiguous()


def residual() -> tuple[nn.Module, Tensor, Tensor]:
    """308,266 parameters; images of 32 x 32 in three colours."""
    images = torch.randn(REPLICAS, BATCH, 3, 32, 32, device=CUDA)
    return (
        ResidualNetwork().to(CUDA),
        images,
        torch.randint(CLASSES, (REPLICAS, BATCH), device=CUDA),
    )


def near(model: nn.Module) -> Tensor:
    """Rows of parameters, each near the module's own: (REPLICAS, d)."""
    own = nn.utils.parameters_to_vector(model.parameters()).detach()
    return own + 0.01 * torch.randn(REPLICAS, len(own), device=CUDA)


def compared(name: str, made: tuple[nn.Module, Tensor, Tensor], repetitions: int) -> dict[str, Any]:
    """Every method in every precision beside vmap in float32."""
    model, inputs, targets = made
    vectors = near(model)
    works, first, results = dict[str, Callable[[], float]](), dict[str, float](), {}
    for precision in PRECISIONS:
        for method in METHODS:
            used = ReplicaGradients(
                *(model, cross_entropy, Compute(method, precision)), device=CUDA, at_once=REPLICAS
            )
            out, label = torch.full_like(vectors, torch.nan), f"{method}, {precision}"
            work = partial(used, vectors, inputs, targets, out)
            begun = time.perf_counter()
            seconds(work)
            first[label] = time.perf_counter() - begun
            if used.method == method:
                works[label], results[label] = partial(seconds, work), out
    took = by_turns(works, repetitions)
    plain = "vmap, float32"
    found = {
        label: {
            "gradients_a_second": REPLICAS / statistics.median(taken),
            "times_vmap": vars(ratio(took[plain], taken)),
            "first_call_s": first[label],
            "difference": float((results[label] - results[plain]).norm() / results[plain].norm()),
        }
        for label, taken in took.items()
    }
    show(
        f"Gradients of the {name}: {vectors.shape[1]:,} parameters, {REPLICAS} replicas, "
        f"batch {BATCH}",
        ("", "a second", "times vmap in float32", "first call, s", "difference"),
        [
            (
                label,
                f"{one['gradients_a_second']:,.0f}",
                str(ratio(took[plain], took[label])),
                f"{one['first_call_s']:.1f}",
                f"{one['difference']:.1e}",
            )
            for label, one in found.items()
        ],
    )
    return {"parameters": vectors.shape[1], "replicas": REPLICAS, "batch": BATCH, **found}


def chosen(made: tuple[nn.Module, Tensor, Tensor], precision: Precision) -> dict[str, Any]:
    """What the measurement of `auto` chooses, and how long it takes with compiled code at hand."""
    model, inputs, targets = made
    used = ReplicaGradients(model, cross_entropy, Compute("auto", precision), device=CUDA)
    begun = time.perf_counter()
    used.settle(inputs[0], targets[0], REPLICAS)
    assert used.choice is not None
    return {**vars(used.choice), "measuring_s": time.perf_counter() - begun}


def clipped(name: str, made: tuple[nn.Module, Tensor, Tensor]) -> dict[str, Any]:
    """Clipped sums by `torch.func` with all of the free memory, and with a little of it."""
    model, inputs, targets = made
    vectors = near(model)
    present = torch.ones(REPLICAS, BATCH, dtype=torch.bool, device=CUDA)
    found, results = dict[str, Any](), list[Tensor]()
    plain = ReplicaGradients(model, cross_entropy, Compute("vmap"), device=CUDA, at_once=REPLICAS)
    out = torch.empty_like(vectors)
    unclipped = [seconds(partial(plain, vectors, inputs, targets, out)) for _ in range(4)][1:]
    sums = ClippedGradients(model, cross_entropy, CUDA)
    work = partial(sums, vectors, inputs, targets, present, Clip(1.0), out)
    for left in (None, LEFT):
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        taken_up = torch.empty(free - (left or free), dtype=torch.uint8, device=CUDA)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        taken = [seconds(work) for _ in range(3)][1:]
        results.append(out.clone())
        found["all of the memory" if left is None else "a little of it"] = {
            "free_gib": (left or free) / 2**30,
            "peak_gib": (torch.cuda.max_memory_allocated() - before) / 2**30,
            "of_unclipped_speed": statistics.median(unclipped) / statistics.median(taken),
        }
        del taken_up
    found["difference"] = float((results[0] - results[1]).norm() / results[0].norm())
    show(
        f"Clipped sums of the {name} by torch.func",
        ("", "free, GiB", "peak, GiB", "of vmap's unclipped speed"),
        [
            (label, *(f"{value:.2f}" for value in one.values()))
            for label, one in found.items()
            if isinstance(one, dict)
        ],
    )
    print(f"largest difference between the two: {found['difference']:.1e} of the sum")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="sottovoce-results/bench-gpu-modules.json")
    parser.add_argument("--only", choices=("transformer", "residual"))
    parser.add_argument("--repetitions", type=int, default=9)
    options = parser.parse_args()
    methods.cache_folder = lambda: None  # type: ignore[attr-defined]
    found: dict[str, Any] = {"machine": machine()}
    for name, make in (("transformer", transformer), ("residual", residual)):
        if options.only in (None, name):
            made = make()
            found[name] = compared(name, made, options.repetitions)
            torch.cuda.empty_cache()
            found[f"{name}, clipped"] = clipped(name, made)
            found[f"{name}, chosen"] = {one: chosen(made, one) for one in PRECISIONS}
            torch.cuda.empty_cache()
    save(options.out, found)


if __name__ == "__main__":
    main()
