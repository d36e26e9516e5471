"""Start agents on this machine under torchrun and collect their reports."""

import inspect
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch

from sottovoce.distributed.options import completed
from sottovoce.errors import DataError, DistributedError, ProblemError, SottovoceError
from sottovoce.graphs import parse_graph
from sottovoce.mechanisms import parse_algorithm
from sottovoce.mechanisms.fixed_point import require_sums
from sottovoce.problems.data.partitions import parse_partition
from sottovoce.simulation.options import Links
from sottovoce.stepsizes import parse_stepsize
from sottovoce.storage.user_files import function_in, is_in_file

REPORT = "sottovoce-report "
FAULT = "sottovoce-fault "
"""How lines begin that are meant for the starting process."""


@dataclass(frozen=True)
class Training:
    """A training as text and numbers that every agent can be given: a small CNN on MNIST, or yours.

    model, loss: FILE.py:NAME, a function of no argument that returns a module, and a function of
    outputs and targets. data: also FILE.py:NAME, a function of the agent's number and how many
    there are, which returns two data sets: what this agent trains on, and what it validates with or
    None. rounds: of an epoch; what the largest part of the images needs, and with data of your own
    `ROUNDS`, unless given. device: of the model; `cuda` is the agent's own GPU, or one that agents
    share. out: a folder for the trained weights, one file for each agent.
    stepsize: the algorithm's own law with mean 0.3/k unless given; k counts epochs unless it says
    `block=`. weights: the rule for W. private_start, links: as for `DecentralizedSGD`. checkpoint:
    a folder to save to after each epoch and to resume from. journal: keep there also what is sent,
    before it is sent, so that no round is done again. start_over: remove what is in that folder
    first. delta: the δ at which ε is said, if the algorithm has one.
    """

    ROUNDS: ClassVar[int] = 100

    graph: str = "ring:5"
    algorithm: str = "pdsgd"
    stepsize: str | None = None
    epochs: int = 5
    rounds: int | None = None
    batch_size: int = 32
    model: str | None = None
    loss: str | None = None
    data: str = "subset"
    partition: str = "equal"
    weights: str = "metropolis"
    private_start: float = 0.0
    checkpoint: str | None = None
    journal: bool = False
    start_over: bool = False
    timeout: float = 60.0
    insecure_seed: int | None = None
    links: Links = "plain"
    device: str = "cpu"
    out: str | None = None
    delta: float = 1e-5

    def check(self, agents: int | None = None) -> int:
        """Refuse what no agent could start with, and return the number of agents."""
        graph = parse_graph(self.graph, self.weights)
        completed({"private_start": self.private_start, "links": self.links})
        if agents is not None and agents != graph.agents:
            raise DistributedError(
                f"{agents} agents were asked for, but the graph {self.graph} has {graph.agents}"
            )
        if self.links == "masked":
            require_sums(graph)
        parse_algorithm(self.algorithm)
        parse_partition(self.partition)
        self._check_own()
        torch_device(self.device)
        if self.stepsize:
            parse_stepsize(self.stepsize)
        if (self.journal or self.start_over) and not self.checkpoint:
            raise DistributedError(
                "a journal and starting over concern a checkpoint folder, and none was given"
            )
        if min(self.epochs, self.batch_size, self.rounds or 1) < 1 or self.rounds == 0:
            raise DistributedError(
                f"epochs is {self.epochs}, batch size {self.batch_size} and rounds {self.rounds}; "
                "all must be at least 1"
            )
        return graph.agents

    def _check_own(self) -> None:
        """Raise unless the user's files have what they are named for."""
        for text in (self.model, self.loss):
            if text is not None:
                if not is_in_file(text):
                    raise ProblemError(f"{text!r} names no function; accepted: FILE.py:NAME")
                function_in(text, ProblemError)
        if self.model:
            _require_call(self.model, ProblemError, "without arguments")
        if is_in_file(self.data):
            _require_call(self.data, DataError, "as NAME(agent, agents)", 0, 1)
            if self.partition != Training.partition:
                raise DataError(
                    f"the partition {self.partition} divides the images that we ship; {self.data} "
                    "gives each agent its own data: leave the partition out"
                )


def _require_call(text: str, error: type[SottovoceError], how: str, *given: int) -> None:
    """Raise unless the function FILE.py:NAME can be called with these arguments."""
    function = function_in(text, error)
    try:
        inspect.signature(function).bind(*given)
    except TypeError:
        own = inspect.signature(function)
        raise error(f"{text} is called {how}, and takes {own}") from None
    except ValueError:  # Written in C: no signature is known.
        return


def torch_device(text: str) -> torch.device:
    """The device of a text, such as `cuda`; raise if this machine has none."""
    try:
        device = torch.device(text)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise DistributedError(
            f"the device {text!r} cannot be used here ({reason}); accepted: cpu, or cuda where "
            "torch finds a GPU"
        ) from error
    return device


def train(
    training: Training,
    *,
    agents: int | None = None,
    max_restarts: int = 0,
    heard: Callable[[dict[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    """Run a training under torchrun on loopback; `heard` is called with each report as it arrives.

    The result holds the settings and, for each epoch and agent, loss and accuracy on samples that
    training never sees.
    """
    number = training.check(agents)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(number), "--max-restarts", str(max_restarts)),
        *("-m", "sottovoce.distributed.train_worker", json.dumps(asdict(training))),
    ]
    threads = str(max(1, torch.get_num_threads() // number))
    reports: dict[tuple[int, int], dict[str, Any]] = {}
    faults: list[dict[str, Any]] = []
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
                if line.startswith(FAULT):
                    faults.append(json.loads(line.removeprefix(FAULT)))
                    continue
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
        # An agent that lost another one says less than the one that was lost.
        told = sorted(faults, key=lambda fault: fault["kind"] == "PeerLost")[:1]
        why = "; ".join(f"agent {fault['agent']}: {fault['text']}" for fault in told)
        raise DistributedError(
            f"the training ended with exit code {code}; {why or 'what the agents said is above'}"
        )
    return {
        "training": asdict(training),
        "agents": number,
        "reports": [reports[key] for key in sorted(reports)],
    }
