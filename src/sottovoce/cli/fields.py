"""Commands made from settings: a field of the dataclass is an option of the command."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from inspect import Parameter, Signature, getdoc
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from sottovoce.cli.options import AS_JSON
from sottovoce.cli.show import finish, say, show_progress
from sottovoce.storage.execution import Execution
from sottovoce.storage.store import lock
from sottovoce.studies.settings import build, flag, option, options


@dataclass(frozen=True, kw_only=True)
class _Common:
    """Options that every such command has."""

    out: Path = field(default=Path(), metadata={"help": "Folder for data and pictures."})
    as_json: bool = option(False, AS_JSON, option="--json")
    fresh: bool = option(
        False, "Compute everything anew, whatever an earlier run has left.", option="--fresh"
    )
    report: bool = option(False, "Write report.html too: all of it on one page.", option="--report")


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

    def work(asked: Any, how: _Common) -> None:
        folder = how.out / parts
        execution = Execution(folder, how.fresh, show_progress(), partial(say, style="dim"))
        with _locked(folder, shared):
            show(run(asked, execution), how.out, how.as_json, how.report)
            if temporary:
                shutil.rmtree(folder)

    work.__doc__ = getdoc(run)
    return with_options(work, settings, _Common, out=out)


def with_options(run: Callable[..., None], *settings: type, **defaults: Any) -> Callable[..., None]:
    """A command whose options are the fields of `settings`, and its help `run`'s docstring.

    `run` gets one object of each class. defaults: used in place of a field's own.
    """
    parameters = [one for kind in settings for one in _parameters(kind, defaults)]

    def call(**given: Any) -> None:
        values = {one.name: given.get(one.name, one.default) for one in parameters}
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        run(*(build(kind, values) for kind in settings))

    call.__doc__, call.__annotations__ = getdoc(run), {}
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return call


def _parameters(settings: type, defaults: Mapping[str, Any]) -> Iterator[Parameter]:
    for one, hint in options(settings):
        default: Any = defaults.get(one.name, one.default)
        if get_origin(hint) is tuple:
            hint, default = list.__class_getitem__(get_args(hint)[0]), list(default)
        # typer itself makes --x/--no-x of a yes or no that has no name of its own.
        names = () if hint is bool and "option" not in one.metadata else (flag(one),)
        described: Any = typer.Option(
            *names, help=one.metadata["help"], min=one.metadata.get("min")
        )
        if one.metadata.get("argument"):
            described, default = typer.Argument(help=one.metadata["help"]), Parameter.empty
        hint = Annotated[hint, described]
        yield Parameter(one.name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)


@contextmanager
def _locked(folder: Path, shared: bool) -> Iterator[None]:
    """Hold the folder; where the work left nothing in it, leave no folder either."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    with lock(folder, shared):
        try:
            yield
        finally:
            if made and len(list(folder.glob("*"))) < 2:
                (folder / ".lock").unlink(missing_ok=True)
            with suppress(OSError):
                for path in made:
                    path.rmdir()
