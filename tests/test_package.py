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
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
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
    assert sottovoce.__version__ == installed == PROJECT["version"]


def test_changelog_has_the_version() -> None:
    assert f"\n## {PROJECT['version']} - " in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_shipped_data_carry_their_licence() -> None:
    assert PROJECT["license"] == "MIT AND CC-BY-SA-3.0 AND CC-BY-4.0"
    texts = [(ROOT / name).read_text("utf-8") for name in PROJECT["license-files"]]
    assert [text.partition("\n")[0] for text in texts] == [
        "MIT License",
        "Creative Commons Legal Code",
        'The records in this folder are a sample of the dataset "Adult":',
        "The speeches in this folder are by William Shakespeare (1564 to 1616) and are in the "
        "public domain.",
    ]
    assert "Attribution-ShareAlike 3.0 Unported" in texts[1]
    folder = Path(sottovoce.__file__).parent / "problems" / "data" / "files"
    assert (folder / "LICENSE").samefile(ROOT / PROJECT["license-files"][1])
    assert "`LICENSE`" in (folder / "README.md").read_text("utf-8")


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
    stub = ast.parse(Path(sottovoce.__file__).with_suffix(".pyi").read_text("utf-8"))
    seen = {
        (alias.name, alias.asname, imported.module)
        for imported in stub.body
        if isinstance(imported, ast.ImportFrom)
        for alias in imported.names
    }
    assert seen == {(name, name, room) for name, room in sottovoce._HOME.items()}
    assert {"PDSGD", "ring", "simulate"} < set(sottovoce._HOME)
