"""The tutorial docs/guides/organisations.md, played: its commands, its script, real processes."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs/guides/organisations.md"
COMMAND = "import sys; sys.argv[0] = 'sottovoce'; from sottovoce.cli import main; main()"
MEMBERS = ("anna", "ben", "carla")

pytestmark = pytest.mark.integration


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def start(arguments: list[str], folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def call(arguments: list[str], folder: Path, code: int = 0) -> str:
    process = start(arguments, folder)
    out, said = process.communicate(timeout=120)
    assert process.returncode == code, said
    return out if not code else said


def commands(heading: str) -> list[str]:
    """The lines that begin with `sottovoce` in the first block below a heading."""
    text = TUTORIAL.read_text("utf-8").partition(f"## {heading}")[2]
    block = re.search(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert block, heading
    lines = block[1].replace("\\\n", " ").splitlines()
    return [line.partition("#")[0].strip() for line in lines if line.startswith("sottovoce")]


def script() -> str:
    """The script that the tutorial prints."""
    block = re.search(r"^```python\n(.*?)^```$", TUTORIAL.read_text("utf-8"), re.M | re.S)
    assert block
    assert block[1] == (ROOT / "examples/train_federation.py").read_text("utf-8")
    return block[1]


@pytest.fixture
def ports() -> dict[str, str]:
    """Free ports in place of the tutorial's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        found = [str(door.getsockname()[1]) for door in (one, two)]
    return dict(zip(("7001", "7002"), found, strict=True))


@pytest.mark.thorough
def test_three_people_follow_the_tutorial(tmp_path: Path, ports: dict[str, str]) -> None:
    identities = commands("1. Everybody: make a key and a card")
    (invite,) = commands("2. One person: prepare the agreement")
    join = commands("3. Everybody: compare, and sign")[0]
    agent = commands("4. Everybody: train")[0]
    folders = {name: tmp_path / name for name in MEMBERS}
    for line, name in zip(identities, MEMBERS, strict=True):
        folders[name].mkdir()
        for old, new in ports.items():
            line = line.replace(old, new)
        call([*line.split()[1:], "--json"], folders[name])
        (tmp_path / f"{name}.card").write_bytes((folders[name] / f"{name}.card").read_bytes())
    shorter = re.sub(r"--rounds \d+", "--rounds 45", invite)
    assert shorter != invite
    agreed = json.loads(call([*shorter.split()[1:], "--json"], tmp_path))
    for name, folder in folders.items():
        (folder / "federation.toml").write_bytes((tmp_path / "federation.toml").read_bytes())
        (folder / "train.py").write_text(script())
        signed = json.loads(
            call([*join.replace("anna", name).split()[1:], "--yes", "--json"], folder)
        )
        assert signed["fingerprint"] == agreed["fingerprint"]
        assert signed["signed_by"] == name
    processes = {
        name: start([*agent.replace("anna", name).split()[1:], "--json"], folder)
        for name, folder in folders.items()
    }
    for name, process in processes.items():
        out, said = process.communicate(timeout=240)
        assert process.returncode == 0, said
        status = json.loads(out)
        assert (status["round"], status["finished"]) == (45, True)
        accuracy = re.search(rf"{name}: accuracy (\S+)", said)
        assert accuracy
        assert float(accuracy[1]) > 0.7
    # The folder of every member has its own files alone.
    for name, folder in folders.items():
        assert [path.name for path in folder.glob("*.key")] == [f"{name}.key"]
    (told,) = json.loads(
        call(["status", "--key", "anna.key", "--verify", "--json"], folders["anna"])
    )
    assert told["verified"] == {"lines": told["log"]["lines"], "last": told["log"]["last"]}
    log = next((folders["anna"] / "anna.state").glob("*/audit.jsonl"))
    log.write_text(log.read_text().replace('"round": 7,', '"round": 8,'))
    call(["status", "--key", "anna.key", "--verify"], folders["anna"], code=1)
