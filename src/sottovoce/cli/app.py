"""`sottovoce`: its commands, loaded when called, and what each does on a wrong argument."""

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sottovoce import __version__
from sottovoce.errors import SottovoceError

COMMANDS = {
    "demo": ("pages:demo", "Train, eavesdrop on the messages, and show what they reveal."),
    "studio": ("listening:studio", "Serve a local page on which one trains, listens in, and sees."),
    "listen": ("listening:listen", "Train as the studio does, and say what one listener gets."),
    "train": ("agents:train", "Train with one process for each agent on this machine."),
    "plan": ("plan:plan", "Find the noise and the setting that keep a target ε."),
    "ledger": ("plan:show_ledger", "Say what all trainings on a data set cost together."),
    "check": ("theory:check", "Decide every assumption of the theorems, with its number."),
    "bound": ("theory:bound", "Say how uncertain an observer of the messages remains."),
    "graph": ("inspect:graph", "Describe a graph and its mixing matrix."),
    "audit": ("audit:audit", "Train, record the messages, attack them, and say what leaked."),
    "claims": ("claims:claims", "Put every published claim on one table, with a word for each."),
    "enter": ("entry:enter", "Score a mechanism of your own beside the published ones."),
    "reproduce": ("reproduce:app", "Repeat the paper's experiments."),
    "report": ("pages:report", "Write one HTML page from saved results."),
    "identity": ("federation:identity", "Make this organisation's key and card."),
    "invite": ("federation:invite", "Prepare an agreement between organisations."),
    "join": ("federation:join", "Check an agreement between organisations, and sign it."),
    "agent": ("federated:agent", "Train with a script as one organisation's agent."),
    "status": ("federated:status", "Say where this organisation's agent stands."),
    "leave": ("federated:leave", "Leave a training between organisations."),
    "drop": ("federated:drop", "Go on without a member that does not come back."),
}
"""Name: its place (`module:name` in sottovoce.cli, a function or a Typer) and its line of help."""


_FAULTS: dict[type[Exception], str] = {
    OSError: "cannot read or write",
    MemoryError: "not enough memory",
    OverflowError: "a number is too large",
}


def _be_quiet(asked: bool) -> None:
    if asked:
        from sottovoce.cli.show import notes

        notes.quiet = True


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit()


class _Commands(TyperGroup):
    """A group that imports the module of a command only when that command is called.

    Listings and completion of command names see stand-ins that have a line of help alone.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, (_, line) in COMMANDS.items():
            self.add_command(TyperCommand(name, help=line, rich_markup_mode=None))

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        name, found, rest = super().resolve_command(context, arguments)
        return name, self._loaded(name) if found and name else found, rest

    def _loaded(self, name: str) -> Any:
        place, line = COMMANDS[name]
        module, _, attribute = place.partition(":")
        found = getattr(import_module(f"sottovoce.cli.{module}"), attribute)
        parent = typer.Typer(add_completion=False, rich_markup_mode=None)
        parent.callback()(lambda: None)
        if isinstance(found, typer.Typer):
            parent.add_typer(found, name=name, help=line)
        else:
            parent.command(name)(found)
        group: Any = typer.main.get_command(parent)
        command = group.commands[name]
        quiet = [option for option in self.params if option.name == "quiet"]
        for each in (command, *getattr(command, "commands", {}).values()):
            each.params += quiet
        return command


app = typer.Typer(
    cls=_Commands,
    help="Private decentralized training: agents learn one model and talk to neighbours only.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            "-q",
            callback=_be_quiet,
            expose_value=False,
            is_eager=True,
            help="Print nothing on stderr but errors.",
        ),
    ] = False,
) -> None:
    pass


def _use_idle_cores() -> None:
    """Give torch no more threads than there are idle cores, unless OMP_NUM_THREADS says how many.

    Threads that share a core wait for one another in every operation (docs/results/speed.md).
    Torch reads the variable when it is imported.
    """
    if hasattr(os, "getloadavg"):
        cores = os.cpu_count() or 1
        idle = max(1, min(cores, round(cores - os.getloadavg()[0])))
        os.environ.setdefault("OMP_NUM_THREADS", str(idle))


def main() -> None:
    """Run the command line.

    Exit code: 0 when all is well, 1 when a check failed, 2 on bad usage, 3 when an audit's controls
    failed, 130 when interrupted.
    """
    _use_idle_cores()
    code = 2
    try:
        app(prog_name="sottovoce")
        return
    except SottovoceError as error:
        fault = f"{type(error).__name__}: {error}"
    except tuple(_FAULTS) as error:
        kind = next(words for one, words in _FAULTS.items() if isinstance(error, one))
        fault = f"{kind}: {error}"
        if isinstance(error, OSError) and error.filename is not None:
            fault = f"{kind} {error.filename}: {error.strerror}"
    except (KeyboardInterrupt, SystemExit) as stopped:
        # Typer turns an interruption within a command into the exit code 130 and says nothing.
        if getattr(stopped, "code", 130) != 130:
            raise
        fault, code = "interrupted", 130
    typer.echo(fault, err=True)
    sys.exit(code)
