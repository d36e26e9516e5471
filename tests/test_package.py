"""What a user gets before calling anything: a light import, a version, one family of errors."""

import ast
import inspect
import json
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import sottovoce
from sottovoce import errors

ROOT = Path(__file__).parents[1]
HEAVY = {
    "altair",
    "cryptography",
    "matplotlib",
    "pandas",
    "pooch",
    "rich",
    "safetensors",
    "typer",
    "vl_convert",
}


def test_import_loads_no_optional_machinery() -> None:
    code = "import json, sys, sottovoce; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in json.loads(done.stdout)}
    assert "sottovoce" in loaded
    assert loaded & (HEAVY | {"torch", "numpy", "scipy", "networkx"}) == set()


def test_version_is_that_of_the_installed_package() -> None:
    try:
        installed = metadata.version("sottovoce")
    except metadata.PackageNotFoundError:
        pytest.skip("sottovoce runs from its sources and is not installed")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sottovoce.__version__ == installed == project["version"]


def test_package_tells_type_checkers_that_it_is_typed() -> None:
    assert Path(sottovoce.__file__).with_name("py.typed").is_file()


def test_every_error_is_of_one_family() -> None:
    family = [one for _, one in inspect.getmembers(errors, inspect.isclass)]
    assert len(family) > 5
    assert all(issubclass(one, errors.SottovoceError) for one in family)
    assert issubclass(errors.SottovoceError, ValueError)


def test_public_names_exist() -> None:
    assert len(set(sottovoce.__all__)) == len(sottovoce.__all__)
    assert [name for name in sottovoce.__all__ if not hasattr(sottovoce, name)] == []
    assert set(sottovoce.__all__) <= set(dir(sottovoce))
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        sottovoce.nonsense  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(sottovoce.__file__).read_text("utf-8"))
    block = next(one for one in tree.body if isinstance(one, ast.If))
    seen = {
        (alias.name, f"{imported.module}")
        for imported in block.body
        if isinstance(imported, ast.ImportFrom)
        for alias in imported.names
    }
    assert seen == {(name, f"sottovoce.{room}") for name, room in sottovoce._HOME.items()}
