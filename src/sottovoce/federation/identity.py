"""Who an organisation is: an Ed25519 key that stays with it, and a card that it gives away.

A signature covers a purpose and a JSON document:

    Ed25519(key, "sottovoce signature 1" | 0 | purpose | 0 | canonical JSON)

so that what was signed for one purpose never passes for another. Nothing expires by a clock.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce.errors import FederationError
from sottovoce.federation.toml import read_toml, to_toml
from sottovoce.storage.files import write_atomic

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_DOMAIN = b"sottovoce signature 1\0"
_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]{2,64}\]|[A-Za-z0-9._-]{1,253}):(\d{1,5})")
KEY_DIGITS, AGREEMENT_DIGITS = 30, 60
"""Decimal digits of a fingerprint. Who wants to pass for another must hit a given key's: 10^30
tries. Who prepares an agreement could look for two that look alike: the square root of 10^60."""


@dataclass(frozen=True)
class Card:
    """The public half of an identity.

    public_key: 64 hexadecimal digits. listen: HOST:PORT at which others reach the agent; None where
    it cannot be dialled and dials others itself.
    """

    name: str
    public_key: str
    listen: str | None = None

    def __post_init__(self) -> None:
        require_name(self.name)
        if not isinstance(self.public_key, str) or not re.fullmatch(
            "[0-9a-f]{64}", self.public_key
        ):
            raise FederationError(
                f"the public key of {self.name} is not 64 hexadecimal digits of Ed25519"
            )
        if self.listen is not None:
            require_address(self.listen)

    @property
    def fingerprint(self) -> str:
        """30 digits in groups of five, to be compared by telephone."""
        return grouped(bytes.fromhex(self.public_key), KEY_DIGITS)

    @property
    def content(self) -> dict[str, Any]:
        """What the card says, as it is signed."""
        said = {"format": _FORMAT, "name": self.name, "public_key": self.public_key}
        return said | ({} if self.listen is None else {"listen": self.listen})


class Identity:
    """A private key and the card that goes with it."""

    def __init__(self, key: "Ed25519PrivateKey", name: str, listen: str | None = None) -> None:
        self._key = key
        public = key.public_key().public_bytes_raw().hex()
        self.card = Card(name, public, listen)

    def __repr__(self) -> str:
        return f"Identity({self.card.name!r}, {self.card.fingerprint})"

    @property
    def name(self) -> str:
        return self.card.name

    @property
    def private_key(self) -> "Ed25519PrivateKey":
        """The key itself, for the certificate of a link."""
        return self._key

    def sign(self, purpose: str, content: Mapping[str, Any]) -> bytes:
        """Sign `content` for `purpose` alone."""
        return self._key.sign(signed_bytes(purpose, content))


def create_identity(
    name: str, listen: str | None, folder: str | Path = "."
) -> tuple[Identity, Path, Path]:
    """Make a key pair and write NAME.key, which the owner alone can read, and NAME.card.

    Refuses to overwrite either. Returns the identity and both paths.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    identity = Identity(Ed25519PrivateKey.generate(), name, listen)
    key, card = Path(folder) / f"{name}.key", Path(folder) / f"{name}.card"
    if taken := [path for path in (key, card) if os.path.lexists(path)]:
        raise FederationError(
            f"{taken[0]} exists, and a key is never overwritten: agreements that it signed would "
            "be lost. Give another name or folder, or remove it yourself"
        )
    content = identity.private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write_private(key, content)
    write_card(card, identity)
    return identity, key, card


def write_card(path: str | Path, identity: Identity) -> None:
    """Write a card, signed with its own key."""
    said = identity.card.content
    signature = identity.sign("card", said).hex()
    comments = [
        "The card of a sottovoce agent. It is public; its owner signed it.",
        f"Fingerprint, to be compared by telephone: {identity.card.fingerprint}",
    ]
    write_atomic(path, to_toml({**said, "signature": signature}, comments).encode())


def read_card(path: str | Path) -> Card:
    """The card in a file; refused where its own key did not sign it."""
    said = read_toml(path, "a card")
    return card_of(said, str(path))


def card_of(said: Mapping[str, Any], source: str) -> Card:
    """The card that a document with a signature is; source: what an error names."""
    try:
        card = Card(str(said["name"]), str(said["public_key"]), said.get("listen"))
        if said["format"] != _FORMAT:
            raise FederationError(f"it has format {said['format']!r}; accepted: {_FORMAT}")
        signature = bytes.fromhex(said["signature"])
    except KeyError as error:
        raise FederationError(f"{source} is not a card: it has no {error}") from None
    except (TypeError, ValueError) as error:
        raise FederationError(f"{source} is not a card: {error}") from None
    unknown = set(said) - {*card.content, "signature"}
    if unknown or not is_signed(card.public_key, signature, "card", card.content):
        raise FederationError(
            f"{source} was altered: the key of {card.name} did not sign what it says. Ask "
            f"{card.name} for the card again"
        )
    return card


def read_key(path: str | Path) -> "Ed25519PrivateKey":
    """The private key in a file; refused where others can read it."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(1 << 14)
    except OSError as error:
        raise FederationError(
            f"the key file {path} cannot be read ({error.strerror}); nothing is sent without a "
            "key. `sottovoce identity NAME` makes one"
        ) from None
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        raise FederationError(
            f"the key file {path} has the permissions {stat.S_IMODE(mode):04o}, so that others on "
            f"this machine can use it; accepted: 0600 (chmod 600 {path})"
        )
    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise FederationError(f"{path} holds no Ed25519 private key as `sottovoce identity` writes")
    return key


def signed_bytes(purpose: str, content: Mapping[str, Any]) -> bytes:
    """What a signature covers."""
    if not purpose or "\0" in purpose:
        raise FederationError(f"{purpose!r} is not a purpose to sign for")
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return _DOMAIN + purpose.encode() + b"\0" + text.encode()


def is_signed(public_key: str, signature: bytes, purpose: str, content: Mapping[str, Any]) -> bool:
    """Whether the owner of a public key signed `content` for `purpose`."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        key.verify(signature, signed_bytes(purpose, content))
    except (InvalidSignature, ValueError):
        return False
    return True


def grouped(content: bytes, digits: int) -> str:
    """The first digits of a hash of `content`, in groups of five."""
    number = int.from_bytes(hashlib.sha256(b"sottovoce fingerprint 1\0" + content).digest())
    text = f"{number % 10**digits:0{digits}d}"
    return " ".join(text[at : at + 5] for at in range(0, digits, 5))


def require_name(name: object) -> None:
    """Raise unless this is a name that fits in files, commands and logs."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise FederationError(
            f"{name!r} is not a name for an agent; accepted: up to 63 letters, digits, dots, "
            "underscores and hyphens"
        )


def require_address(text: object) -> tuple[str, int]:
    """Host and port of HOST:PORT; an IPv6 address stands in brackets."""
    found = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    if not found or not 0 < int(found[2]) < 1 << 16:
        raise FederationError(
            f"{text!r} is not an address; accepted: HOST:PORT, such as agent.example.org:7000, "
            "10.0.0.1:7000 or [2001:db8::1]:7000"
        )
    return found[1].strip("[]"), int(found[2])


def _write_private(path: Path, content: bytes) -> None:
    """Write a file that the owner alone can read from its first moment on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
