"""Who has signed an agreement: files beside it, and what agents tell each other on the links.

A member signs the digest of the agreement and what it is: {agreement, training, edition, name}.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sottovoce.errors import FederationError
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.identity import Identity, is_signed
from sottovoce.storage.files import write_json

_PURPOSE = "agreement"


class Signatures:
    """The signatures of one agreement, by name; only those that verify are taken in."""

    def __init__(self, agreement: Agreement, found: Mapping[str, str] | None = None) -> None:
        self.agreement = agreement
        self.by_name: dict[str, str] = {}
        for name, signature in (found or {}).items():
            self.add(name, signature)

    def add(self, name: object, signature: object) -> None:
        """Take in the signature of a member; refused unless its key made it for this agreement."""
        agreement, signed = self.agreement, False
        if isinstance(name, str) and name in agreement.names and isinstance(signature, str):
            key = agreement.members[agreement.agent(name)].card.public_key
            try:
                content = bytes.fromhex(signature)
            except ValueError:
                content = b""
            signed = is_signed(key, content, _PURPOSE, _signed(agreement, name))
        if not signed:
            raise FederationError(
                f"a signature in the name of {str(name)[:80]!r} is not that member's signature of "
                f"the agreement {agreement.fingerprint}"
            )
        self.by_name[str(name)] = str(signature)

    @property
    def missing(self) -> list[str]:
        """Members that have not signed, as far as is known here."""
        return [name for name in self.agreement.names if name not in self.by_name]

    def require_all(self) -> None:
        """Raise unless every member has signed."""
        if self.missing:
            ways = "join` or `sottovoce drop" if self.agreement.edition else "join"
            raise FederationError(
                f"{', '.join(self.missing)} did not sign the agreement "
                f"{self.agreement.fingerprint}; nothing is trained before every member has run "
                f"`sottovoce {ways}`"
            )


def sign_agreement(agreement: Agreement, identity: Identity) -> str:
    """The signature of a member, in hexadecimal digits."""
    return identity.sign(_PURPOSE, _signed(agreement, identity.name)).hex()


def signature_path(agreement: str | Path, name: str) -> Path:
    """Where the signature of a member lies: beside the agreement."""
    path = Path(agreement)
    return path.with_name(f"{path.stem}.{name}.signature")


def write_signature(path: str | Path, agreement: Agreement, identity: Identity) -> Path:
    """Sign the agreement in the file `path`, and write the signature beside it."""
    target = signature_path(path, identity.name)
    content = {"agreement": agreement.digest, "name": identity.name}
    write_json(target, {**content, "signature": sign_agreement(agreement, identity)})
    return target


def read_signatures(path: str | Path, agreement: Agreement) -> Signatures:
    """The signatures that lie beside an agreement; those of another edition are left alone."""
    found = Signatures(agreement)
    for name in agreement.names:
        file = signature_path(path, name)
        if not file.exists():
            continue
        try:
            content = json.loads(file.read_text("utf-8"))
            other = content["agreement"] != agreement.digest
        except (OSError, ValueError, KeyError, TypeError):
            raise FederationError(
                f"{file} is not a signature that `sottovoce join` wrote"
            ) from None
        if not other:
            found.add(name, content["signature"])
    return found


def _signed(agreement: Agreement, name: str) -> dict[str, Any]:
    about = {"training": agreement.training, "edition": agreement.edition}
    return {"agreement": agreement.digest, **about, "name": name}
