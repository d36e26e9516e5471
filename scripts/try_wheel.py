"""Build an sdist and a wheel, install the wheel in a clean environment and try it as a user would.

    python scripts/try_wheel.py        # with the environment of `make`, which has the build tools

The wheel is built from the sdist. Both must hold the files that git knows, and no others. The
environment lies outside the checkout, in a folder whose name has a space and an accent; it gets
the versions of constraints.txt, and is removed at the end.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = SETTINGS["project"]
COPIED = SETTINGS["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
"""Documents' data that the wheel holds, too: from where, and as what."""
DATA_LICENCE = "src/sottovoce/problems/data/files/LICENSE"

USE = f"""
from importlib.metadata import metadata
from pathlib import Path

import sottovoce
from sottovoce import PDSGD, Estimation, ring, simulate
from sottovoce.problems.data.sets import load

assert "site-packages" in sottovoce.__file__, sottovoce.__file__
assert sottovoce.__version__ == {PROJECT["version"]!r}, sottovoce.__version__
result = simulate(Estimation.random(agents=5), PDSGD(), ring(5), steps=20, runs=3)
assert result.final.shape == (3, 5, 2), result.final.shape
data = load()
assert (len(data.training.labels), len(data.validation.labels)) == (5000, 1000)
about = metadata("sottovoce")
assert about["License-Expression"] == {PROJECT["license"]!r}, about["License-Expression"]
assert {DATA_LICENCE!r} in about.get_all("License-File")
folder = Path(sottovoce.__file__).parent
for name in ("py.typed", "problems/data/files/README.md", "problems/data/files/LICENSE"):
    assert (folder / name).is_file(), name
from sottovoce.studies.claims.entry import reference
assert len(reference().data["rows"]) == 180
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command away from the checkout's sources and show what it said where it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}error: {command} ended with {done.returncode}")
    return done.stdout


def tracked() -> set[str]:
    """The files that git knows, or none where there is no repository."""
    try:
        done = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return set()
    return set(filter(None, done.stdout.split("\0")))


def compare(what: str, found: Iterable[str], expected: set[str]) -> None:
    """End with an error unless an archive holds what was expected."""
    missing, more = sorted(expected - set(found)), sorted(set(found) - expected)
    if missing or more:
        sys.exit(f"error: the {what} lacks {missing}; git does not know its files {more}")
    print(f"{what}: {len(expected)} files, those of git")


def compare_archives(sdist: Path, wheel: Path) -> None:
    """Hold the contents of both archives against git's list."""
    known = tracked()
    if not known:
        print("no repository: contents of the archives were not compared")
        return
    with tarfile.open(sdist) as archive:
        names = [PurePosixPath(one.name) for one in archive if one.isfile()]
    inside = {str(PurePosixPath(*name.parts[1:])) for name in names} - {"PKG-INFO"}
    compare("sdist", inside, known)
    with zipfile.ZipFile(wheel) as packed:
        inside = {name for name in packed.namelist() if ".dist-info/" not in name}
    package = {name.removeprefix("src/") for name in known if name.startswith("src/")}
    compare("wheel", inside, package | set(COPIED.values()))


def main() -> None:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sottovoce wheel é ") as name:
        work = Path(name)
        dist, environment, elsewhere = work / "dist", work / "environment", work / "elsewhere"
        elsewhere.mkdir()
        # Without isolation the pinned build tools are used, and nothing is downloaded for them.
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, ROOT, cwd=elsewhere)
        (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
        compare_archives(sdist, wheel)
        venv.create(environment, with_pip=True)
        python = environment / "bin" / "python"
        pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check")
        run(*pip, "install", "-c", ROOT / "constraints.txt", wheel, cwd=elsewhere)
        run(*pip, "check", cwd=elsewhere)
        program = environment / "bin" / "sottovoce"
        version = run(program, "--version", cwd=elsewhere).strip()
        if version != PROJECT["version"]:
            sys.exit(f"error: --version says {version}, pyproject.toml {PROJECT['version']}")
        for arguments in (("graph", "ring:5"), ("check",), ("check", "--json")):
            if not run(program, *arguments, cwd=elsewhere):
                sys.exit(f"error: sottovoce {' '.join(arguments)} printed nothing")
        run(python, "-W", "error", "-c", USE, cwd=elsewhere)
        left = sorted(path.name for path in elsewhere.iterdir())
        if left:
            sys.exit(f"error: trying the wheel left {left} behind")
        print(f"{wheel.name} works in a clean environment ({time.monotonic() - begun:.0f} s)")


if __name__ == "__main__":
    main()
