"""Clipped gradients beside Opacus, and a thousand agents beside pfl, on one GPU in one run.

All train the paper's CNN with 64 samples a step. The peers run in processes of their own, which
`--peer-python` starts (an environment with PyTorch, opacus 1.6 and pfl 0.6); one that does not
start is left out with a note. Writes JSON:

    python -m benchmarks.gpu_peers --peer-python PYTHON
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from benchmarks.common import ROOT, Worker, by_turns, machine, ratio, save, show
from benchmarks.gpu import CUDA, moment, seconds
from benchmarks.workloads import Clocked
from torch.nn.functional import cross_entropy

from sottovoce import DSGD, PDSGD, ModuleProblem, random_regular, simulate
from sottovoce.mechanisms import Clip, Mechanism
from sottovoce.problems.data.models import paper_cnn
from sottovoce.problems.gradients.clipped import ClippedGradients
from sottovoce.problems.gradients.methods import PRECISIONS, Compute, ReplicaGradients
from sottovoce.simulation.options import Options

BATCH, CLIP, IMAGE = 64, 1.0, (1, 28, 28)
WARM = 2


def peer(program: str, python: str) -> Worker:
    """A peer's process; PEER_PATH, if set, leads to packages of its own."""
    path = os.pathsep.join(
        filter(None, (os.environ.get("PEER_PATH"), os.environ.get("PYTHONPATH")))
    )
    return Worker([python, str(ROOT / "benchmarks" / program)], ROOT, PYTHONPATH=path)


def clipped(replicas: int, options: argparse.Namespace, notes: list[str]) -> dict[str, Any]:
    """Clipped and unclipped gradients of many replicas, and Opacus' of one, by turns.

    Times are those of one clipped sum of 64 samples.
    """
    model = paper_cnn().to(CUDA)
    inputs = torch.randn(replicas, BATCH, *IMAGE, device=CUDA)
    targets = torch.randint(0, 10, (replicas, BATCH), device=CUDA)
    present = torch.ones(replicas, BATCH, dtype=torch.bool, device=CUDA)
    works = dict[str, Callable[[], float]]()
    for precision in PRECISIONS[::-1]:
        plain = ReplicaGradients(
            *(model, cross_entropy, Compute("fused", precision)), device=CUDA, shape=IMAGE
        )
        sums = ClippedGradients(model, cross_entropy, CUDA, plain.kernels)
        vectors = plain.layout.vector(model).expand(replicas, -1).contiguous()
        out = torch.empty_like(vectors)
        for name, work in (
            ("unclipped", partial(plain, vectors, inputs, targets, out)),
            ("clipped", partial(sums, vectors, inputs, targets, present, Clip(CLIP), out)),
        ):
            works[f"{name}, {precision}"] = partial(per, replicas, partial(seconds, work))
            print(f"{name}, {precision}: first call {seconds(work):.1f} s", flush=True)
    sums(vectors[:1], inputs[:1], targets[:1], present[:1], Clip(CLIP), out[:1])
    given = {"vector": vectors[0], "inputs": inputs[0], "targets": targets[0], "sum": out[0]}
    found: dict[str, Any] = {"replicas": replicas, "batch": BATCH, "clip": CLIP}
    if options.alone:
        took = by_turns(works, options.repetitions)
    else:
        with peer("peer_opacus.py", options.peer_python) as opacus:
            try:
                found |= differences(opacus, given)
                works |= of_opacus(opacus, notes)
            except (RuntimeError, OSError, KeyError) as error:
                notes.append(f"no comparison with Opacus: {error!r}")
            took = by_turns(works, options.repetitions)
    rows = []
    for label, times in took.items():
        precision = label.split(", ")[1]
        beside = {
            other: ratio(took[other], times)
            for other in took
            if "opacus" in other or other == f"unclipped, {precision}"
        }
        found[label] = {
            "a_second": 1 / statistics.median(times),
            "times_as_fast_as": {other: vars(one) for other, one in beside.items()},
        }
        quickest = min(
            (other for other in took if "opacus" in other and "batch" not in other),
            key=lambda other: statistics.median(took[other]),
            default=None,
        )
        own = beside.get(f"unclipped, {precision}", "")
        rows.append((label, f"{found[label]['a_second']:,.0f}", own, beside.get(str(quickest), "")))
    show(
        f"Sums over {BATCH} samples of the paper's CNN",
        ("", "a second", "of unclipped speed", "times Opacus' fastest at this batch"),
        rows,
    )
    return found


def differences(opacus: Worker, given: dict[str, torch.Tensor]) -> dict[str, float]:
    """How far Opacus' sum is from ours, of its size, by what it computes with."""
    with tempfile.TemporaryDirectory() as folder:
        compare = Path(folder) / "given.pt"
        torch.save({name: one.cpu() for name, one in given.items()}, compare)
        question = {"batch": BATCH, "steps": 1, "clip": CLIP, "precision": "float32"}
        return {
            f"difference to opacus, {mode}": opacus.ask(
                **question, mode=mode, compare=str(compare)
            )["difference"]
            for mode in ("hooks", "ghost")
        }


def of_opacus(opacus: Worker, notes: list[str]) -> dict[str, Callable[[], float]]:
    """Opacus' steps at our batch and at a larger one; each says the seconds for 64 samples."""
    works = dict[str, Callable[[], float]]()
    for mode in ("hooks", "ghost"):
        for precision in PRECISIONS:
            for size in (BATCH, 8 * BATCH):
                question: dict[str, Any] = {"mode": mode, "batch": size, "clip": CLIP}
                question |= {"precision": precision, "steps": 2 + 4 * (size == BATCH)}
                label = f"opacus {mode}, {precision}" + f", batch {size}" * (size > BATCH)
                if "refused" in (said := opacus.ask(**question)):
                    notes.append(f"{label}: {said['refused']}")
                else:
                    works[label] = partial(asked, opacus, size / BATCH, question)
                    print(f"{label}: {said['seconds']:.3f} s a step", flush=True)
    return works


