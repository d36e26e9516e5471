"""The GPU's update of many agents, and noise drawn inside kernels, beside a bare copy and torch."""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from benchmarks.common import by_turns, ratio, show
from torch import Tensor

from sottovoce import parse_algorithm, random_regular, ring
from sottovoce.kernels import philox
from sottovoce.kernels.mixing import Links, mix_sparse
from sottovoce.mechanisms import Clock, Flow
from sottovoce.mechanisms.reference import take_step
from sottovoce.randomness import DeviceStreams
from sottovoce.simulation.rounds import Kernel
from sottovoce.stepsizes import Deterministic, Power, Stepsize

CUDA = torch.device("cuda")
Watch = Callable[[Callable[[], object]], float]


def many_agents(agents: int, dimension: int, repetitions: int, seconds: Watch) -> dict[str, Any]:
    """x <- Wx - B(Λg) on a random 4-regular graph, beside a copy of the states."""
    graph = random_regular(4, agents)
    state, step = (torch.randn(1, agents, dimension, device=CUDA) for _ in range(2))
    out = torch.empty_like(state)
    parts = graph.mixing.indptr, graph.mixing.indices
    starts, senders = (torch.from_numpy(part).to(CUDA, torch.int32) for part in parts)
    weights = torch.from_numpy(graph.mixing.data).to(CUDA, torch.float32)
    links, shares = Links(starts, senders, weights), torch.rand(1, len(senders), device=CUDA)
    bad = torch.zeros(1, agents, dtype=torch.int32, device=CUDA)

    def update(splitting: Tensor | None) -> None:
        mix_sparse(state, step, 1e-3, links, splitting, out, bad, 3)

    def scale() -> None:
        philox.scale_(step, range(1), range(agents), (0.999, 1.0), 1 << 40, 3)

    def drawn() -> None:
        scale()
        update(shares)

    works: dict[str, Callable[[], object]] = {
        "copy": lambda: out.copy_(state),
        "B = I": partial(update, None),
        "B random": partial(update, shares),
        "Λ drawn": scale,
        "Λ drawn, B random": drawn,
    }
    took = by_turns({name: partial(seconds, work) for name, work in works.items()}, repetitions)
    copied = [8 * state.numel() / t for t in took["copy"]]
    found: dict[str, Any] = {"agents": agents, "dimension": dimension}
    rows = []
    for name, times in took.items():
        must = 8 if name in ("copy", "Λ drawn") else 12
        speed = [must * state.numel() / t for t in times]
        found[name] = {
            "ms": 1e3 * statistics.median(times),
            "terabytes_a_second": statistics.median(speed) / 1e12,
            "of_copy_bandwidth": vars(ratio(speed, copied)),
        }
        tb = f"{found[name]['terabytes_a_second']:.2f}"
        rows.append((name, f"{found[name]['ms']:.2f}", tb, str(ratio(speed, copied))))
    show(
        f"The update of {agents:,} agents, 4-regular, x {dimension:,} numbers",
        ("", "ms", "TB/s it must move", "of the copy's bandwidth"),
        rows,
    )
    return found


def noise(runs: int, dimension: int, repetitions: int, seconds: Watch) -> dict[str, Any]:
    """Rounds of chains with noise by the kernels, beside the chain without and beside torch."""
    graph = ring(5)
    stepsize = Stepsize(Power(0.5), Deterministic())
    state, gradient = (torch.randn(runs, 5, dimension, device=CUDA) for _ in range(2))
    routes = graph.routes().to(CUDA)
    streams = DeviceStreams(range(runs), range(5), 1, CUDA)
    bad = torch.zeros(runs, 5, dtype=torch.int32, device=CUDA)
    works: dict[str, Callable[[], object]] = {}
    for text in ("dsgd", "noisy-dsgd:0.01", "ldp-dsgd:0.01", "decor", "zero-sum:0.1"):
        mechanism = parse_algorithm(text)
        flow = Flow(state, gradient, routes, streams, stepsize, Clock(3))
        kernel = Kernel.of(mechanism, graph, flow)
        assert kernel is not None
        works[text] = partial(kernel.advance_, flow, bad)
        if text in ("ldp-dsgd:0.01", "decor"):
            plain = Flow(state, gradient, routes, streams, stepsize, Clock(3))
            works[f"{text}, its step by torch"] = partial(take_step, mechanism, plain)
    timed = {name: partial(seconds, work) for name, work in works.items()}
    took = by_turns(timed, repetitions)
    found = {
        name: {
            "ms": 1e3 * statistics.median(times),
            "times_dsgd": vars(ratio(times, took["dsgd"])),
        }
        for name, times in took.items()
    }
    show(
        f"Rounds of {runs} runs x 5 agents x {dimension:,} numbers, gradients not counted",
        ("", "ms", "times DSGD's"),
        [
            (name, f"{f['ms']:.1f}", str(ratio(took[name], took["dsgd"])))
            for name, f in found.items()
        ],
    )
    return {"runs": runs, "dimension": dimension, **found}
