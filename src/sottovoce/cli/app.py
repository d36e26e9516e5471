"""`sottovoce`: its commands, and what every one of them does on a wrong argument."""

import os
import sys
from typing import Annotated

import torch
import typer

from sottovoce import __version__
from sottovoce.cli import audit, demo, inspect, report, reproduce, train
from sottovoce.cli.show import notes
from sottovoce.errors import SottovoceError

app = typer.Typer(
    name="sottovoce",
    help="Private decentralized training: agents learn one model and talk to neighbours only.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(reproduce.app, name="reproduce", help="Repeat the paper's experiments.")
app.command("check")(inspect.check)
app.command("bound")(inspect.bound)
app.command("graph")(inspect.graph)
app.command("audit")(audit.audit)
app.command("report")(report.report)
app.command("train")(train.train)
app.command("demo")(demo.demo)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


def _use_idle_cores() -> None:
    """Give torch no more threads than there are idle cores, unless OMP_NUM_THREADS says how many.

    Threads that share a core wait for one another in every operation (docs/speed.md).
    """
    if "OMP_NUM_THREADS" not in os.environ and hasattr(os, "getloadavg"):
        idle = round((os.cpu_count() or 1) - os.getloadavg()[0])
        torch.set_num_threads(max(1, min(torch.get_num_threads(), idle)))


def main() -> None:
    """Run the command line; exit with 0 when fine, 1 when a check failed, 2 on bad usage."""
    _use_idle_cores()
    try:
        app(prog_name="sottovoce")
    except SottovoceError as error:
        notes.print(f"{type(error).__name__}: {error}", markup=False, soft_wrap=True)
        sys.exit(2)
    except OSError as error:
        notes.print(f"cannot read or write: {error}", markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        notes.print("interrupted")
        sys.exit(130)
