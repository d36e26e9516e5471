"""The commands of a federation: what they print, and what they refuse."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sottovoce.cli.app import app
from sottovoce.errors import FederationError, SottovoceError
from sottovoce.federation.agreement import read_agreement
from sottovoce.federation.signatures import Signatures, sign_agreement
from sottovoce.federation.state import StateFolder

from federated import identities, member  # isort: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str) -> Any:
    """What a command prints as JSON; an error of this library is raised as it is."""
    done = CliRunner().invoke(app, [*arguments, "--json"])
    if isinstance(done.exception, SottovoceError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def invited(names: str = "anna ben carla", graph: str = "ring:3", *more: str) -> Any:
    cards = [f"{name}.card" for name in names.split()]
    return call("invite", *cards, "--graph", graph, "--rounds", "10", *more)


def test_identity_invite_join(folder: Path) -> None:
    made = [call("identity", name, "--listen", f"127.0.0.1:700{i}") for i, name in enumerate("ab")]
    made.append(call("identity", "c", "--no-listen"))
    agreed = invited("a b c")
    assert [one["fingerprint"] for one in agreed["members"]] == [m["fingerprint"] for m in made]
    assert "listen" not in agreed["members"][2]
    missing = [
        call("join", "federation.toml", "--key", f"{name}.key", "--yes")["missing"]
        for name in "abc"
    ]
    assert missing == [["b", "c"], ["c"], []]


def test_a_person_is_asked_before_a_signature_is_made(folder: Path) -> None:
    identities(folder, "anna ben carla")
    invited()
    command = ["join", "federation.toml", "--key", "anna.key"]
    done = CliRunner().invoke(app, command, input="n\n")
    assert done.exit_code == 1
    with pytest.raises(FederationError, match="with --json nobody is asked"):
        call(*command)
    assert not list(folder.glob("*.signature"))
    done = CliRunner().invoke(app, command, input="y\n")
    assert done.exit_code == 0
    assert (folder / "federation.anna.signature").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["identity", "anna"], "--listen HOST:PORT"),
        (["identity", "anna", "--listen", "here", "--no-listen"], "--listen HOST:PORT"),
        (["identity", "a/b", "--no-listen"], "not a name"),
        (["identity", "anna", "--listen", "here"], "not an address"),
        (["invite", "anna.card"], "cannot be read"),
        (["join", "federation.toml", "--key", "anna.key"], "cannot be read"),
        (["status", "--key", "anna.key"], "holds no training"),
        (["agent", "federation.toml", "script.py", "--key", "anna.key"], "no script"),
    ],
)
def test_what_is_missing_is_said(folder: Path, arguments: list[str], reason: str) -> None:
    with pytest.raises(FederationError, match=reason):
        call(*arguments)


def test_what_cannot_be_agreed_is_refused(folder: Path) -> None:
    identities(folder, "anna ben carla")
    for graph, more, reason in (
        ("ring:4", [], "has 4 agents"),
        ("path:3", ["--links", "masked"], "one neighbour"),
        ("ring:3", ["--links", "open"], "plain, masked"),
        ("ring:3", ["--algorithm", "nothing"], "nothing"),
        ("ring:3", ["--stepsize", "fast"], "fast"),
        ("ring:3", ["--fact", "novalue"], "KEY=VALUE"),
        ("", [], "ring:3"),
    ):
        with pytest.raises(SottovoceError, match=reason):
            invited("anna ben carla", graph, *more)
    assert not (folder / "federation.toml").exists()
    warned = invited("anna ben carla", "ring:3", "--links", "masked")["warnings"]
    assert "two neighbours each" in warned[0]
    with pytest.raises(FederationError, match="exists"):
        invited()


def test_a_stranger_and_a_careless_owner_cannot_join(folder: Path) -> None:
    identities(folder, "anna ben carla eve")
    invited()
    with pytest.raises(FederationError, match="none of the members"):
        call("join", "federation.toml", "--key", "eve.key")
    (folder / "anna.key").chmod(0o644)
    with pytest.raises(FederationError, match="0644"):
        call("join", "federation.toml", "--key", "anna.key")


def test_an_agent_without_key_or_signature_does_not_start(folder: Path) -> None:
    identities(folder, "anna ben carla")
    invited()
    (folder / "script.py").write_text("raise SystemExit('started')")
    with pytest.raises(FederationError, match="nothing is sent without a key"):
        call("agent", "federation.toml", "script.py", "--key", "nobody.key")
    with pytest.raises(FederationError, match="anna has not signed"):
        call("agent", "federation.toml", "script.py", "--key", "anna.key")
    with pytest.raises(FederationError, match="belong together"):
        call("train", "--federation", "federation.toml")


def test_leave_and_drop_write_wishes(folder: Path) -> None:
    (anna, *_) = identities(folder, "anna ben carla dora")
    invited("anna ben carla dora", "ring:4")
    with pytest.raises(FederationError, match="start the agent first"):
        call("leave", "federation.toml", "--key", "anna.key")
    agreed = read_agreement("federation.toml")
    state = StateFolder.beside("anna.key", agreed.training)
    state.make()
    state.enter(agreed, 0)
    state.keep_signatures(Signatures(agreed, {"anna": sign_agreement(agreed, anna)}))
    assert call("leave", "federation.toml", "--key", "anna.key")["leaves"] == "anna"
    assert state.leaving(agreed) is not None
    dropped = call("drop", "carla", "federation.toml", "--key", "anna.key", "--yes")
    with pytest.raises(FederationError, match="with --json nobody is asked"):
        call("drop", "ben", "federation.toml", "--key", "anna.key")
    assert [one["name"] for one in dropped["members"]] == ["anna", "ben", "dora"]
    assert dropped["needed"] == ["ben", "dora"]
    with pytest.raises(FederationError, match="sottovoce leave"):
        call("drop", "anna", "federation.toml", "--key", "anna.key")


def test_a_late_member_is_invited_into_an_agreement(folder: Path) -> None:
    identities(folder, "anna ben carla dora")
    invited()
    command = ["invite", "dora.card", "--into", "federation.toml", "--out", "next.toml"]
    with pytest.raises(FederationError, match="--linked-to"):
        call(*command)
    call(*command, "--linked-to", "anna,carla")
    after = read_agreement("next.toml")
    assert after.members[3] == member(folder, "dora")
    assert after.previous == read_agreement("federation.toml").digest
