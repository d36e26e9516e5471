"""The programs that benchmarks compare compute the same iterates."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.baselines import NumpyDSGD, TorchLoop
from benchmarks.common import ROOT, Worker, by_turns, machine, ratio, simulator
from benchmarks.cpu import peer_command, real_interpreter, verdict
from benchmarks.scaling import Towards, exponent, tensor_bytes
from benchmarks.workloads import Clocked, seconds_a_round
from torch import nn
from torch.nn.functional import cross_entropy

from sottovoce import (
    DSGD,
    PDSGD,
    Deterministic,
    Logistic,
    ModuleProblem,
    Options,
    Power,
    Stepsize,
    ring,
    simulate,
)
from sottovoce.randomness import private_streams

AGENTS, BATCH, SAMPLES, STEPS, SEED = 6, 4, 9, 5, 3
STEPSIZE = Stepsize(Power(0.1, 0.0), Deterministic())


def batches() -> Iterator[torch.Tensor]:
    """The samples that the simulator draws with the seed: (agents, batch) for every round."""
    streams = private_streams(1, AGENTS, insecure_seed=SEED)
    return (streams.integers("data", k, BATCH, SAMPLES)[0] for k in range(1, STEPS + 1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_bare_numpy_computes_the_simulators_iterates(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(AGENTS, SAMPLES, 7, generator=generator, dtype=dtype)
    labels = torch.randint(2, (AGENTS, SAMPLES), generator=generator) * 2 - 1
    problem = Logistic(features, labels, regularisation=0.2, batch=BATCH)
    ours = simulate(
        *(problem, DSGD(), ring(AGENTS)), steps=STEPS, stepsize=STEPSIZE, insecure_seed=SEED
    )
    program = NumpyDSGD((features * labels.unsqueeze(-1)).numpy(), ring(AGENTS), 0.2)
    for chosen in batches():
        program.step(chosen.numpy(), 0.1)
    assert program.state.dtype == ours.final.numpy().dtype
    tolerance = 1e-13 if dtype == torch.float64 else 1e-6
    np.testing.assert_allclose(program.state, ours.final[0].numpy(), rtol=0, atol=tolerance)


def test_the_loop_over_modules_computes_the_simulators_iterates() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(AGENTS, SAMPLES, 7, generator=generator)
    classes = torch.randint(3, (AGENTS, SAMPLES), generator=generator)
    data, model = list(zip(inputs, classes, strict=True)), nn.Linear(7, 3)
    loop = TorchLoop(model, data, ring(AGENTS))
    for chosen in batches():
        loop.step(chosen, 0.1)
    problem = ModuleProblem(model, cross_entropy, data, batch=BATCH)
    ours = simulate(
        *(problem, DSGD(), ring(AGENTS)), steps=STEPS, stepsize=STEPSIZE, insecure_seed=SEED
    )
    for agent, trained in enumerate(loop.models):
        vector = nn.utils.parameters_to_vector(trained.parameters())
        assert torch.allclose(vector, ours.final[0, agent], atol=1e-6)


def test_a_clock_sees_every_round_and_changes_none() -> None:
    problem = Logistic.random(AGENTS, 5, n=SAMPLES, batch=BATCH)
    clocked = Clocked(problem)
    found, plain = (
        simulate(
            *(one, PDSGD(), ring(AGENTS)),
            steps=STEPS,
            insecure_seed=SEED,
            options=Options(measure=[STEPS]),
        )
        for one in (clocked, problem)
    )
    assert torch.equal(found.final, plain.final)
    assert len(clocked.ticks) == STEPS + 1
    assert sorted(clocked.ticks) == clocked.ticks
    assert seconds_a_round(problem, PDSGD(), ring(AGENTS), 2) > 0


def test_works_take_turns_and_ratios_are_of_neighbours() -> None:
    order: list[str] = []

    def work(name: str, took: float) -> float:
        order.append(name)
        return took * len(order)

    times = by_turns({"a": lambda: work("a", 2.0), "b": lambda: work("b", 1.0)}, 3)
    assert order == ["a", "b"] * 4
    assert times == {"a": [6.0, 10.0, 14.0], "b": [4.0, 6.0, 8.0]}
    found = ratio(times["a"], times["b"])
    assert found.median == pytest.approx(10 / 6)
    assert found.low < found.median < found.high
    assert verdict(found, 1.5) == "1.5: reached"
    assert verdict(found, 2.0) == "2: missed"


def test_an_exponent_and_the_memory_of_states() -> None:
    assert exponent([10, 100, 1000], [5.0, 20.0, 2000.0], least=100) == pytest.approx(2.0)
    problem = Towards(20, 2000)
    tensor = 20 * 2000 * 8
    assert 3 * tensor <= tensor_bytes(problem, ring(20)) < 4 * tensor


def test_a_worker_answers_line_by_line() -> None:
    echo = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    with Worker([sys.executable, "-c", echo]) as worker:
        assert worker.ask(agents=3) == {"agents": 3}
        assert worker.ask(steps=[1, 2]) == {"steps": [1, 2]}


def test_the_peer_says_why_it_is_missing(tmp_path: Path) -> None:
    reason = peer_command("python-that-is-not-there", str(tmp_path / "none"))
    assert isinstance(reason, str)
    assert "python-that-is-not-there was not found" in reason


def test_the_interpreter_behind_a_shim_is_found(tmp_path: Path) -> None:
    shim = tmp_path / "python"
    shim.write_text(
        "#!/bin/sh\n"
        '[ "${PYENV_VERSION-}" = 3.13 ] || { echo "command not found" >&2; exit 127; }\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    shim.chmod(0o755)
    assert real_interpreter(str(shim)) == Path(sys.executable)
    shim.write_text('#!/bin/sh\necho "command not found" >&2\nexit 127\n')
    assert "does not run (command not found)" in str(real_interpreter(str(shim)))


def test_a_worker_times_what_its_tree_has() -> None:
    question = {"work": "logistic", "agents": 4, "steps": 2}
    with simulator() as worker:
        assert worker.ask(**question)["seconds"] > 0
        assert worker.ask(**question, algorithm="dsgd", exact=True)["seconds"] > 0
        assert "nonsense" in worker.ask(**question, algorithm="nonsense")["refused"]
        assert "nothing" in worker.ask(**question | {"work": "nothing"})["refused"]


def test_a_worker_refuses_sources_that_are_not_its_trees(tmp_path: Path) -> None:
    worker = ROOT / "benchmarks" / "worker.py"
    done = subprocess.run(
        [sys.executable, "-P", worker],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "error: sottovoce came from" in done.stderr


def test_the_peer_knows_nothing_of_this_package() -> None:
    source = (ROOT / "benchmarks" / "peer.py").read_text("utf-8")
    assert "import sottovoce" not in source
    assert "from sottovoce" not in source


def test_the_machine_is_json() -> None:
    facts = machine()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["versions"]["torch"]
