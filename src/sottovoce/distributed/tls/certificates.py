"""Certificates for `ssl` from Ed25519 keys: pinned by key, without authority, name or clock.

An agent presents a certificate that its own key signed. Python's `ssl` verifies chains, not bare
keys, so an agent writes for each neighbour an *anchor*: a certificate of the neighbour's key that
the agent itself signed. A chain then has two links,

    presented (signed by the neighbour's key)  <-  anchor (that key, vouched for by this agent)

and OpenSSL accepts nothing that the pinned key did not sign. After the handshake the key in the
presented certificate is compared as well. Certificates are valid from 1950 to 9999.
"""

import datetime
import os
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sottovoce.errors import DistributedError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_BYTES = 32
_FIRST = datetime.datetime(1950, 1, 1)
_LAST = datetime.datetime(9999, 12, 31, 23, 59, 59)


@dataclass(frozen=True)
class Peer:
    """An agent of the training: its number, name and Ed25519 public key, and where it listens.

    public_key: 32 bytes. address: host and port, None where it cannot be dialled and dials itself.
    """

    agent: int
    name: str
    public_key: bytes
    address: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        if len(self.public_key) != KEY_BYTES:
            raise DistributedError(
                f"the public key of {self.name} has {len(self.public_key)} bytes; accepted: "
                f"{KEY_BYTES} bytes of Ed25519"
            )


def certificate(private_key: "Ed25519PrivateKey", name: str) -> bytes:
    """The certificate that an agent presents, and its key, as PEM; the same bytes every time."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    own = private_key.public_key().public_bytes_raw()
    presented = _signed(private_key, own, subject=f"sottovoce agent {name}"[:64], issuer=own.hex())
    return presented + private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def context(
    private_key: "Ed25519PrivateKey", name: str, peers: Sequence[Peer], *, server: bool
) -> ssl.SSLContext:
    """TLS 1.3 with this agent's certificate, for connections with the owners of these keys alone.

    Both sides must present a certificate. Sessions are never resumed.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = made.maximum_version = ssl.TLSVersion.TLSv1_3
    # Keys are pinned; a host name proves nothing here.
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags = ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    made.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    if server:
        made.num_tickets = 0
    _load(made, certificate(private_key, name))
    own = private_key.public_key().public_bytes_raw()
    for peer in peers:
        if peer.public_key == own:
            raise DistributedError(f"{peer.name} has the key of {name} itself; keys must differ")
        pinned = peer.public_key
        anchor = _signed(private_key, pinned, subject=pinned.hex(), issuer=own.hex(), vouches=True)
        made.load_verify_locations(cadata=anchor.decode())
    return made


def presented_key(connection: ssl.SSLSocket) -> bytes:
    """The Ed25519 key of the certificate that the other end presented; empty where it is none."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    content = connection.getpeercert(binary_form=True)
    key = x509.load_der_x509_certificate(content).public_key() if content else None
    return key.public_bytes_raw() if isinstance(key, Ed25519PublicKey) else b""


def _signed(
    private_key: "Ed25519PrivateKey",
    public_key: bytes,
    *,
    subject: str,
    issuer: str,
    vouches: bool = False,
) -> bytes:
    """A certificate of `public_key` as PEM; vouches: whether that key may sign others."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    basic = x509.BasicConstraints(ca=vouches, path_length=0 if vouches else None)
    made = (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .public_key(Ed25519PublicKey.from_public_bytes(public_key))
        .serial_number(1)
        .not_valid_before(_FIRST)
        .not_valid_after(_LAST)
        .add_extension(basic, critical=True)
        .sign(private_key, None)
    )
    return made.public_bytes(Encoding.PEM)


def _load(made: ssl.SSLContext, content: bytes) -> None:
    """Give a context its certificate; `ssl` reads files alone, so for a moment there is one.

    It has no name and lies in memory, where the system knows such files: nothing is left of it when
    the process is killed. Elsewhere its owner alone can read it.
    """
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        with os.fdopen(os.memfd_create("sottovoce"), "wb", buffering=0) as file:
            file.write(content)
            made.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return
    handle, path = tempfile.mkstemp(prefix="sottovoce-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        made.load_cert_chain(path)
    finally:
        os.unlink(path)


def require_peers(
    agent: int, peers: Sequence[Peer], neighbours: Sequence[int], key: "Ed25519PrivateKey"
) -> None:
    """Raise unless numbers, names and keys fit together."""
    if [peer.agent for peer in peers] != list(range(len(peers))) or not 0 <= agent < len(peers):
        raise DistributedError("peers must be all agents of the training, ascending by number")
    if len({peer.public_key for peer in peers}) < len(peers):
        raise DistributedError("two agents have the same public key; every agent needs its own")
    if key.public_key().public_bytes_raw() != peers[agent].public_key:
        raise DistributedError(
            f"the private key is not that of agent {agent}, {peers[agent].name}; give the key file "
            "whose card the others have"
        )
    if wrong := [j for j in neighbours if j == agent or not 0 <= j < len(peers)]:
        raise DistributedError(f"agents {wrong} cannot be neighbours of agent {agent}")
