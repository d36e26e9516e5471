"""Identities and agreements for tests."""

from pathlib import Path
from typing import Any

from sottovoce.federation.agreement import Agreement, Member, Terms
from sottovoce.federation.identity import Identity, create_identity, read_card
from sottovoce.federation.toml import read_toml

TRAINING = "00112233445566ff"


def identities(folder: Path, names: str, listen: bool = True, port: int = 7000) -> list[Identity]:
    """One identity for each letter-name, with its files in `folder`."""
    return [
        create_identity(name, f"127.0.0.1:{port + at}" if listen else None, folder)[0]
        for at, name in enumerate(names.split())
    ]


def member(folder: Path, name: str) -> Member:
    card = folder / f"{name}.card"
    return Member(read_card(card), read_toml(card, "a card")["signature"])


def agreement(folder: Path, names: str, graph: str, **terms: Any) -> Agreement:
    """An agreement between identities whose cards are in `folder`."""
    members = tuple(member(folder, name) for name in names.split())
    asked = Terms(**{"graph": graph, "rounds": 20, **terms})
    return Agreement(training=TRAINING, members=members, terms=asked)
