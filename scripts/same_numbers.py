"""Show that a change keeps the numbers: dump what the studies compute, change, compare.

    python scripts/same_numbers.py dump before/
    ... change the code ...
    python scripts/same_numbers.py dump after/
    python scripts/same_numbers.py compare before/ after/

`dump` runs the commands below with `--insecure-seed 1 --json` in one thread and keeps their JSON.
`--source` names the `src` folder of another checkout. `compare` lists every numeric field that
differs, and exits with 1 if any does. About 12 minutes on one core; `--only` chooses some.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COMMANDS = {
    "bound": ["reproduce", "bound"],
    "estimation": ["reproduce", "estimation", "--insecure-seed", "1"],
    "rates": ["reproduce", "rates", "--insecure-seed", "1"],
    "mnist": ["reproduce", "mnist", "--insecure-seed", "1"],
    "leakage": ["reproduce", "leakage", "--insecure-seed", "1"],
    "demo": ["demo", "--no-open", "--insecure-seed", "1"],
}


def dump(folder: Path, source: Path, names: list[str]) -> None:
    """Run each command with the package in `source` and keep its JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    for name in names:
        with tempfile.TemporaryDirectory() as out:
            start = "import sys; from sottovoce.cli import main; sys.argv[0] = 'sottovoce'; main()"
            command = [sys.executable, "-c", start, *COMMANDS[name], "--json", "--out", out]
            print(f"{name} ...", flush=True)
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        (folder / f"{name}.json").write_bytes(done.stdout)


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a JSON value with the path that leads to it."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from numbers(part, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for at, part in enumerate(value):
            yield from numbers(part, f"{path}.{at}")
    elif isinstance(value, int | float):
        yield path, value


def compare(before: Path, after: Path, shown: int) -> int:
    """Print how many numbers are equal, and those that are not; return how many differ."""
    different = 0
    for first in sorted(before.glob("*.json")):
        second = after / first.name
        if not second.exists():
            print(f"{first.stem}: was not dumped again")
            different += 1
            continue
        old, new = (dict(numbers(json.loads(file.read_text()))) for file in (first, second))
        changed = [path for path in old.keys() & new.keys() if old[path] != new[path]]
        gone, added = old.keys() - new.keys(), new.keys() - old.keys()
        equal = len(old.keys() & new.keys()) - len(changed)
        print(
            f"{first.stem}: {equal:,} equal, {len(changed):,} changed, {len(gone):,} gone, "
            f"{len(added):,} added"
        )
        for path in sorted(changed)[:shown]:
            print(f"  {path}: {old[path]!r} -> {new[path]!r}")
        for path in sorted(gone)[:shown]:
            print(f"  {path}: {old[path]!r} is gone")
        different += len(changed) + len(gone)
    return different


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    actions = parser.add_subparsers(dest="action", required=True)
    making = actions.add_parser("dump")
    making.add_argument("folder", type=Path)
    making.add_argument("--source", type=Path, default=Path(__file__).parent.parent / "src")
    making.add_argument("--only", action="append", choices=list(COMMANDS))
    comparing = actions.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--shown", type=int, default=20)
    asked = parser.parse_args()
    if asked.action == "dump":
        dump(asked.folder, asked.source, asked.only or list(COMMANDS))
    elif compare(asked.before, asked.after, asked.shown):
        sys.exit(1)


if __name__ == "__main__":
    main()
