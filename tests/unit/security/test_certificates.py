"""Certificates that are renewed while a listener serves, and files that cannot be used."""

from __future__ import annotations

import os
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError
from lapse.base.secret import Secret
from lapse.security.certificates import Certificates
from lapse.security.tls import PemStore, TlsSettings
from tests.support.security.certificates import CHECKED_IN


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copy(CHECKED_IN / "server.pem", tmp_path / "broker.pem"))


def settings(store: Path, truststore: Path | None = None) -> TlsSettings:
    return TlsSettings(
        keystore=PemStore(str(store)),
        truststore=None if truststore is None else PemStore(str(truststore)),
        client_auth=ssl.CERT_NONE if truststore is None else ssl.CERT_REQUIRED,
    )


def shown(server: ssl.SSLContext, client_certificate: str | None = None) -> str:
    """Whom the certificate of a handshake names; raises SSLError where there is none."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    for authority in ("ca", "other"):
        client.load_verify_locations(CHECKED_IN / f"{authority}.crt")
    if client_certificate is not None:
        client.load_cert_chain(CHECKED_IN / f"{client_certificate}.pem")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (near, far, near, far, near):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    found = near.getpeercert()
    assert found is not None
    (*_, ((_, issuer),)) = found["issuer"]  # type: ignore[misc]
    return str(issuer)


@pytest.mark.parametrize("server_of", [lambda c: c.context, Certificates.following])
def test_a_new_file_is_in_force_for_the_next_handshake(
    store: Path, server_of: Callable[[Certificates], ssl.SSLContext]
) -> None:
    certificates = Certificates(settings(store))
    fixed = server_of(certificates)
    assert shown(fixed) == "ca"
    assert not certificates.look()
    shutil.copy(CHECKED_IN / "stranger.pem", store)
    assert certificates.look()
    assert not certificates.look()
    assert shown(certificates.context) == "other"
    assert shown(fixed) == ("ca" if server_of is not Certificates.following else "other")


def test_another_truststore_believes_others(store: Path, tmp_path: Path) -> None:
    truststore = Path(shutil.copy(CHECKED_IN / "other.crt", tmp_path / "trusted.pem"))
    certificates = Certificates(settings(store, truststore))
    following = certificates.following()
    with pytest.raises(ssl.SSLError):
        shown(following, "client")
    shutil.copy(CHECKED_IN / "ca.crt", truststore)
    assert certificates.look()
    assert shown(following, "client") == "ca"


def cut(store: Path) -> None:
    store.write_bytes((CHECKED_IN / "stranger.pem").read_bytes()[:300])


def mixed(store: Path) -> None:
    """A key and the certificate of another one."""
    parts = [CHECKED_IN / "server.key", CHECKED_IN / "stranger.crt"]
    store.write_bytes(b"".join(part.read_bytes() for part in parts))


def locked(store: Path) -> None:
    shutil.copy(CHECKED_IN / "locked.pem", store)


@pytest.mark.parametrize("spoil", [cut, mixed, locked, os.unlink])
def test_what_cannot_be_used_leaves_what_there_was(
    store: Path, spoil: Callable[[Path], None]
) -> None:
    certificates = Certificates(settings(store))
    before = certificates.context
    spoil(store)
    with pytest.raises(ConfigError, match=r"ssl\.k"):
        certificates.look()
    assert certificates.context is before
    assert shown(certificates.context) == "ca"
    assert not certificates.look(), "said once"
    shutil.copy(CHECKED_IN / "stranger.pem", store)
    assert certificates.look()
    assert shown(certificates.context) == "other"


def test_a_link_that_is_exchanged_is_a_new_file(tmp_path: Path) -> None:
    link = tmp_path / "broker.pem"
    link.symlink_to(CHECKED_IN / "server.pem")
    certificates = Certificates(settings(link))
    (tmp_path / "next").symlink_to(CHECKED_IN / "stranger.pem")
    (tmp_path / "next").rename(link)
    assert certificates.look()
    assert shown(certificates.context) == "other"


def test_keys_in_the_settings_stay() -> None:
    parts = (Secret((CHECKED_IN / f"server.{part}").read_text()) for part in ("crt", "key"))
    certificates = Certificates(TlsSettings(keystore=PemStore(None, *parts)))
    assert not certificates.look()
    assert shown(certificates.context) == "ca"
