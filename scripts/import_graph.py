"""Which module of the package imports which, read from the sources."""

import ast
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

# A module imports from its own room and from those before it.
ROOMS = (
    "version",
    "errors",
    "storage",
    "charts",
    "kernels",
    "graphs",
    "randomness",
    "stepsizes",
    "mechanisms",
    "problems",
    "simulation",
    "federation",
    "distributed",
    "privacy",
    "studies",
    "report",
    "studio",
    "",  # the package itself: what a user imports
    "cli",
)
MOST_PARAMETERS = 8


class Tree:
    """The modules of a package by dotted name below the package: "graphs.mixing"; "" is itself.

    Where a stub is beside a module, its imports are those of the stub.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: dict[str, ast.Module] = {}
        self.lines: dict[str, int] = {}
        self.packages: set[str] = set()
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            stub = file.with_suffix(".pyi")
            text = (stub if stub.exists() else file).read_text("utf-8")
            self.modules[name], self.lines[name] = ast.parse(text), len(text.splitlines())
            if parts[-1] == "__init__":
                self.packages.add(name)

    def imports(self, name: str) -> Iterator[tuple[int, str]]:
        """Line and module of every import from the package, in functions and for types, too."""
        for node in ast.walk(self.modules[name]):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._found(node.lineno, alias.name.split("."))
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    yield from self._found(node.lineno, [*self._source(name, node), alias.name])

    def _source(self, name: str, node: ast.ImportFrom) -> list[str]:
        """The module that `from ... import` names, written out where it is relative."""
        named = node.module.split(".") if node.module else []
        if not node.level:
            return named
        here = [self.folder.name, *filter(None, name.split("."))]
        return here[: len(here) + (name in self.packages) - node.level] + named

    def _found(self, line: int, parts: list[str]) -> Iterator[tuple[int, str]]:
        """The module itself, or the module that holds the name."""
        if parts[0] == self.folder.name:
            below = parts[1:]
            while below and ".".join(below) not in self.modules:
                below = below[:-1]
            yield line, ".".join(below)

    def upward(self, rooms: tuple[str, ...]) -> list[str]:
        """Imports from a room that comes later."""
        return [
            f"{name}:{line} imports {other or self.folder.name}"
            for name in self.modules
            for line, other in self.imports(name)
            if rooms.index(room(other)) > rooms.index(room(name))
        ]

    def cycle(self) -> list[str]:
        """Modules that import one another, if any do.

        That `import a.b` runs `a/__init__.py` first is no edge: it is so in every package.
        """
        edges = {name: {other for _, other in self.imports(name)} for name in self.modules}
        try:
            TopologicalSorter(edges).prepare()
        except CycleError as error:
            return list(error.args[1])
        return []

    def signatures(self, free: tuple[str, ...]) -> list[str]:
        """Functions that take too many parameters, `self` and `cls` not counted."""
        found = []
        for name, module in self.modules.items():
            if any(name == one or name.startswith(f"{one}.") for one in free):
                continue
            for node in ast.walk(module):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                    count = len(parameters(node.args))
                    if count > MOST_PARAMETERS:
                        shown = getattr(node, "name", "lambda")
                        found.append(f"{name}.{shown} takes {count} parameters")
        return found

    def namesakes(self) -> list[str]:
        """Modules that share their name with a public function that they hold or hide."""
        found = []
        for name, module in self.modules.items():
            for node in module.body:
                if isinstance(node, ast.FunctionDef) and node.name == name.split(".")[-1]:
                    found.append(f"{name} defines {node.name}()")
                if name in self.packages and isinstance(node, ast.ImportFrom):
                    source = ".".join(self._source(name, node)[1:])
                    found += [
                        f"{name or self.folder.name} exports {alias.name}, and has such a module"
                        for alias in node.names
                        if f"{name}.{alias.name}".lstrip(".") in self.modules
                        and f"{source}.{alias.name}".lstrip(".") not in self.modules
                    ]
        return found

    def type_tests(self, room_of_types: str, allowed: set[str]) -> list[str]:
        """Questions outside a room whether an object is of one of the room's own types."""
        types = {
            node.name
            for name, module in self.modules.items()
            if room(name) == room_of_types
            for node in module.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
        } - allowed
        return [
            f"{name}:{line} asks whether something is a {kind}"
            for name, module in self.modules.items()
            if room(name) != room_of_types
            for line, kind in asked_types(module)
            if kind in types
        ]


def room(name: str) -> str:
    return name.split(".")[0]


def parameters(arguments: ast.arguments) -> list[str]:
    """Names of all parameters but `self` and `cls`."""
    places = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    if places[:1] in (["self"], ["cls"]):
        places = places[1:]
    rest = [one.arg for one in (arguments.vararg, arguments.kwarg) if one]
    return places + [one.arg for one in arguments.kwonlyargs] + rest


def asked_types(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Types in isinstance and issubclass, compared with `type(...)`, or matched by `case`."""
    for node in ast.walk(module):
        types: Iterable[ast.expr] = ()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            types = node.args[1:] if node.func.id in ("isinstance", "issubclass") else ()
        elif isinstance(node, ast.MatchClass):
            types = (node.cls,)
        elif isinstance(node, ast.Compare) and "type(" in ast.unparse(node):
            types = (node.left, *node.comparators)
        for expression in types:
            for part in ast.walk(expression):
                if isinstance(part, ast.Name | ast.Attribute):
                    yield expression.lineno, part.id if isinstance(part, ast.Name) else part.attr
