"""The tree of the package: rooms in one order, no cycles, small modules, short signatures."""

from pathlib import Path

import pytest

import sottovoce
from import_graph import ROOMS, Tree, room

PACKAGE = Path(sottovoce.__file__).parent

MOST_LINES = 400
# typer reads a command's options from its parameters; a Triton kernel takes pointers and sizes.
FREE_SIGNATURES = ("cli", "kernels.device")
# What may be asked of an object that a user passed: is it a mechanism, is it a part of one?
MECHANISM_BASES = {"Mechanism", "Part"}


def expect_none(faults: list[str]) -> None:
    """Show every fault: pytest's own message names the first."""
    assert not faults, "\n".join(faults)


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree(PACKAGE)


def test_every_module_is_in_a_room(tree: Tree) -> None:
    assert {room(name) for name in tree.modules} - set(ROOMS) == set()


def test_no_module_imports_from_a_later_room(tree: Tree) -> None:
    expect_none(tree.upward(ROOMS))


def test_no_modules_import_one_another(tree: Tree) -> None:
    expect_none(tree.cycle())


def test_no_function_takes_many_parameters(tree: Tree) -> None:
    expect_none(tree.signatures(FREE_SIGNATURES))


def test_no_module_is_long(tree: Tree) -> None:
    assert {name: count for name, count in tree.lines.items() if count > MOST_LINES} == {}


def test_no_module_is_named_like_a_function_that_it_exports(tree: Tree) -> None:
    expect_none(tree.namesakes())


def test_nobody_asks_a_mechanism_for_its_type(tree: Tree) -> None:
    expect_none(tree.type_tests("mechanisms", MECHANISM_BASES))


def test_what_breaks_a_rule_is_found(tmp_path: Path) -> None:
    package = tmp_path / "house"
    for name, text in {
        "__init__.py": "from house.low import low\n",
        "low.py": "def low():\n    from . import high\n",
        "high/__init__.py": "from house.high.attic import stairs\n",
        "high/attic.py": "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from house.high import stairs\n"
        "class Named: ...\n"
        "class Base: ...\n"
        "class Many:\n    def __init__(self, a, b, /, c, d, *e, f, g, h, **i): ...\n",
        "cli/__init__.py": "import house.high.attic as a\n"
        "def ask(x):\n"
        "    if isinstance(x, int | a.Named) or type(x) is a.Named or isinstance(x, a.Base): ...\n"
        "    match x:\n        case a.Named(): ...\n",
    }.items():
        file = package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    tree = Tree(package)
    assert tree.upward(("low", "high", "", "cli")) == ["low:2 imports high"]
    assert tree.upward(("high", "low", "", "cli")) == []
    assert set(tree.cycle()) == {"high", "high.attic"}
    assert tree.signatures(free=("cli",)) == ["high.attic.__init__ takes 9 parameters"]
    assert tree.signatures(free=("high",)) == []
    assert sorted(tree.namesakes()) == [
        "house exports low, and has such a module",
        "low defines low()",
    ]
    assert tree.type_tests("high", {"Base"}) == [
        *["cli:3 asks whether something is a Named"] * 2,
        "cli:5 asks whether something is a Named",
    ]