def per(count: float, work: Callable[[], float]) -> float:
    """The seconds of one, where a work does `count` at once."""
    return work() / count


def asked(worker: Worker, count: float, question: dict[str, Any]) -> float:
    return float(worker.ask(**question)["seconds"]) / count


def thousand(agents: int, rounds: int, precisions: tuple[str, ...]) -> dict[str, Any]:
    """Rounds of one training of many agents on a 4-regular graph: agent-steps a second."""
    inputs, targets = torch.randn(agents, BATCH, *IMAGE), torch.randint(0, 10, (agents, BATCH))
    data, graph = list(zip(inputs, targets, strict=True)), random_regular(4, agents)
    cases: tuple[tuple[str, Mechanism], ...] = (
        ("PDSGD", PDSGD()),
        ("DSGD", DSGD()),
        ("PDSGD, clipped", PDSGD() + Clip(CLIP)),
    )
    found = dict[str, Any]()
    for precision in precisions:
        for name, algorithm in cases:
            compute = Compute("fused", precision)  # type: ignore[arg-type]
            model = paper_cnn().to(CUDA)
            clocked = Clocked(
                ModuleProblem(model, cross_entropy, data, batch=BATCH, compute=compute), moment
            )
            last = rounds + WARM
            options = Options(measure=[last], keep_final=False)
            simulate(clocked, algorithm, graph, steps=last, insecure_seed=1, options=options)
            torch.cuda.synchronize()
            ticks = clocked.ticks[WARM:]
            rates = [agents / (1e-3 * one.elapsed_time(two)) for one, two in pairwise(ticks)]
            low, median, high = statistics.quantiles(rates, n=4, method="inclusive")
            found[f"{name}, {precision}"] = {"a_second": median, "quartiles": [low, high]}
            print(f"{name}, {precision}: {median:,.0f} agent-steps a second", flush=True)
            del clocked
            torch.cuda.empty_cache()
    return found


def clients(count: int, python: str, notes: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """pfl's federated averaging: client-steps a second, by one process and by several at once.

    All clients take part in a round of the first, a quarter of them in a round of the others.
    """
    few = count // 4
    plain: dict[str, Any] = {"clients": few, "iterations": 2, "steps": 1, "batch": BATCH}
    plain |= {"precision": "float32", "compiled": False}
    for processes, questions in (
        (
            1,
            {
                "pfl": plain | {"clients": count},
                "pfl, bfloat16": plain | {"precision": "bfloat16"},
                "pfl, ten local steps": plain | {"steps": 10, "clients": few // 10},
            },
        ),
        (8, {"pfl, 8 processes at once": plain}),
        (1, {"pfl, compiled": plain | {"compiled": True}}),
    ):
        workers = [peer("peer_pfl.py", python) for _ in range(processes)]
        with ThreadPoolExecutor(processes) as pool:
            for label, question in questions.items():
                try:
                    found = together(workers, question, pool)
                    print(f"{label}: {found['a_second']:,.0f} client-steps a second", flush=True)
                    yield label, found
                except (RuntimeError, OSError) as error:
                    notes.append(f"{label}: {error!r}")
            list(pool.map(Worker.__exit__, workers))


def together(
    workers: list[Worker], question: dict[str, Any], pool: ThreadPoolExecutor
) -> dict[str, Any]:
    """The sum of what processes reach that share the GPU; each has clients of its own."""
    list(pool.map(lambda one: one.ask(**question | {"clients": 20}), workers))
    answers = list(pool.map(lambda one: one.ask(**question), workers))
    rates = [answer["client_steps_a_second"] for answer in answers]
    return {"a_second": sum(rates), "processes": len(workers)}


def beside(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Print agent-steps beside client-steps."""
    best = max((one["a_second"] for one in theirs.values()), default=None)
    single = theirs.get("pfl", {}).get("a_second")
    rows = [
        (
            label,
            f"{one['a_second']:,.0f}",
            f"{one['a_second'] / single:,.1f}" if single else "",
            f"{one['a_second'] / best:,.1f}" if best else "",
        )
        for label, one in (ours | theirs).items()
    ]
    show(
        "One training of agents on a 4-regular graph beside pfl's clients, paper's CNN, batch 64",
        ("", "steps a second", "times one process of pfl", "times pfl's fastest"),
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="sottovoce-results/bench-gpu-peers.json")
    parser.add_argument("--only", choices=("clipped", "agents"))
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--alone", action="store_true", help="leave the peers out")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--precision", choices=PRECISIONS, help="of the agents; unless given both")
    options = parser.parse_args()
    notes = list[str]()
    found: dict[str, Any] = {"machine": machine(), "notes": notes}
    if options.only in (None, "clipped"):
        found["clipped"] = clipped(500, options, notes)
        torch.cuda.empty_cache()
    if options.only in (None, "agents"):
        precisions = (options.precision,) if options.precision else PRECISIONS[::-1]
        ours = thousand(options.agents, options.rounds, precisions)
        torch.cuda.empty_cache()
        theirs = dict[str, Any]()
        python = options.peer_python
        for label, one in () if options.alone else clients(options.agents, python, notes):
            theirs[label] = one
            found["agents"] = {"count": options.agents, **ours, **theirs}
            save(options.out, found)  # A peer may fail later.
        found["agents"] = {"count": options.agents, **ours, **theirs}
        beside(ours, theirs)
    for note in notes:
        print(note)
    save(options.out, found)


if __name__ == "__main__":
    main()
