"""Signed reports: any changed byte shows, and OpenSSL alone can check one."""

from __future__ import annotations

import base64
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from lapse.base.errors import ConfigError, StorageError
from lapse.base.fs import RealFs
from lapse.lifecycle.erase.sign import (
    BadSeal,
    default_key_path,
    fingerprint,
    load_key,
    load_or_make_key,
    load_public_key,
    own_public_key,
    public_key_of,
    public_pem,
    seal,
    unseal,
)

BODY = b'{"format":"x","verdict":{"state":"proven"}}'
DOC = Path(__file__).parents[4] / "docs" / "prove-erased.md"


@pytest.fixture(scope="module")
def key() -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


def test_a_report_comes_back_with_its_key(key: ed25519.Ed25519PrivateKey) -> None:
    sealed = unseal(seal(BODY, key), "r")
    assert (sealed.body, sealed.public_key) == (BODY, public_key_of(key))


def test_whatever_byte_is_changed_added_or_taken_shows(key: ed25519.Ed25519PrivateKey) -> None:
    data = seal(BODY, key)
    for at in range(len(data)):
        for changed in (
            data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :],
            data[:at] + data[at + 1 :],
            data[:at] + b" " + data[at:],
        ):
            if changed != data:
                with pytest.raises(BadSeal):
                    unseal(changed, "r")


def test_another_report_under_the_same_signature_shows(key: ed25519.Ed25519PrivateKey) -> None:
    other = seal(BODY.replace(b"proven", b"remains"), key).split(b"\n")
    mixed = b"\n".join([other[0], other[1], *seal(BODY, key).split(b"\n")[2:]])
    with pytest.raises(BadSeal, match="does not match"):
        unseal(mixed, "r")
    with pytest.raises(BadSeal, match="three lines"):
        unseal(BODY, "r")


def test_a_signature_by_another_key_is_that_keys(key: ed25519.Ed25519PrivateKey) -> None:
    other = ed25519.Ed25519PrivateKey.generate()
    assert unseal(seal(BODY, other), "r").public_key != public_key_of(key)


def test_a_public_key_of_another_kind_is_refused(key: ed25519.Ed25519PrivateKey) -> None:
    rsa_key = rsa.generate_private_key(65537, 2048).public_key()
    der = rsa_key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    data = seal(BODY, key).replace(public_key_of(key).encode(), base64.b64encode(der))
    with pytest.raises(BadSeal, match="not an Ed25519 key"):
        unseal(data, "r")


def test_a_key_is_made_once_and_for_us_alone(tmp_path: Path) -> None:
    path = default_key_path({"XDG_CONFIG_HOME": str(tmp_path / "config")}, Path("/nobody"))
    assert path == tmp_path / "config" / "lapse" / "erasure-proof-key.pem"
    assert default_key_path({}, Path("/h")) == Path("/h/.config/lapse/erasure-proof-key.pem")
    first, made = load_or_make_key(RealFs(), path)
    assert made
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    again, made = load_or_make_key(RealFs(), path)
    assert not made
    assert public_key_of(first) == public_key_of(again)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    (tmp_path / "after").touch()  # others' files are made as before
    assert stat.S_IMODE((tmp_path / "after").stat().st_mode) & 0o044


def test_a_key_that_somebody_else_could_have_put_there_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "lapse" / "key.pem"
    assert own_public_key(path) is None
    key, _ = load_or_make_key(RealFs(), path)
    assert own_public_key(path) == public_key_of(key)
    path.parent.chmod(0o777)
    assert own_public_key(path) is None
    with pytest.raises(StorageError, match=r"others may write to .*--sign-with"):
        load_or_make_key(RealFs(), path)


def test_keys_that_are_none_are_refused(tmp_path: Path, key: ed25519.Ed25519PrivateKey) -> None:
    path = tmp_path / "key.pem"
    with pytest.raises(StorageError, match="reading"):
        load_key(path)
    with pytest.raises(StorageError, match="reading"):
        load_public_key(path)
    path.write_text("nothing")
    with pytest.raises(ConfigError, match="no private key"):
        load_key(path)
    with pytest.raises(ConfigError, match="no public key"):
        load_public_key(path)
    path.write_bytes(_pem(key, serialization.BestAvailableEncryption(b"secret")))
    with pytest.raises(ConfigError, match="without password"):
        load_key(path)
    path.write_bytes(_pem(rsa.generate_private_key(65537, 2048), serialization.NoEncryption()))
    with pytest.raises(ConfigError, match="Ed25519"):
        load_key(path)


def _pem(
    key: ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey,
    how: serialization.KeySerializationEncryption,
) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how
    )  # fmt: skip


def test_a_public_key_is_the_same_in_all_its_forms(
    tmp_path: Path, key: ed25519.Ed25519PrivateKey
) -> None:
    path = tmp_path / "public.pem"
    path.write_text(public_pem(public_key_of(key)))
    assert load_public_key(path) == public_key_of(key)
    assert re.fullmatch("[0-9a-f]{64}", fingerprint(public_key_of(key)))


def documented() -> str:
    """The commands with which the page says that a report is checked."""
    [block] = re.findall(r"```sh\n(.*?)```", DOC.read_text(), re.DOTALL)
    return str(block)


def test_openssl_alone_checks_one_as_the_page_says(
    tmp_path: Path, key: ed25519.Ed25519PrivateKey
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    for data, good in (
        (seal(BODY, key), True),
        (seal(BODY, key).replace(b"proven", b"Proven"), False),
    ):
        (tmp_path / "proof.json").write_bytes(data)
        done = subprocess.run(
            ["sh", "-c", documented()], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (done.returncode == 0) == good, done.stderr
        assert ("Signature Verified Successfully" in done.stdout) == good
