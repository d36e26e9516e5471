"""Real agents over TLS, one process each: the simulator's bits, and one of them may be killed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import cases
import launching
import masked_cases
import pytest
import tls_agents_forked as agents
import torch

from sottovoce import simulate
from sottovoce.simulation.options import Options
from sottovoce.storage.tensors import read_tensors

pytestmark = pytest.mark.integration


def run(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, str(Path(agents.__file__)), *map(str, arguments)],
        env=launching.environment(),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def final(folder: Path, name: str, count: int) -> torch.Tensor:
    found = [read_tensors(folder / f"{name}-{a}-final.safetensors")[0]["x"] for a in range(count)]
    return torch.stack(found)


def simulated(case: Any, rounds: int, options: Options) -> torch.Tensor:
    return simulate(
        case.problem,
        case.algorithm,
        case.graph,
        steps=rounds,
        stepsize=case.stepsize,
        insecure_seed=agents.SEED,
        options=options,
    ).final[0]


# One test, so that one worker starts the agents.
def test_agents_over_tls_give_the_simulator_s_bits_plain_and_masked(tmp_path: Path) -> None:
    run("equality", tmp_path)
    for name in agents.EQUAL:
        case = cases.equality_cases()[name]
        options = Options(measure=[agents.ROUNDS], private_start=case.private_start, exact=True)
        expected = simulated(case, agents.ROUNDS, options)
        assert torch.equal(final(tmp_path, name, 5), expected), name
    for name, masked in masked_cases.cases().items():
        rounds, start = masked_cases.ROUNDS, masked_cases.PRIVATE_START
        options = Options(measure=[rounds], private_start=start, links="masked")
        got = final(tmp_path, f"masked-{name}", 4)
        assert torch.equal(got, simulated(masked, rounds, options)), name


@pytest.mark.thorough
@pytest.mark.parametrize("masked", [0, 1])
def test_killed_agents_start_again_with_the_same_bytes_and_the_others_live_on(
    masked: int, tmp_path: Path
) -> None:
    """Noise with secrets of edges, from the operating system; any agent may be the one."""
    said = json.loads(run("kills", tmp_path, 30, 4, masked))
    assert said["kills"] == 4
    assert said["sent"] + said["sent again"] >= said["messages"]
    # The control: links did break.
    assert said["link lost"] >= 4
