"""Sphinx extension of the documentation site: what the program itself can say of itself.

Comments in a page are replaced before it is read:

    <!-- api: sottovoce.graphs -->      the public names of a module, from their docstrings
    <!-- commands -->                   every command with its options, from the command line
    <!-- studies -->                    every study with the command that repeats it
    <!-- document: SECURITY.md -->      a document of the repository's root

Links to such documents lead to their pages on the site. A public name that no page shows is a
warning, which `make docs` makes an error.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from sphinx.util import logging

import sottovoce
from docstrings import restructured

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = {
    "CHANGELOG": "/project/changelog.md",
    "CONTRIBUTING": "/project/contributing.md",
    "README": "/index.md",
    "SECURITY": "/project/security.md",
}
_TO_ROOT = re.compile(rf"\]\((?:\.\./)*({'|'.join(DOCUMENTS)})\.md(#[^)]*)?\)")
_MARK = re.compile(r"^<!-- (api|commands|studies|document)(?:: ([\w.]+))? -->$", re.MULTILINE)

_log = logging.getLogger(__name__)
_shown: set[str] = set()


def read(app: Any, docname: str, source: list[str]) -> None:
    """Replace the marks in a page, and lead links to documents of the root to their pages."""
    source[0] = linked(_MARK.sub(lambda mark: MAKERS[mark[1]](mark[2] or ""), source[0]))


def linked(text: str) -> str:
    """Links to documents of the root as links to their pages."""
    return _TO_ROOT.sub(lambda link: f"]({DOCUMENTS[link[1]]}{link[2] or ''})", text)


def document(name: str) -> str:
    """A document of the root; its links count from the root."""
    text = (ROOT / name).read_text("utf-8")
    return re.sub(r"\]\(docs/", "](/", text)


def api(module: str) -> str:
    """The public names of a module or of a room, as directives of autodoc."""
    if module == "sottovoce.distributed":
        names = [f"{module}.{name}" for name in import_module(module).__all__]
    elif module == "sottovoce.errors":
        public = inspect.getmembers(import_module(module), inspect.isclass)
        names = [f"{module}.{name}" for name, _ in public]
    else:
        homes = sottovoce._HOME.items()
        names = [f"sottovoce.{name}" for name, home in homes if f"{home}.".startswith(f"{module}.")]
    names = [name for name in names if name not in _shown]
    _shown.update(names)
    return rst(line for name in names for line in _directive(name))


def _directive(name: str) -> Iterator[str]:
    home, _, leaf = name.rpartition(".")
    thing = getattr(import_module(home), leaf)
    if inspect.isclass(thing):
        kind = "exception" if issubclass(thing, BaseException) else "class"
        yield from (f".. auto{kind}:: {name}", "   :members:")
        if thing.__bases__ != (object,):
            yield "   :show-inheritance:"
        yield ""
    elif callable(thing):
        yield from (f".. autofunction:: {name}", "")
    else:
        yield from (f".. autodata:: {name}", "   :no-value:", "")


def commands(_: str) -> str:
    """Every command in a line, then each with its help and options."""
    from typer.main import get_command

    from sottovoce.cli.app import COMMANDS, app

    group: Any = get_command(app)
    lines = (f"- [`{name}`](#sottovoce-{name}): {line}" for name, (_, line) in COMMANDS.items())
    found = ["\n".join(lines), "## sottovoce", _options("sottovoce", group)]
    for name, (_place, line) in COMMANDS.items():
        command = group._loaded(name)
        title = f"sottovoce {name}"
        below = getattr(command, "commands", {})
        found += [f"## {title}", line if below else _help(command), _options(title, command)]
        for leaf, one in below.items():
            found += [f"### {title} {leaf}", _help(one), _options(f"{title} {leaf}", one)]
    return "\n\n".join(found)


def _help(command: Any) -> str:
    return inspect.cleandoc(command.help or "")


def _options(program: str, command: Any) -> str:
    lines = [f".. program:: {program}", ""]
    for one in command.params:
        # Every command lists --quiet among its own options; it is shown once.
        if one.hidden or (one.name == "quiet" and program != "sottovoce"):
            continue
        flag = getattr(one, "is_flag", False)
        value = "" if flag else f" {_VALUES.get(one.type_descriptor.annotation, 'text')}"
        argument = one.param_type_name == "argument"
        names = [one.name.upper()] if argument else [*one.opts, *one.secondary_opts]
        shown = names if argument else [f"{name}{value}" for name in names]
        lines += [".. option:: " + ", ".join(shown), ""]
        text = " ".join(restructured((one.help or "").splitlines()))
        again = " May be given several times." if getattr(one, "multiple", False) else ""
        lines += [f"   {text}{again}{_default(one)}", ""]
    return rst(lines)


_VALUES = {int: "number", float: "number", Path: "path"}


def _default(option: Any) -> str:
    default = option.default
    if default is None or default in ((), [], "") or isinstance(default, bool) or callable(default):
        return ""
    shown = ", ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)
    return f" Default: ``{shown}``."


def studies(_: str) -> str:
    """Every study with its command, as a list."""
    from sottovoce.studies.study import kinds

    lines = []
    for name, kind in sorted(kinds().items()):
        if kind.settings and kind.run:
            first = (inspect.getdoc(kind.run) or "").partition("\n")[0]
            lines.append(f"- `sottovoce reproduce {name}`: {first}")
    return "\n".join(lines)


def rst(lines: Iterator[str] | list[str]) -> str:
    """A block in reStructuredText, which a page in Markdown may hold."""
    return "\n".join(["```{eval-rst}", *lines, "```"])


MAKERS: dict[str, Callable[[str], str]] = {
    "api": api,
    "commands": commands,
    "document": document,
    "studies": studies,
}


def forget(app: Any) -> None:
    """Begin to count the names that pages show."""
    _shown.clear()


def require_every_name(app: Any, env: Any) -> None:
    """Warn of public names that no page shows."""
    for name, home in sottovoce._HOME.items():
        if not {f"sottovoce.{name}", f"{home}.{name}"} & _shown:
            _log.warning("no page of docs/reference/api shows the public name %s", name)


def write_docstring(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """A docstring as reStructuredText, its arguments as a list."""
    try:
        parameters = list(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        parameters = []
    lines[:] = restructured(lines, parameters)


def write_signature(
    app: Any, what: str, name: str, thing: Any, options: Any, signature: str | None, result: str
) -> tuple[str | None, str]:
    """A signature that can be parsed: the value that a factory makes is left open."""
    return signature and signature.replace("<factory>", "..."), result


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("builder-inited", forget)
    app.connect("source-read", read)
    app.connect("env-updated", require_every_name)
    app.connect("autodoc-process-docstring", write_docstring)
    app.connect("autodoc-process-signature", write_signature)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
