"""The GPU's kernels beside a bare copy, plain torch and other ways to the same gradients.

Prints tables and writes JSON. Every figure is a ratio to something in the same process:

    python -m benchmarks.gpu --data-dir FOLDER-OF-MNIST
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from benchmarks.common import by_turns, machine, ratio, save, show
from benchmarks.gpu_updates import many_agents, noise
from benchmarks.workloads import Clocked
from torch import Tensor
from torch.nn.functional import cross_entropy

from sottovoce import DSGD, PDSGD, random_regular, ring, simulate
from sottovoce.kernels import philox
from sottovoce.kernels.mixing import Factors, mix_
from sottovoce.mechanisms import Mechanism
from sottovoce.problems.data.models import paper_cnn
from sottovoce.problems.gradients.methods import Compute, ReplicaGradients
from sottovoce.simulation.options import Options
from sottovoce.stepsizes import Deterministic, Experiment
from sottovoce.studies.training import Training

CUDA = torch.device("cuda")
DIMENSION = 1_676_266
PARTS = ("mixing", "many-agents", "noise", "gradients", "rounds", "one-training", "accuracy")
WARM = 2


def seconds(work: Callable[[], object]) -> float:
    """How long the device takes, by its own clock."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def moment() -> torch.cuda.Event:
    """The device's own time when it gets here."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def mixing(runs: int, repetitions: int) -> dict[str, Any]:
    """The update x <- Wx - B(Λg) at d = 1,676,266 with 5 agents beside a copy of the states."""
    state, gradient = (torch.randn(runs, 5, DIMENSION, device=CUDA) for _ in range(2))
    other = torch.empty_like(state)
    W = torch.from_numpy(ring(5).mixing.toarray()).to(CUDA, torch.float32)
    B = torch.rand(runs, 5, 5, device=CUDA)
    bad = torch.zeros(runs, 5, dtype=torch.int32, device=CUDA)

    def update(splitting: Tensor | None, interval: tuple[float, float]) -> None:
        mix_(state, gradient, W, splitting, bad, Factors(interval, 1 << 40, 3, range(runs)))

    def plain() -> None:
        drawn = philox.uniform(range(runs), range(5), DIMENSION, torch.float32, 1 << 40, 3, CUDA)
        step = drawn.mul_(1e-3).add_(1e-3).mul_(gradient)
        torch.bmm(W.expand(runs, 5, 5), state, out=other)
        other.baddbmm_(B, step, alpha=-1.0)

    works: dict[str, Callable[[], object]] = {
        "copy": lambda: other.copy_(state),
        "PDSGD": lambda: update(B, (1e-3, 2e-3)),
        "DSGD": lambda: update(None, (1e-3, 1e-3)),
        "plain torch": plain,
    }
    took = by_turns({name: partial(seconds, work) for name, work in works.items()}, repetitions)
    size = state.nbytes
    bandwidth = {
        name: [(2 if name == "copy" else 3) * size / t / 1e12 for t in took[name]] for name in works
    }
    found = {
        name: {
            "ms": 1e3 * statistics.median(took[name]),
            "terabytes_a_second": statistics.median(bandwidth[name]),
            "of_copy_bandwidth": vars(ratio(bandwidth[name], bandwidth["copy"])),
            "of_plain_time": vars(ratio(took[name], took["plain torch"])),
        }
        for name in works
    }
    rows = [
        (
            name,
            f"{f['ms']:.2f}",
            f"{f['terabytes_a_second']:.2f}",
            str(ratio(bandwidth[name], bandwidth["copy"])),
            str(ratio(took["plain torch"], took[name])),
        )
        for name, f in found.items()
    ]
    show(
        f"The update of {runs} runs x 5 agents x {DIMENSION:,} numbers",
        ("", "ms", "TB/s it must move", "of the copy's bandwidth", "times plain torch's speed"),
        rows,
    )
    return {"runs": runs, "agents": 5, "dimension": DIMENSION, **found}


def gradients(replicas: int, repetitions: int) -> dict[str, Any]:
    """Gradients of the paper's CNN at batch 64: fused, vmap, and a loop over torch modules."""
    model = paper_cnn().to(CUDA)
    works, count = {}, {"loop": 16, "vmap": 64}
    for name, method, precision in (
        ("fused, bfloat16", "fused", "bfloat16"),
        ("fused, float32", "fused", "float32"),
        ("vmap", "vmap", "float32"),
        ("loop", "loop", "float32"),
    ):
        compute = ReplicaGradients(
            model,
            cross_entropy,
            Compute(method, precision),  # type: ignore[arg-type]
            device=CUDA,
            shape=(1, 28, 28),
        )
        size = count.setdefault(name, replicas)
        vectors = compute.layout.vector(model).expand(size, -1).contiguous()
        inputs = torch.randn(size, 64, 1, 28, 28, device=CUDA)
        targets = torch.randint(0, 10, (size, 64), device=CUDA)
        out = torch.empty_like(vectors)
        works[name] = partial(compute, vectors, inputs, targets, out)
    timed = {name: partial(seconds, work) for name, work in works.items()}
    took = by_turns(timed, repetitions)
    each = {name: [t / count[name] for t in times] for name, times in took.items()}
    found = {
        name: {
            "replicas": count[name],
            "gradients_a_second": 1 / statistics.median(each[name]),
            "times_loop": vars(ratio(each["loop"], each[name])),
            "times_vmap": vars(ratio(each["vmap"], each[name])),
        }
        for name in works
    }
    show(
        "Gradients of the paper's CNN, batch 64",
        ("", "replicas", "a second", "times the loop", "times vmap"),
        [
            (
                name,
                count[name],
                f"{f['gradients_a_second']:,.0f}",
                str(ratio(each["loop"], each[name])),
                str(ratio(each["vmap"], each[name])),
            )
            for name, f in found.items()
        ],
    )
    return found


