"""Start real agents: under torchrun, or without it where it would end the survivors itself."""

import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
AGENT = HERE / "agent.py"


def environment(**more: str) -> dict[str, str]:
    source = str(HERE.parents[1] / "src")
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        **more,
    }


def free_port() -> int:
    """A port that nobody listens on, below those that outgoing connections are given.

    One of the system's choosing could be given away again before the store listens on it.
    """
    while True:
        port = secrets.choice(range(10_000, 30_000))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def torchrun(
    agents: int, *arguments: object, restarts: int = 0, script: Path = AGENT, limit: float = 150
) -> subprocess.CompletedProcess[str]:
    """Run a script under torchrun to its end."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(agents), "--max-restarts", str(restarts)),
        *("--monitor-interval", "0.1", str(script), *map(str, arguments)),
    ]
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=limit, check=False
    )


def alone(folder: Path, agents: int, doomed: int, kills: list[str], timeout: float) -> None:
    """Run agents without torchrun, one group for each kill; see `agent.alone`."""
    _forked(folder, [agents, doomed, 12, 100, *kills], timeout)


def calm(folder: Path, agents: int, rounds: int, every: int) -> None:
    """Run one undisturbed training whose results lie in `folder`."""
    _forked(folder.parent, [agents, -1, rounds, every, folder.name], 20)


def again(folder: Path, agents: int, rounds: int, kills: list[str]) -> None:
    """Train with a journal, started again after each kill; see `agent.again`."""
    _agent("again", folder, [agents, rounds, *kills], 20)


def _forked(folder: Path, arguments: list[object], timeout: float) -> None:
    _agent("alone", folder, arguments, timeout)


def _agent(scenario: str, folder: Path, arguments: list[object], timeout: float) -> None:
    done = subprocess.run(
        [sys.executable, str(AGENT), scenario, str(folder), *map(str, arguments)],
        env=environment(TEST_TIMEOUT=str(timeout)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
