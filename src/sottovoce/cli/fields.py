"""Commands made from settings: a field of the dataclass is an option of the command."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import MISSING
from inspect import Parameter, Signature, getdoc
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from sottovoce.cli.show import finish, notes, show_progress
from sottovoce.storage.execution import Execution
from sottovoce.storage.store import lock
from sottovoce.studies.settings import build, flag, options

_COMMON: dict[str, tuple[Any, str, str]] = {
    "as_json": (False, "--json", "Print JSON alone on stdout."),
    "quiet": (False, "--quiet", "Say nothing on stderr unless something is wrong."),
    "fresh": (False, "--fresh", "Compute everything anew, whatever an earlier run has left."),
    "report": (False, "--report", "Write report.html too: all of it on one page."),
}


def command(
    settings: type,
    run: Callable[[Any, Execution], Any],
    out: Path,
    show: Callable[[Any, Path, bool, bool], None] = finish,
    parts: str = "checkpoint",
    temporary: bool = False,
    shared: bool = False,
) -> Callable[..., None]:
    """A command whose options are the fields of `settings`, and its help `run`'s docstring.

    out: the folder for files unless `--out` names another. show: gets what `run` returns, the
    folder, and whether `--json` and `--report` were given. parts: the subfolder that unfinished
    work is kept in, locked meanwhile; temporary: whether it goes once the answer is written;
    shared: whether other processes may work there, too.
    """

    def call(**given: Any) -> None:
        common = {name: given.pop(name) for name in (*_COMMON, "out")}
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
        folder = common["out"]
        asked = build(settings, values)
        execution = Execution(
            folder / parts, common["fresh"], show_progress() and not common["quiet"], _say
        )
        notes.quiet = common["quiet"]
        try:
            with _locked(folder / parts, shared):
                show(run(asked, execution), folder, common["as_json"], common["report"])
                if temporary:
                    shutil.rmtree(folder / parts)
        finally:
            notes.quiet = False

    call.__doc__ = getdoc(run)
    call.__signature__ = Signature([*_parameters(settings), *_common(out)])  # type: ignore[attr-defined]
    call.__annotations__ = {}
    return call


@contextmanager
def _locked(folder: Path, shared: bool) -> Iterator[None]:
    """Hold the folder; where the work left nothing in it, leave no folder either."""
    with lock(folder, shared):
        try:
            yield
        finally:
            if folder.exists() and [path.name for path in folder.iterdir()] == [".lock"]:
                shutil.rmtree(folder)
            with suppress(OSError):
                folder.parent.rmdir()


def _say(line: str) -> None:
    notes.print(line, style="dim", markup=False, soft_wrap=True)


def _parameters(settings: type) -> Iterator[Parameter]:
    for one, hint in options(settings):
        default: Any = ... if one.default is MISSING else one.default
        if get_origin(hint) is tuple:
            hint, default = list.__class_getitem__(get_args(hint)[0]), list(default)
        # typer itself makes --x/--no-x of a yes or no.
        names = () if hint is bool else (flag(one),)
        described = typer.Option(*names, help=one.metadata.get("help"), min=one.metadata.get("min"))
        yield _parameter(one.name, hint, default, described)


def _common(out: Path) -> Iterator[Parameter]:
    described = typer.Option("--out", help="Folder for data and pictures.")
    yield _parameter("out", Path, out, described)
    for name, (default, option, help) in _COMMON.items():
        yield _parameter(name, bool, default, typer.Option(option, help=help))


def _parameter(name: str, hint: Any, default: Any, described: Any) -> Parameter:
    kind = Parameter.KEYWORD_ONLY
    return Parameter(name, kind, default=default, annotation=Annotated[hint, described])
