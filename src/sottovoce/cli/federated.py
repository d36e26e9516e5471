"""`sottovoce agent`, `status`, `leave` and `drop`: one organisation's agent while it trains."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.federation import (
    FILE,
    KEY,
    STATE,
    described,
    member_identity,
    require_consent,
    show,
)
from sottovoce.cli.options import AS_JSON
from sottovoce.cli.show import answers, print_json, print_rows, print_written, say
from sottovoce.errors import FederationError, PrivacyError
from sottovoce.federation.agreement import Agreement, read_agreement
from sottovoce.federation.audit_log import verify_log
from sottovoce.federation.changes import Leave, without
from sottovoce.federation.signatures import Signatures, read_signatures, sign_agreement
from sottovoce.federation.state import StateFolder

if TYPE_CHECKING:
    from sottovoce.distributed import DecentralizedSGD
    from sottovoce.distributed.federated import Federation

_PATIENCE = typer.Option(help="Seconds that a neighbour may be away before this agent gives up.")
_METRICS = typer.Option(help="Port on 127.0.0.1 for Prometheus; none unless given.")
_BIND = typer.Option(help="HOST:PORT to listen at, where it is not what the card says.")


@dataclass(frozen=True)
class Running:
    """How an agent is started: its agreement and key, and what is its own affair."""

    file: Path
    key: Path
    state: Path | None = None
    bind: str | None = None
    patience: float = 600.0
    metrics: int | None = None


def agent(
    file: Annotated[Path, FILE],
    script: Annotated[Path, typer.Argument(help="The training script.")],
    key: Annotated[Path, KEY],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="For the script; after -- where they begin with -.")
    ] = None,
    state: Annotated[Path | None, STATE] = None,
    bind: Annotated[str | None, _BIND] = None,
    patience: Annotated[float, _PATIENCE] = 600.0,
    metrics: Annotated[int | None, _METRICS] = None,
    as_json: Annotated[bool, typer.Option("--json", help=AS_JSON)] = False,
) -> None:
    """Train with a script, as one member of an agreement; started again, it goes on where it was.

    The script asks `sottovoce.distributed.federation()` for its optimizer.
    """
    import runpy

    if not script.is_file():
        raise FederationError(f"there is no script {script}")

    def run(federation: "Federation") -> None:
        sys.argv = [str(script), *(arguments or ())]
        sys.path.insert(0, str(script.resolve().parent))
        runpy.run_path(str(script), run_name="__main__")

    run_agent(Running(file, key, state, bind, patience, metrics), run, as_json)


def run_agent(
    running: Running, train: Callable[["Federation"], object], as_json: bool
) -> dict[str, Any] | None:
    """Train as a member; print its status where JSON is asked for, and return it."""
    agreement = read_agreement(running.file)
    identity = member_identity(agreement, running.key)
    folder = StateFolder.beside(running.key, agreement.training, running.state)
    known = folder.status()
    if known.get("finished") or known.get("left"):
        how = "The training is finished" if known.get("finished") else f"{identity.name} has left"
        say(f"{how}: {folder.folder} has its log. Nothing was done.")
        if as_json:
            print_json(known)
        return known
    from sottovoce.distributed.federated import AgentSettings, Departed, Federation
    from sottovoce.distributed.federated.session import start
    from sottovoce.federation.metrics import MetricsServer
    from sottovoce.storage.store import lock

    settings = AgentSettings(running.bind, running.patience, _spent)
    folder.make()
    with lock(folder.folder):
        signatures = read_signatures(running.file, agreement)
        federation = Federation(agreement, identity, folder, signatures, settings)
        server = (
            MetricsServer(running.metrics, federation.monitor.text) if running.metrics else None
        )
        start(federation)
        names = [federation.agreement.names[j] for j in _neighbours(federation)]
        say(
            f"{identity.name}: agent {federation.agent} of {federation.agents}; neighbours: "
            f"{', '.join(names)}. Waiting for them."
        )
        try:
            with _quiet_stdout(as_json):
                train(federation)
                federation.close()
        except Departed as left:
            say(f"{left}.")
        except BaseException as error:
            federation.abandon(type(error).__name__)
            raise
        finally:
            start(None)
            federation.monitor.write()
            if server:
                server.close()
    found = folder.status()
    if as_json:
        print_json(found)
    else:
        say(_line(found))
    return found


def status(
    key: Annotated[Path, KEY],
    state: Annotated[Path | None, STATE] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every line of the log against its hash.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help=AS_JSON)] = False,
) -> None:
    """Say where this agent stands: peers, rounds, ε, and whether its log is whole.

    Exit code 1 where `--verify` finds that a log was altered.
    """
    root = key.with_suffix(".state") if state is None else state
    found = sorted(path.parent for path in root.glob("*/audit.jsonl"))
    if not found:
        raise FederationError(f"{root} holds no training; `sottovoce agent` makes one")
    answers_by_training, broken = [], False
    for path in found:
        folder = StateFolder(root, path.name)
        about = {"training": path.name, **folder.status(), "editions": folder.history()}
        if verify:
            try:
                about["verified"] = verify_log(folder.log, _noted(about))._asdict()
            except FederationError as error:
                about["verified"], broken = {"fault": str(error)}, True
        answers_by_training.append(about)
    if as_json:
        print_json(answers_by_training)
    else:
        for about in answers_by_training:
            _show_status(about)
    if broken:
        raise typer.Exit(1)


def leave(
    file: Annotated[Path, FILE],
    key: Annotated[Path, KEY],
    state: Annotated[Path | None, STATE] = None,
    as_json: Annotated[bool, typer.Option("--json", help=AS_JSON)] = False,
) -> None:
    """Sign a notice that this member leaves; its agent brings it to the next meeting.

    It takes effect after that meeting's round. A leave that would part the others is refused.
    """
    folder, current = _current(file, key, state)
    identity = member_identity(current, key)
    after = without(current, [identity.name], "leaves")
    written = folder.wish_to_leave(Leave.of(current, identity))
    every = current.terms.meet_every
    if as_json:
        print_json({"leaves": identity.name, "edition": after.edition, "meet_every": every})
        return
    print_written([written])
    say(f"{identity.name} leaves after the next round that {every} divides, if its agent runs.")


def drop(
    name: Annotated[str, typer.Argument(help="The member that is to be dropped.")],
    file: Annotated[Path, FILE],
    key: Annotated[Path, KEY],
    state: Annotated[Path | None, STATE] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Sign without asking.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help=AS_JSON)] = False,
) -> None:
    """Sign that the training goes on without a member, such as one that does not come back.

    All who remain must do so, and then start their agents again: those begin a new epoch from the
    states that they have, with fresh private numbers.
    """
    folder, current = _current(file, key, state)
    identity = member_identity(current, key)
    if name == identity.name:
        raise FederationError(f"{name} is this member itself; use `sottovoce leave`")
    after = without(current, [name], "is dropped")
    require_consent(yes, as_json)
    if not as_json:
        show(after)
    if not yes:
        typer.confirm(f"Go on without {name}?", abort=True, err=True)
    own = Signatures(after, {identity.name: sign_agreement(after, identity)})
    written = folder.propose(after, own)
    others = [one for one in after.names if one != identity.name]
    if as_json:
        print_json({**described(after), "signed_by": identity.name, "needed": others})
        return
    print_written([written])
    say(f"{', '.join(others)} must run the same command. Then stop and start all agents.")


def _current(file: Path, key: Path, state: Path | None) -> tuple[StateFolder, Agreement]:
    """The state folder of an agent, and the edition that it trains."""
    agreement = read_agreement(file)
    folder = StateFolder.beside(key, agreement.training, state)
    current = folder.current()
    if current is None:
        raise FederationError(f"{folder.folder} holds no training; start the agent first")
    return folder, current


def _noted(status: dict[str, Any]) -> tuple[int, str] | None:
    """The last line of the log, as the agent's status has it."""
    log = status.get("log", {})
    return (log["lines"], log["last"]) if log.get("lines") else None


