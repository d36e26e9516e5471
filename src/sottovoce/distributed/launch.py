"""Start agents on this machine under torchrun and collect their reports."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sottovoce.errors import DistributedError
from sottovoce.graphs import parse_graph
from sottovoce.mechanisms import parse_algorithm
from sottovoce.problems.data.partitions import parse_partition
from sottovoce.randomness import require_jitter
from sottovoce.stepsizes import parse_stepsize

REPORT = "sottovoce-report "
"""How a line begins that is meant for the starting process."""


@dataclass(frozen=True)
class Training:
    """A training of a small CNN on MNIST, as text and numbers that every agent can be given.

    stepsize: the algorithm's own law with mean 0.3/k unless given; k counts epochs unless it says
    `block=`. weights: the rule for W. private_start: as for `DecentralizedSGD`. checkpoint: a
    folder to save to after each epoch and to resume from.
    """

    graph: str = "ring:5"
    algorithm: str = "pdsgd"
    stepsize: str | None = None
    epochs: int = 5
    batch_size: int = 32
    data: str = "subset"
    partition: str = "equal"
    weights: str = "metropolis"
    private_start: float = 0.0
    checkpoint: str | None = None
    timeout: float = 60.0
    insecure_seed: int | None = None

    def check(self, agents: int | None = None) -> int:
        """Refuse what no agent could start with, and return the number of agents."""
        graph = parse_graph(self.graph, self.weights)
        require_jitter(self.private_start)
        if agents is not None and agents != graph.agents:
            raise DistributedError(
                f"{agents} agents were asked for, but the graph {self.graph} has {graph.agents}"
            )
        parse_algorithm(self.algorithm)
        parse_partition(self.partition)
        if self.stepsize:
            parse_stepsize(self.stepsize)
        if self.epochs < 1 or self.batch_size < 1:
            raise DistributedError(
                f"epochs is {self.epochs} and batch size {self.batch_size}; both must be at least 1"
            )
        return graph.agents


def train(
    training: Training,
    *,
    agents: int | None = None,
    max_restarts: int = 0,
    heard: Callable[[dict[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    """Run a training under torchrun on loopback; `heard` is called with each report as it arrives.

    The result holds the settings and, for each epoch and agent, the accuracy on the validation set.
    """
    number = training.check(agents)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(number), "--max-restarts", str(max_restarts)),
        *("-m", "sottovoce.distributed.train_worker", json.dumps(asdict(training))),
    ]
    threads = str(max(1, torch.get_num_threads() // number))
    reports: dict[tuple[int, int], dict[str, Any]] = {}
    # In a group of its own, torchrun does not see the terminal's Ctrl-C: it is stopped here.
    environment, pipe = os.environ | {"OMP_NUM_THREADS": threads}, subprocess.PIPE
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
        process_group=0,
    ) as process:
        stopped = threading.Event()

        def relay() -> None:
            for line in process.stderr or ():
                # What torchrun and the agents say about being stopped helps nobody.
                if not stopped.is_set():
                    sys.stderr.write(line)

        copying = threading.Thread(target=relay, daemon=True)
        copying.start()
        try:
            for line in process.stdout or ():
                if not line.startswith(REPORT):
                    sys.stderr.write(line)
                    continue
                report = json.loads(line.removeprefix(REPORT))
                reports[report["epoch"], report["agent"]] = report
                heard(report)
            code = process.wait()
        finally:
            if process.poll() is None:
                stopped.set()
                process.terminate()
            copying.join()
    if code:
        raise DistributedError(
            f"the training ended with exit code {code}; the agents' own messages are above"
        )
    return {
        "training": asdict(training),
        "agents": number,
        "reports": [reports[key] for key in sorted(reports)],
    }
