"""`sottovoce train`: real agents, one process each, on this machine."""

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sottovoce.cli.fields import with_options
from sottovoce.cli.options import AS_JSON, GRAPH, INSECURE_SEED, WEIGHTS
from sottovoce.cli.show import answers, print_json, print_list, say
from sottovoce.distributed import launch
from sottovoce.distributed.boards import TensorBoard
from sottovoce.distributed.federated import Federation
from sottovoce.errors import FederationError
from sottovoce.federation.agreement import read_agreement
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.training_account import TrainingAccount
from sottovoce.studies.settings import build, option

_NAMES = {"epsilon": "ε"}


@dataclass(frozen=True, kw_only=True)
class _Options:
    agents: int | None = option(None, "Processes to start; the graph's size unless given.")
    graph: str = option("ring:5", GRAPH)
    algorithm: str = option(
        "pdsgd", "pdsgd, dsgd, ..., or what `sottovoce plan` prints: dp-pdsgd:0.004:0.013:1.0."
    )
    stepsize: str | None = option(
        None, "Such as uniform:0.3/k, k counting epochs unless block= is given; 2:falling=940."
    )
    epochs: int = option(5, "Passes over an agent's data.", min=1)
    rounds: int | None = option(
        None, "Rounds in an epoch; 100 with data of your own unless given.", min=1
    )
    batch_size: int = option(32, "Samples in a gradient.", min=1)
    model: str | None = option(
        None, "FILE.py:FUNCTION of your own: FUNCTION() returns the torch module to train."
    )
    loss: str | None = option(
        None, "FILE.py:FUNCTION of outputs and targets; cross entropy unless given."
    )
    data: str = option(
        "subset",
        "subset, mnist, fashion-mnist, or FILE.py:FUNCTION of your own: FUNCTION(agent, agents) "
        "returns what this agent trains on and validates with.",
    )
    partition: str = option("equal", "Who holds which images: equal, dirichlet:0.5, shards:2.")
    weights: str = option("metropolis", WEIGHTS)
    private_start: float = option(
        0.0, "Standard deviation of private numbers added to the starting point."
    )
    checkpoint: Path | None = field(
        default=None, metadata={"help": "Folder to save to after each epoch and to resume from."}
    )
    links: str = option(
        "plain", "masked: agents see the sum of their neighbours' messages and no message."
    )
    journal: bool = option(
        False, "Keep in that folder what is sent, before it is sent: no round is done again."
    )
    start_over: bool = option(False, "Remove what is in that folder, and begin.")
    device: str = option("cpu", "Where the models are: cpu, or cuda.")
    out: Path | None = field(
        default=None, metadata={"help": "Folder for the trained weights, a file for each agent."}
    )
    tensorboard: Path | None = field(
        default=None, metadata={"help": "Folder for TensorBoard's curves (needs tensorboard)."}
    )
    delta: float = option(1e-5, "With a clip and noise: the δ at which ε is said.")
    adversary: str = option("eavesdropper", "Against whom ε is said: eavesdropper or agents:0,2.")
    ledger: Path | None = field(
        default=None, metadata={"help": "Ledger of the data set, where this training is entered."}
    )
    max_restarts: int = option(0, "How often to restart all agents after one is lost.", min=0)
    timeout: float = option(60.0, "Seconds after which a silent agent counts as lost.")
    patience: float = option(
        600.0, "With --federation: seconds that a neighbour may be away.", option="--patience"
    )
    insecure_seed: int | None = option(None, INSECURE_SEED)
    federation: Path | None = field(
        default=None,
        metadata={"help": "An agreement: train as one member of it, over TLS (with --key)."},
    )
    key: Path | None = field(default=None, metadata={"help": "With --federation: NAME.key."})
    as_json: bool = option(False, AS_JSON, option="--json")


def _train(asked: _Options) -> None:
    """Train with one process for each agent, under torchrun on this machine.

    Without --model and --data: a small CNN on images of MNIST that come with the package.
    """
    folders = {
        name: given and str(given.absolute())
        for name, given in (("checkpoint", asked.checkpoint), ("out", asked.out))
    }
    training = build(launch.Training, {**vars(asked), **folders})
    if asked.federation is not None or asked.key is not None:
        _train_as_member(asked, training)
        return
    training.check(asked.agents)
    kept = Ledger(asked.ledger, training.data) if asked.ledger else None
    account = TrainingAccount(training, asked.adversary, kept, asked.max_restarts)
    if kept is not None and not account.bounded:
        say("Nothing is proved for this algorithm: the ledger's total becomes unbounded.")

    # Whatever ends this process stops the agents, which the terminal's signals do not reach.
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        signal.signal(number, signal.default_int_handler)
    reports: list[dict[str, Any]] = []
    with _board(asked) as board:

        def heard(report: dict[str, Any]) -> None:
            report = account.heard(report)
            reports.append(report)
            if board:
                board(report)
            if not asked.as_json:
                answers.print(_line(report))

        result = launch.train(
            training, agents=asked.agents, max_restarts=asked.max_restarts, heard=heard
        )
    found = account.end()
    if asked.as_json:
        latest = {(one["epoch"], one["agent"]): one for one in reports}
        result["reports"] = [latest[key] for key in sorted(latest)]
        result["guarantee"] = found and found.to_json()
        result["ledger"] = kept and {"epsilon": kept.epsilon(asked.delta), **kept.to_json()}
        print_json(result)
        return
    print_list([*(found.findings() if found else ()), *(_total(kept, asked.delta))])


def _total(kept: Ledger | None, delta: float) -> list[str]:
    return [f"Ledger {kept.path}: {line}" for line in kept.findings(delta)] if kept else []


def _train_as_member(asked: _Options, training: launch.Training) -> None:
    """Train the same model as one agent of an agreement, which says all that members share."""
    from sottovoce.cli.federated import Running, run_agent
    from sottovoce.distributed.federated.built_in import train_task

    if asked.federation is None or asked.key is None:
        raise FederationError("--federation FEDERATION.toml and --key NAME.key belong together")
    agreement = read_agreement(asked.federation)

    def train(federation: Federation) -> None:
        with _board(asked) as board:
            for report in train_task(federation, training, agreement):
                if board:
                    board(report)
                answers.print(_line(report))

    run_agent(Running(asked.federation, asked.key, patience=asked.patience), train, asked.as_json)


def _board(
    asked: _Options,
) -> AbstractContextManager[Callable[[dict[str, Any]], None] | None, None]:
    """Where reports are drawn as curves, if anywhere."""
    return TensorBoard(asked.tensorboard) if asked.tensorboard else nullcontext()


def _line(report: dict[str, Any]) -> str:
    """A report on one line: epoch, agent, then each number by its name."""
    shown = {name: value for name, value in report.items() if name not in ("epoch", "agent")}
    numbers = [f"{_NAMES.get(name, name)} {_shown(value)}" for name, value in shown.items()]
    return "  ".join([f"epoch {report['epoch']:>3}", f"agent {report['agent']:>3}", *numbers])


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


train = with_options(_train, _Options)
