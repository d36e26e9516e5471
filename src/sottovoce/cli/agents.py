"""`sottovoce train`: real agents, one process each, on this machine."""

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sottovoce.cli.fields import with_options
from sottovoce.cli.options import AS_JSON, GRAPH, INSECURE_SEED, WEIGHTS
from sottovoce.cli.show import answers, print_json
from sottovoce.distributed import launch
from sottovoce.studies.settings import build, option


@dataclass(frozen=True, kw_only=True)
class _Options:
    agents: int | None = option(None, "Processes to start; the graph's size unless given.")
    graph: str = option("ring:5", GRAPH)
    algorithm: str = option(
        "pdsgd", "pdsgd, pdsgd:coordinate, zero-sum:0.1, dsgd or noisy-dsgd:0.01."
    )
    stepsize: str | None = option(
        None, "Such as uniform:0.3/k; k counts epochs unless block= is given."
    )
    epochs: int = option(5, "Passes over an agent's data.", min=1)
    batch_size: int = option(32, "Images in a gradient.", min=1)
    data: str = option("subset", "subset, mnist or fashion-mnist.")
    partition: str = option("equal", "Who holds which images: equal, dirichlet:0.5, shards:2.")
    weights: str = option("metropolis", WEIGHTS)
    private_start: float = option(
        0.0, "Standard deviation of private numbers added to the starting point."
    )
    checkpoint: Path | None = field(
        default=None, metadata={"help": "Folder to save to after each epoch and to resume from."}
    )
    max_restarts: int = option(0, "How often to restart all agents after one is lost.", min=0)
    timeout: float = option(60.0, "Seconds after which a silent agent counts as lost.")
    insecure_seed: int | None = option(None, INSECURE_SEED)
    as_json: bool = option(False, AS_JSON, option="--json")


def _train(asked: _Options) -> None:
    """Train a CNN on MNIST with one process for each agent, under torchrun on this machine."""
    folder = asked.checkpoint and str(asked.checkpoint.absolute())
    training = build(launch.Training, {**vars(asked), "checkpoint": folder})

    def show(report: dict[str, Any]) -> None:
        if not asked.as_json:
            answers.print(
                f"epoch {report['epoch']:>3}  agent {report['agent']:>3}  "
                f"accuracy {report['accuracy']:.3f}"
            )

    # Whatever ends this process stops the agents, which the terminal's signals do not reach.
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        signal.signal(number, signal.default_int_handler)
    result = launch.train(
        training, agents=asked.agents, max_restarts=asked.max_restarts, heard=show
    )
    if asked.as_json:
        print_json(result)


train = with_options(_train, _Options)