def _neighbours(federation: "Federation") -> list[int]:
    return federation.agreement.graph.neighbours(federation.agent)


def _spent(optimizer: "DecentralizedSGD", delta: float) -> float | None:
    """ε of this agent's records against an eavesdropper, None where nothing is proved.

    Noise that agents share, or that reaches over rounds, is not accounted over a change of members,
    nor are rounds under other settings.
    """
    from sottovoce.mechanisms import shares_edges
    from sottovoce.privacy.spending import Charge, Meter
    from sottovoce.simulation.transcript import Setting

    done, algorithm = optimizer.executions, optimizer.algorithm
    reaches = any(part.reach for part in algorithm.parts)
    if done.otherwise or (done.epoch and (reaches or shares_edges(algorithm, optimizer.graph))):
        return None
    if algorithm.bound is None or optimizer.batch is None or not done.samples:
        return None
    if delta * done.samples >= 1:
        raise PrivacyError(
            f"δ = {delta:g} is not below 1 over the records of this agent: publishing one of them "
            "whole would pass as private; agree on a smaller δ"
        )
    setting = Setting(optimizer.graph, algorithm, optimizer.stepsize)
    shown = (optimizer.batch, optimizer.poisson, optimizer.streams.seeded)
    meter = Meter(setting, "eavesdropper", delta, *shown)
    # A member that came late is charged as if it had been there from the first round on.
    charge = Charge(done.rounds, max(0, done.redone), done.samples)
    return meter(optimizer.agent, charge).epsilon


def _line(status: dict[str, Any]) -> str:
    spent = status.get("epsilon")
    why = f" ({status['unproved']})" if status.get("unproved") else ""
    none = f"nothing is proved{why}"
    proved = none if spent is None else f"ε = {spent:.3g} at δ = {status['delta']:g}"
    ends = [word for word in ("finished", "left") if status.get(word)]
    done = ends[0] if ends else "not finished"
    place = f"round {status.get('round')} of {status.get('rounds')}"
    return f"{status.get('name')}: {place}, {done}; {proved}."


def _show_status(about: dict[str, Any]) -> None:
    answers.print(f"training {about['training']}, edition {about.get('edition', 0)}")
    answers.print(_line(about))
    rows = [
        (name, "yes" if one.get("linked") else "no", one.get("sent", 0), one.get("received", 0))
        for name, one in about.get("peers", {}).items()
    ]
    print_rows("Neighbours", ("name", "connected", "sent", "received"), rows)
    for one in about["editions"][1:]:
        answers.print(f"after round {one['after_round']}: {one['change']}", markup=False)
    log = about.get("log", {})
    answers.print(f"log: {log.get('lines')} lines, last hash {log.get('last')}", soft_wrap=True)
    if verified := about.get("verified"):
        fault = verified.get("fault")
        whole = f"the chain of {verified.get('lines')} lines holds"
        answers.print(f"NOT WHOLE: {fault}" if fault else whole, soft_wrap=True)


@contextmanager
def _quiet_stdout(as_json: bool) -> Iterator[None]:
    """Let what a script prints go to stderr where stdout is for JSON."""
    if as_json:
        with redirect_stdout(sys.stderr):
            yield
    else:
        yield
