"""Start real agents: under torchrun, or one by one where torchrun would end the survivors itself."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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


def start_alone(
    agents: int, arguments: Sequence[object], log: Path, environments: Mapping[int, dict[str, str]]
) -> list[subprocess.Popen[bytes]]:
    """Start every agent as torchrun would, but with nobody watching over them."""
    shared = {
        "WORLD_SIZE": str(agents),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    processes = []
    for agent in range(agents):
        env = environment(RANK=str(agent), LOCAL_RANK=str(agent), **shared)
        env.update(environments.get(agent, {}))
        with (log / f"agent-{agent}.log").open("wb") as file:
            command = [sys.executable, str(AGENT), *map(str, arguments)]
            processes.append(subprocess.Popen(command, env=env, stdout=file, stderr=file))
    return processes


def wait_all(processes: Sequence[subprocess.Popen[bytes]], limit: float) -> list[int | None]:
    """Return codes within `limit` seconds; None, and an end by force, for who is still there."""
    deadline = time.monotonic() + limit
    codes: list[int | None] = []
    for process in processes:
        try:
            codes.append(process.wait(max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            codes.append(None)
            process.kill()
            process.wait()
    return codes
