"""The paper's CNN experiment at a size for tests."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from scipy import stats

from sottovoce.errors import ProblemError
from sottovoce.mechanisms import DSGD
from sottovoce.simulation.options import Options
from sottovoce.stepsizes import Deterministic
from sottovoce.storage.execution import Execution
from sottovoce.storage.store import lock
from sottovoce.studies import Study
from sottovoce.studies.learning import LearningSettings, difference, train
from sottovoce.studies.mnist import mnist_study
from sottovoce.studies.noise import PAPER_TABLE, NoiseSettings, noise_study
from sottovoce.studies.training import Training

ROOT = Path(__file__).parents[1]
QUICK = Training(epochs=2, batch=16)


@pytest.fixture(scope="module")
def study() -> Study:
    return mnist_study(LearningSettings(training=QUICK, runs=2, insecure_seed=1))


def test_two_epochs_of_the_shipped_subset_teach_every_agent(study):
    accuracy = study.data["results"]["PDSGD"]["validation_accuracy"]
    assert accuracy["mean"][0] < 0.2
    assert accuracy["mean"][-1] > 0.75
    assert len(accuracy["agents"][-1]) == 5
    assert min(accuracy["agents"][-1]) > 0.7
    for metric in ("training_loss", "validation_loss", "training_accuracy", "consensus"):
        assert len(study.data["results"]["DSGD"][metric]["mean"]) == len(
            study.data["results"]["DSGD"]["rounds"]
        )


def test_a_study_is_whole_in_its_json(study, tmp_path):
    paths = study.write(tmp_path)
    loaded = Study.load(tmp_path / "mnist.json")
    assert loaded.to_json() == study.to_json() == json.loads((tmp_path / "mnist.json").read_text())
    assert {path.suffix for path in paths} == {".json", ".png", ".svg", ".html"}
    assert set(loaded.charts()) == {"mnist"}


def test_every_agents_holding_is_shown(study):
    held = study.tables[1]
    assert held.title == "Training images of every agent, by label (equal)"
    assert [sum(row[1:-1]) for row in held.rows] == [1000] * 5 == [row[-1] for row in held.rows]


def test_counting_iterations_stops_learning_and_the_study_says_so(study):
    training = Training(epochs=2, batch=16, schedule="iteration")
    slow = mnist_study(LearningSettings(training=training, runs=1, insecure_seed=1))
    assert any("learning all but stops" in finding for finding in slow.findings)
    counted = slow.data["results"]["PDSGD"]["validation_accuracy"]["mean"][-1]
    epochs = study.data["results"]["PDSGD"]["validation_accuracy"]["mean"][-1]
    assert counted < epochs - 0.1


def test_the_noise_table_stands_beside_the_papers():
    asked = NoiseSettings(
        training=Training(epochs=1, batch=32), levels=(0.0, 1.0), runs=1, targets=2, insecure_seed=1
    )
    table = noise_study(asked)
    rows = {row[0]: row for row in table.tables[0].rows}
    assert tuple(rows["NoisyDSGD, noise 1"][3:5]) == ("0.0995", "0.0993")
    results = table.data["results"]
    clean = results["NoisyDSGD, noise 0"]["validation_accuracy"]["mean"][-1]
    drowned = results["NoisyDSGD, noise 1"]["validation_accuracy"]["mean"][-1]
    assert clean > drowned + 0.2
    assert PAPER_TABLE[1e-4] == (0.9823, 0.9871)


def test_unknown_choices_are_refused_by_name():
    with pytest.raises(ProblemError, match="model 'large' is not known; accepted: paper, small"):
        Training(model="large")
    with pytest.raises(ProblemError, match="epochs is 0"):
        Training(epochs=0)


def test_partitions_reach_the_agents():
    data, _, held = Training(partition="shards:2").portions(5)
    labels = [len(targets.unique()) for _, targets in data]
    assert max(labels) <= 4
    assert [row[-1] for row in held.rows] == [len(targets) for _, targets in data]


@pytest.mark.thorough
@pytest.mark.integration
def test_a_killed_run_continues_and_ends_with_the_same_numbers(tmp_path):
    script = (
        "from sottovoce.simulation import checkpoint\n"
        "assert checkpoint.SECONDS_BETWEEN_CHECKPOINTS == 60\n"
        "checkpoint.SECONDS_BETWEEN_CHECKPOINTS = 0.3\n"
        "from sottovoce.cli import main; main()"
    )
    command = [
        *(sys.executable, "-c", script, "reproduce", "mnist", "--epochs", "1", "--runs", "1"),
        *("--batch-size", "16", "--insecure-seed", "5", "--json"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def finish(out: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, "--out", out], capture_output=True, text=True, env=environment, timeout=120
        )

    undisturbed = finish(tmp_path / "whole")
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert "reused" not in undisturbed.stderr
    disturbed = tmp_path / "killed"
    process = subprocess.Popen(
        [*command, "--out", disturbed],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    saved = "checkpoint/**/simulation-*.safetensors"
    deadline = time.monotonic() + 60
    while not any(disturbed.glob(saved)) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert any(disturbed.glob(saved))
    assert not (disturbed / "mnist.json").exists()
    with lock(disturbed / "checkpoint"):
        second = finish(disturbed)
    assert second.returncode == 2
    assert "is in use by another process" in second.stderr
    resumed = finish(disturbed)
    assert re.search(r"reused (the first|all) \d+ rounds of runs 0 to 0", resumed.stderr)
    assert json.loads(resumed.stdout) == json.loads(undisturbed.stdout)
    assert not (disturbed / "checkpoint").exists()


@pytest.mark.parametrize("piece", [None, 1])
def test_training_is_reused_unless_it_shall_be_fresh(piece, tmp_path):
    asked = LearningSettings(training=Training(epochs=1, batch=500), runs=2, piece=piece)
    said = []

    def accuracy(**execution):
        said.clear()
        cases = [("DSGD", DSGD(), Deterministic())]
        trained = train(asked, cases, Execution(tmp_path, say=said.append, **execution))
        return trained.last("DSGD")

    first = accuracy()
    assert said == []
    assert torch.equal(accuracy(), first)
    assert [line.startswith("reused") for line in said] == [True]
    anew = accuracy(fresh=True)
    assert said == []
    assert not torch.equal(anew, first)
    assert torch.equal(accuracy(), anew)


def test_the_interval_of_a_difference_is_welchs():
    """By hand: means 2 and 5, squared errors 1/3 and 5/3, so 4 / (1/18 + 25/27) degrees."""
    ours, theirs = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0, 6.0, 8.0])
    half = float(stats.t.ppf(0.975, 4 / (1 / 18 + 25 / 27))) * math.sqrt(2)
    assert difference(ours, theirs) == pytest.approx((-3 - half, -3 + half))
    assert difference(ours, ours[:1]) == (-math.inf, math.inf)
    assert difference(torch.ones(3), torch.zeros(2)) == (1.0, 1.0)


@pytest.mark.slow
def test_the_small_model_reaches_nine_tenths_on_the_shipped_subset():
    study = mnist_study(LearningSettings(runs=3, insecure_seed=1))
    assert study.data["results"]["PDSGD"]["validation_accuracy"]["mean"][-1] >= 0.90


def test_memory_holds_three_tensors_of_states():
    """States, successors and steps are the only tensors of (runs, agents, d) that a run creates."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from sottovoce import PDSGD, ring, simulate

    class Largest(TorchDispatchMode):
        """Counts tensors of `size` entries that come into being."""

        def __init__(self, size: int) -> None:
            super().__init__()
            self.size, self.made = size, 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            given = torch.utils._pytree.tree_leaves((args, kwargs or {}))
            held = {
                tensor.untyped_storage().data_ptr() for tensor in given if torch.is_tensor(tensor)
            }
            out = function(*args, **(kwargs or {}))
            for tensor in torch.utils._pytree.tree_leaves(out):
                if torch.is_tensor(tensor) and tensor.numel() == self.size:
                    self.made += tensor.untyped_storage().data_ptr() not in held
            return out

    data, validation, _ = QUICK.portions(5)
    problem = QUICK.problem(data, validation)
    counter = Largest(3 * 5 * problem.dimension)
    with counter:
        simulate(
            problem,
            PDSGD(),
            ring(5),
            steps=3,
            runs=3,
            insecure_seed=1,
            options=Options(measure=[3]),
        )
    assert counter.made == 3
