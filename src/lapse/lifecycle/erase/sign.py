"""Ed25519 signatures of reports, and the file a signed report is.

Three lines that are one JSON document:

    {"report":
    …the report, on this line alone…
    ,"signature":{"algorithm":"Ed25519","signs":…,"public_key":"…","signature":"…"}}

What is signed is the second line without its line feed, byte for byte, so that OpenSSL and `sed`
are enough to check it (docs/prove-erased.md); no two programs can disagree on what is meant. The
public key is the base64 of its DER form.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from lapse.base.errors import ConfigError, LapseError, StorageError, unreadable
from lapse.base.fs import Fs, make_own_dir
from lapse.base.own import why_not_own
from lapse.base.secret import Secret

KEY_FILE = "erasure-proof-key.pem"
_FIRST = b'{"report":\n'
_LAST = (
    '\n,"signature":{{"algorithm":"Ed25519","signs":"the second line without its line feed",'
    '"public_key":"{public_key}","signature":"{signature}"}}}}\n'
)
_SIGNATURE = re.compile(rb'"public_key":"([A-Za-z0-9+/=]+)","signature":"([A-Za-z0-9+/=]+)"\}\}\n')


class BadSeal(LapseError):
    """A signed report is not as it was signed."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A report whose signature is right: its bytes, and the public key (base64 of DER)."""

    body: bytes
    public_key: str


def default_key_path(environ: Mapping[str, str], home: Path) -> Path:
    """Where the key is that is made on first use."""
    config = environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else home / ".config") / "lapse" / KEY_FILE


def load_key(path: Path) -> Ed25519PrivateKey:
    """An Ed25519 key in PEM (PKCS #8), without password. Raises ConfigError, StorageError."""
    try:
        data = path.read_bytes()
    except OSError as e:
        raise unreadable(e, path) from e
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as e:
        raise ConfigError(f"{path}: no private key in PEM without password: {e}") from e
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path}: allowed is an Ed25519 key (openssl genpkey -algorithm ED25519)")
    return key


def load_or_make_key(fs: Fs, path: Path) -> tuple[Ed25519PrivateKey, bool]:
    """The key there, made with mode 0600 if there is none; whether it was made.

    Raises StorageError, also if another user could put a key in its place; ConfigError.
    """
    try:
        make_own_dir(path.parent)
    except StorageError as e:
        raise StorageError(f"no place for a key of ours: {e}; --sign-with names another") from e
    if path.exists():
        return load_key(path), False
    key = Ed25519PrivateKey.generate()
    pem = Secret(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()
    )
    fs.replace_file(path, pem)
    return key, True


def own_public_key(path: Path) -> str | None:
    """The public half of the key that `load_or_make_key` made there, as reports name it.

    None if there is none, or if another user could have put it there.
    """
    if not path.exists() or why_not_own(path.parent):
        return None
    return public_key_of(load_key(path))


def load_public_key(path: Path) -> str:
    """A public key in PEM, as reports name it. Raises ConfigError, StorageError."""
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except OSError as e:
        raise unreadable(e, path) from e
    except (ValueError, UnsupportedAlgorithm) as e:
        raise ConfigError(f"{path}: no public key in PEM: {e}") from e
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{path}: allowed is an Ed25519 key")
    return _named(key)


def public_key_of(key: Ed25519PrivateKey) -> str:
    """Its public half, as reports name it."""
    return _named(key.public_key())


def _named(key: Ed25519PublicKey) -> str:
    der = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return base64.b64encode(der).decode()


def public_pem(public_key: str) -> str:
    """The same in PEM, for `openssl -pubin`."""
    return f"-----BEGIN PUBLIC KEY-----\n{public_key}\n-----END PUBLIC KEY-----\n"


def fingerprint(public_key: str) -> str:
    """Short, for people to compare: as `openssl pkey -pubin -outform DER | openssl sha256`."""
    return hashlib.sha256(base64.b64decode(public_key)).hexdigest()


def seal(body: bytes, key: Ed25519PrivateKey) -> bytes:
    """The signed file of a report that is one line."""
    assert b"\n" not in body
    return _laid_out(body, public_key_of(key), base64.b64encode(key.sign(body)).decode())


def _laid_out(body: bytes, public_key: str, signature: str) -> bytes:
    return _FIRST + body + _LAST.format(public_key=public_key, signature=signature).encode()


def unseal(data: bytes, where: str) -> Sealed:
    """The report in a signed file, if that is as it was signed. Raises BadSeal.

    That says nothing about whose key it was: compare `public_key`.
    """
    lines, found = data.split(b"\n"), _SIGNATURE.search(data)
    if len(lines) != 4 or found is None:
        raise BadSeal(f"{where}: not a signed report: it has not the three lines of one")
    body, public_key, signature = lines[1], found[1].decode(), found[2].decode()
    if _laid_out(body, public_key, signature) != data:
        raise BadSeal(f"{where}: not as it was signed: something around the report was changed")
    try:
        key = serialization.load_der_public_key(base64.b64decode(public_key, validate=True))
        if not isinstance(key, Ed25519PublicKey) or _named(key) != public_key:
            raise BadSeal(f"{where}: its public key is not an Ed25519 key")
        raw = base64.b64decode(signature, validate=True)
        if base64.b64encode(raw).decode() != signature:
            raise BadSeal(f"{where}: its signature is not written as signatures are")
        key.verify(raw, body)
    except (InvalidSignature, ValueError, UnsupportedAlgorithm) as e:
        raise BadSeal(f"{where}: the signature does not match: the report was changed") from e
    return Sealed(body, public_key)