def steps(training: Training, runs: int, rounds: int) -> dict[str, Any]:
    """Whole rounds of a simulation: samples, gradients, private numbers and the update."""
    graph = ring(5)
    data, validation, _ = training.portions(5)
    problem = training.problem(data, validation)
    epoch = problem.rounds_an_epoch
    found: dict[str, Any] = {}
    cases = (("PDSGD", PDSGD(), Experiment()), ("DSGD", DSGD(), Deterministic()))
    for name, algorithm, law in cases:
        stepsize = training.stepsize(law, epoch)
        clocked = Clocked(problem, moment)
        last = rounds + WARM
        result = simulate(
            *(clocked, algorithm, graph),
            steps=last,
            runs=runs,
            stepsize=stepsize,
            insecure_seed=1,
            options=Options(measure=[last]),
        )
        torch.cuda.synchronize()
        took = [begun.elapsed_time(ended) / 1e3 for begun, ended in pairwise(clocked.ticks[WARM:])]
        evaluated = seconds(partial(problem.measure, result.final.to(CUDA)))
        rates = [5 * runs / t for t in took]
        low, median, high = statistics.quantiles(rates, n=4)
        found[name] = {
            "runs": runs,
            "replicas": 5 * runs,
            "agent_steps_a_second": median,
            "quartiles": [low, high],
            "evaluation_s": evaluated,
        }
        del clocked, result
        torch.cuda.empty_cache()
    show(
        f"Rounds of the paper's CNN, batch 64, {training.precision}",
        ("", "replicas", "agent-steps a second", "quartiles", "evaluation, s"),
        [
            (
                name,
                f["replicas"],
                f"{f['agent_steps_a_second']:,.0f}",
                " to ".join(f"{q:,.0f}" for q in f["quartiles"]),
                f"{f['evaluation_s']:.2f}",
            )
            for name, f in found.items()
        ],
    )
    return found


def one_training(training: Training, agents: int, rounds: int) -> dict[str, Any]:
    """Whole rounds of one simulation of many agents on a random 4-regular graph."""
    data, validation, _ = training.portions(agents)
    problem = training.problem(data, validation)
    clocked, last = Clocked(problem, moment), rounds + WARM
    simulate(
        *(clocked, PDSGD(), random_regular(4, agents)),
        steps=last,
        stepsize=training.stepsize(Experiment(), problem.rounds_an_epoch),
        insecure_seed=1,
        options=Options(measure=[last], keep_final=False),
    )
    torch.cuda.synchronize()
    took = [begun.elapsed_time(ended) / 1e3 for begun, ended in pairwise(clocked.ticks[WARM:])]
    low, median, high = statistics.quantiles([agents / t for t in took], n=4)
    show(
        f"One training of {agents:,} agents, 4-regular, the paper's CNN, {training.precision}",
        ("agents", "agent-steps a second", "quartiles"),
        [(f"{agents:,}", f"{median:,.0f}", f"{low:,.0f} to {high:,.0f}")],
    )
    return {"agents": agents, "agent_steps_a_second": median, "quartiles": [low, high]}


