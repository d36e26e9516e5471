"""The folder of one agent in one training: NAME.state/TRAINING beside its key.

    agreement.toml        the edition that is trained        signatures.json   all its signatures
    history.json          when each edition began            audit.jsonl       see `audit_log`
    status.json           where the agent stands             edition-0/ ...    journal, checkpoints
    meeting.json          what was brought to the last meeting
    proposals/            wishes that were signed here: leave.json, edition-1.toml, ...

It is for the agent's owner alone: below edition-N are its model and its keys.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.errors import FederationError
from sottovoce.federation.agreement import Agreement, agreement_of, read_agreement
from sottovoce.federation.changes import Leave
from sottovoce.federation.signatures import Signatures
from sottovoce.storage.files import remove_unfinished, write_json


class StateFolder:
    """What an agent keeps about a federation from start to start."""

    def __init__(self, root: str | Path, training: str) -> None:
        self.folder = Path(root) / training

    @classmethod
    def beside(
        cls, key: str | Path, training: str, root: str | Path | None = None
    ) -> "StateFolder":
        """The folder of the agent with this key; root: another place than beside the key."""
        return cls(Path(key).with_suffix(".state") if root is None else root, training)

    @property
    def log(self) -> Path:
        return self.folder / "audit.jsonl"

    @property
    def proposals(self) -> Path:
        return self.folder / "proposals"

    def rounds_folder(self, edition: int) -> Path:
        """Where the optimizer of an edition keeps journal and checkpoints."""
        return self.folder / f"edition-{edition}"

    def make(self) -> None:
        """Make the folder, for its owner alone."""
        self.proposals.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.chmod(self.folder, 0o700)

    def tidy(self) -> None:
        """Remove what an agent that was killed while it wrote has left; for the agent alone."""
        for folder in (self.folder, *self.folder.glob("edition-*"), *self.folder.glob("*/agent-*")):
            remove_unfinished(folder)

    def current(self) -> Agreement | None:
        """The edition that is trained, None before the first start."""
        path = self.folder / "agreement.toml"
        return read_agreement(path) if path.exists() else None

    def signatures(self, agreement: Agreement) -> Signatures:
        """What is known here of an edition's signatures."""
        kept = self._read("signatures.json").get(agreement.digest, {})
        return Signatures(agreement, kept if isinstance(kept, dict) else {})

    def keep_signatures(self, signatures: Signatures) -> None:
        """Add an edition's signatures to those that are kept."""
        known = self._read("signatures.json")
        known[signatures.agreement.digest] = dict(signatures.by_name)
        write_json(self.folder / "signatures.json", known)

    def enter(
        self, agreement: Agreement, after_round: int, leaves: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Make an edition the one that is trained, from the round after `after_round` on.

        leaves: the notices that it rests on. An edition that was entered before stays as it is.
        """
        history = self.history()
        if not any(one["digest"] == agreement.digest for one in history):
            about = {"edition": agreement.edition, "digest": agreement.digest}
            about |= {"change": agreement.change, "leaves": [dict(one) for one in leaves]}
            history.append({**about, "after_round": after_round})
        write_json(self.folder / "history.json", {"editions": history})
        agreement.write(self.folder / "agreement.toml")

    def history(self) -> list[dict[str, Any]]:
        """The editions that were trained, and after which round each began."""
        return list(self._read("history.json").get("editions", []))

    def propose(self, agreement: Agreement, signatures: Signatures) -> Path:
        """Lay out an edition that this member signed, for the agent to take up."""
        self.make()
        path = self.proposals / f"edition-{agreement.edition}.json"
        known = signatures.by_name
        if path.exists() and (before := self._proposal(path)) and before[0] == agreement:
            known = before[1].by_name | known
        write_json(path, {"agreement": agreement.content, "signatures": known})
        return path

    def proposed(self, current: Agreement) -> tuple[Agreement, Signatures] | None:
        """The edition after `current` that this member signed, if there is one."""
        path = self.proposals / f"edition-{current.edition + 1}.json"
        found = self._proposal(path) if path.exists() else None
        return found if found and found[0].previous == current.digest else None

    def wish_to_leave(self, leave: Leave) -> Path:
        """Lay out a notice to leave, for the agent to take up."""
        self.make()
        write_json(self.proposals / "leave.json", leave.to_json())
        return self.proposals / "leave.json"

    def leaving(self, current: Agreement) -> Leave | None:
        """The notice to leave the current edition, if there is one."""
        said = self._read("proposals/leave.json")
        return Leave.from_json(said, current) if said.get("agreement") == current.digest else None

    def wishes(self, round: int, digest: str) -> dict[str, Any] | None:
        """What was brought to the meeting after `round` of an edition, if it was held."""
        kept = self._read("meeting.json")
        return (
            kept["wishes"] if (kept.get("round"), kept.get("digest")) == (round, digest) else None
        )

    def keep_wishes(self, round: int, digest: str, wishes: Mapping[str, Any]) -> None:
        """Keep what is brought to a meeting before anybody hears it."""
        about = {"round": round, "digest": digest, "wishes": dict(wishes)}
        write_json(self.folder / "meeting.json", about)

    def status(self) -> dict[str, Any]:
        """Where the agent stands, as it last wrote it."""
        return self._read("status.json")

    def keep_status(self, status: Mapping[str, Any]) -> None:
        write_json(self.folder / "status.json", dict(status))

    def _proposal(self, path: Path) -> tuple[Agreement, Signatures] | None:
        content = self._load(path)
        agreement = agreement_of(content.get("agreement", {}), str(path))
        return agreement, Signatures(agreement, content.get("signatures", {}))

    def _read(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        return self._load(path) if path.exists() else {}

    def _load(self, path: Path) -> dict[str, Any]:
        try:
            found = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise FederationError(f"{path} cannot be read: {error}") from None
        if not isinstance(found, dict):
            raise FederationError(f"{path} is not what an agent keeps")
        return found