def accuracy(base: dict[str, Any], runs: int, epochs: int) -> dict[str, Any]:
    """The same runs, with the same private numbers, in float32 and in bfloat16."""
    found: dict[str, Any] = {}
    final: dict[tuple[str, str], torch.Tensor] = {}
    cases: tuple[tuple[str, Mechanism, Any], ...] = (
        ("PDSGD", PDSGD(), Experiment()),
        ("DSGD", DSGD(), Deterministic()),
    )
    for precision in ("float32", "bfloat16"):
        training = Training(**base, epochs=epochs, precision=precision)  # type: ignore[arg-type]
        data, validation, _ = training.portions(5)
        problem = training.problem(data, validation)
        epoch = problem.rounds_an_epoch
        for name, algorithm, law in cases:
            result = simulate(
                problem,
                algorithm,
                ring(5),
                steps=epochs * epoch,
                runs=runs,
                stepsize=training.stepsize(law, epoch),
                insecure_seed=1,
                options=Options(measure=range(epoch, epochs * epoch + 1, epoch), keep_final=False),
            )
            final[name, precision] = result.metric("validation_accuracy")[-1]
            found[f"{name}, {precision}"] = {
                metric: result.metric(metric).mean(1).tolist()
                for metric in ("training_loss", "validation_loss", "validation_accuracy")
            }
    rows = []
    for name, _, _ in cases:
        full, reduced = final[name, "float32"], final[name, "bfloat16"]
        change = reduced - full
        half = 1.96 * float(change.std()) / runs**0.5
        found[f"{name}, change"] = {"mean": float(change.mean()), "half_width": half}
        shown = (f"{float(full.mean()):.4f}", f"{float(reduced.mean()):.4f}")
        rows.append((name, *shown, f"{float(change.mean()):+.4f} ± {half:.4f}"))
    show(
        f"Validation accuracy after {epochs} epochs, the same {runs} runs",
        ("", "float32 (TF32)", "bfloat16", "change, mean ± 95 %"),
        rows,
    )
    return {"runs": runs, "epochs": epochs, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="sottovoce-results/bench-gpu.json")
    parser.add_argument("--data-dir", help="folder of MNIST's IDX files")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--runs", type=int, default=211, help="of a whole round, five agents each")
    parser.add_argument("--accuracy-runs", type=int, default=10, help="0 leaves training out")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--precisions", default="bfloat16,float32", help="of whole rounds")
    options = parser.parse_args()
    parts = options.only.split(",")
    base = {
        "model": "paper",
        "data": "mnist" if options.data_dir else "subset",
        "data_dir": options.data_dir,
        "batch": 64,
        "scale": 1.0,
        "device": "cuda",
    }
    found: dict[str, Any] = {"machine": machine()}
    repetitions = options.repetitions
    works: dict[str, Callable[[], dict[str, Any]]] = {
        "mixing": lambda: mixing(100, repetitions),
        "many-agents": lambda: many_agents(1000, DIMENSION, repetitions, seconds),
        "noise": lambda: noise(50, DIMENSION, repetitions, seconds),
        "gradients": lambda: gradients(500, repetitions),
    }
    for precision in options.precisions.split(","):
        training = Training(**base, precision=precision)  # type: ignore[arg-type]
        rounds, single = f"rounds, {precision}", f"one training, {precision}"
        if "rounds" in parts:
            works[rounds] = partial(steps, training, options.runs, repetitions)
        if "one-training" in parts:
            works[single] = partial(one_training, training, 1000, repetitions)
    for name, work in works.items():
        if name in parts or "," in name:
            found[name] = work()
            torch.cuda.empty_cache()
    if "accuracy" in parts and options.accuracy_runs:
        found["accuracy"] = accuracy(base, options.accuracy_runs, epochs=8)
    save(options.out, found)


if __name__ == "__main__":
    main()
