"""TLS settings: judged, and in real handshakes over a pair of sockets."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import threading
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError
from lapse.security.ssl_principal import parse_mapping_rules, principal_of
from lapse.security.tls import (
    TlsSettings,
    client_context,
    listener_properties,
    server_context,
    tls_settings,
)
from tests.support.security.certificates import CHECKED_IN, KEY_PASSWORD, certificates


@pytest.fixture(scope="module", params=["made", "checked in"])
def pem(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "checked in":
        return CHECKED_IN
    return certificates(tmp_path_factory.mktemp("pem"))


def side(pem: Path, key: str | None, trusts: str | None = "ca", **more: str) -> dict[str, str]:
    """Settings of a side with that key, which trusts that certificate."""
    properties = {name.replace("_", "."): text for name, text in more.items()}
    if key is not None:
        location = {"ssl.keystore.location": str(pem / f"{key}.pem")}
        properties |= {"ssl.keystore.type": "PEM", **location}
    if trusts is not None:
        location = {"ssl.truststore.location": str(pem / f"{trusts}.crt")}
        properties |= {"ssl.truststore.type": "PEM", **location}
    return properties


def shake(
    server: dict[str, str], client: dict[str, str], host: str = "localhost"
) -> tuple[str | Exception, str | Exception, bytes | None]:
    """Both sides' TLS version or error, and the client's certificate as the server saw it."""
    contexts = server_context(tls_settings(server)), client_context(tls_settings(client))
    ends = socket.socketpair()
    results: list[str | Exception] = ["", ""]
    seen: list[bytes | None] = [None]

    def run(is_client: int) -> None:
        ends[is_client].settimeout(20)
        name = host if is_client else None
        try:
            with contexts[is_client].wrap_socket(
                ends[is_client], server_side=not is_client, server_hostname=name
            ) as tls:
                if not is_client:
                    seen[0] = tls.getpeercert(binary_form=True)
                # A client learns of a refusal (TLS 1.3) only when it reads.
                tls.sendall(b"x")
                if tls.recv(1) != b"x":
                    raise ConnectionResetError("closed")
                results[is_client] = tls.version() or ""
        except (OSError, ValueError) as e:
            results[is_client] = e
        finally:
            ends[is_client].close()

    threads = [threading.Thread(target=run, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results[0], results[1], seen[0]


# --- handshakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "client", "version"),
    [
        ("", "", "TLSv1.3"),
        ("TLSv1.2", "", "TLSv1.2"),
        ("", "TLSv1.2", "TLSv1.2"),
        ("TLSv1.3", "TLSv1.2,TLSv1.3", "TLSv1.3"),
    ],
)
def test_versions(pem: Path, server: str, client: str, version: str) -> None:
    ours = side(pem, "server", ssl_enabled_protocols=server)
    theirs = side(pem, None, ssl_enabled_protocols=client)
    assert shake(ours, theirs) == (version, version, None)


def test_versions_that_do_not_meet(pem: Path) -> None:
    ours = side(pem, "server", ssl_enabled_protocols="TLSv1.3")
    theirs = side(pem, None, ssl_protocol="TLSv1.2")
    server, client, _ = shake(ours, theirs)
    assert isinstance(server, ssl.SSLError)
    assert isinstance(client, ssl.SSLError)


@pytest.mark.parametrize(
    ("key", "trusts", "host", "says"),
    [
        ("expired", "ca", "localhost", "certificate has expired"),
        ("future", "ca", "localhost", "not yet valid"),
        ("stranger", "ca", "localhost", "unable to get local issuer|self.signed"),
        ("server", "other", "localhost", "unable to get local issuer|self.signed"),
        ("server", "ca", "example.com", "Hostname mismatch"),
        ("server", "ca", "127.0.0.2", "IP address mismatch"),
    ],
)
def test_a_client_refuses(pem: Path, key: str, trusts: str, host: str, says: str) -> None:
    server, client, _ = shake(side(pem, key), side(pem, None, trusts), host)
    assert isinstance(client, ssl.SSLCertVerificationError)
    assert re.search(says, client.verify_message)
    assert isinstance(server, Exception)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_names_that_fit(pem: Path, host: str) -> None:
    assert shake(side(pem, "server"), side(pem, None), host)[:2] == ("TLSv1.3", "TLSv1.3")


def test_without_identification_any_name_goes_but_not_any_certificate(pem: Path) -> None:
    lax = side(pem, None, ssl_endpoint_identification_algorithm="")
    assert shake(side(pem, "server"), lax, "example.com")[1] == "TLSv1.3"
    assert isinstance(shake(side(pem, "stranger"), lax, "example.com")[1], ssl.SSLError)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize(
    ("auth", "key", "fits"),
    [
        ("none", None, True), ("none", "client", True), ("none", "stranger", True),
        ("requested", None, True), ("requested", "client", True), ("requested", "stranger", False),
        ("requested", "expired", False),
        ("required", None, False), ("required", "client", True), ("required", "stranger", False),
        ("required", "expired", False), ("required", "future", False),
    ],
)  # fmt: skip
def test_client_certificates(
    pem: Path, version: str, auth: str, key: str | None, fits: bool
) -> None:
    ours = side(pem, "server", ssl_client_auth=auth, ssl_enabled_protocols=version)
    server, client, seen = shake(ours, side(pem, key))
    if not fits:
        assert isinstance(server, ssl.SSLError)
        assert isinstance(client, Exception)
        return
    assert (server, client) == (version, version)
    assert (seen is not None) is (auth != "none" and key is not None)
    if seen is not None:
        rules = parse_mapping_rules(r"RULE:^.*CN=(.*?),.*$/$1/")
        assert principal_of(seen, rules) == "User:alice"


def test_whatever_is_in_the_truststore_is_trusted(pem: Path) -> None:
    """As in Java: a certificate that signed nothing, or one in the middle."""
    assert shake(side(pem, "server"), side(pem, None, "server"))[1] == "TLSv1.3"
    assert shake(side(pem, "below"), side(pem, None, "middle"))[1] == "TLSv1.3"
    assert isinstance(shake(side(pem, "below"), side(pem, None))[1], ssl.SSLError)


def test_without_a_truststore_the_systems_is_used(pem: Path) -> None:
    assert isinstance(shake(side(pem, "server"), side(pem, None, None))[1], ssl.SSLError)


# --- keys ----------------------------------------------------------------------------------------


def inline(pem: Path, key: str) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": (pem / f"{key}.key").read_text(),
        "ssl.keystore.certificate.chain": (pem / f"{key}.crt").read_text(),
        "ssl.truststore.type": "pem",
        "ssl.truststore.certificates": (pem / "ca.crt").read_text(),
        "ssl.client.auth": "required",
    }


def test_keys_and_certificates_in_the_settings(pem: Path) -> None:
    assert shake(inline(pem, "server"), inline(pem, "client"))[:2] == ("TLSv1.3", "TLSv1.3")
    assert isinstance(shake(inline(pem, "server"), inline(pem, "stranger"))[0], ssl.SSLError)


@pytest.mark.parametrize("is_inline", [True, False])
def test_a_key_with_a_password(pem: Path, is_inline: bool) -> None:
    properties = inline(pem, "locked") if is_inline else side(pem, "locked")
    properties["ssl.key.password"] = KEY_PASSWORD
    assert shake(properties, inline(pem, "client"))[0] == "TLSv1.3"
    for password, says in (("wrong", "ssl.key.password the right"), (None, "is missing")):
        changed = {k: v for k, v in properties.items() if k != "ssl.key.password"}
        if password is not None:
            changed["ssl.key.password"] = password
        with pytest.raises(ConfigError, match=says):
            server_context(tls_settings(changed))


def test_no_descriptor_is_left_open(pem: Path) -> None:
    def count() -> int:
        return len(os.listdir("/dev/fd"))

    before = count()
    for _ in range(3):
        server_context(tls_settings(inline(pem, "server")))
        with pytest.raises(ConfigError):
            server_context(tls_settings(inline(pem, "locked")))
    assert count() == before


def test_a_key_of_another_certificate(pem: Path, tmp_path: Path) -> None:
    properties = inline(pem, "server")
    properties["ssl.keystore.key"] = (pem / "client.key").read_text()
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.key: .*do not belong together$"):
        server_context(tls_settings(properties))
    mixed = tmp_path / "mixed.pem"
    mixed.write_text((pem / "client.key").read_text() + (pem / "server.crt").read_text())
    with pytest.raises(ConfigError, match=r"mixed\.pem: KEY_VALUES_MISMATCH$"):
        server_context(tls_settings({**side(pem, "server"), "ssl.keystore.location": str(mixed)}))


def test_more_than_a_pipe_holds(pem: Path) -> None:
    properties = inline(pem, "server")
    properties["ssl.keystore.certificate.chain"] += "\n" * 2_000_000
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.certificate\.chain: .* use a file"):
        server_context(tls_settings(properties))


@pytest.mark.parametrize(
    ("setting", "content", "says"),
    [
        ("ssl.keystore.location", None, "No such file"),
        ("ssl.keystore.location", "", "not PEM"),
        ("ssl.keystore.location", "rubbish", "not PEM"),
        ("ssl.truststore.location", None, "No such file"),
        ("ssl.truststore.location", "rubbish", "NO_CERTIFICATE"),
    ],
)
def test_files_that_cannot_be_used(
    pem: Path, tmp_path: Path, setting: str, content: str | None, says: str
) -> None:
    file = tmp_path / "store.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=f"^{re.escape(f'{setting}={file}')}: .*{says}"):
        server_context(tls_settings({**side(pem, "server"), setting: str(file)}))


# --- settings ------------------------------------------------------------------------------------

KEY = {"ssl.keystore.key": "k3y", "ssl.keystore.certificate.chain": "c"}
PEM = {"ssl.keystore.type": "PEM"}


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"ssl.client.auth": "maybe"}, "ssl.client.auth=maybe: allowed are none, requested"),
        ({"ssl.endpoint.identification.algorithm": "ldap"}, "identification.algorithm=ldap"),
        ({"ssl.enabled.protocols": "TLSv1.1,TLSv1.2"}, "ssl.enabled.protocols=TLSv1.1: allowed"),
        ({"ssl.enabled.protocols": "SSLv3"}, "ssl.enabled.protocols=SSLv3: allowed"),
        ({"ssl.protocol": "TLSv1"}, "ssl.protocol=TLSv1: allowed"),
        ({"ssl.protocol": "TLSv1.2", "ssl.enabled.protocols": "TLSv1.3"}, "leaves none"),
        ({"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "ssl.cipher.suites is not supported"),
        ({"ssl.engine.factory.class": "x.Y"}, "ssl.engine.factory.class is not supported"),
        ({"ssl.provider": "x"}, "ssl.provider is not supported"),
        ({"ssl.keystore.location": "a.jks"},
         "ssl.keystore.type=JKS: allowed is PEM; convert a.jks with `keytool -importkeystore"),
        ({"ssl.keystore.location": "a.p12", "ssl.keystore.type": "PKCS12",
          "ssl.keystore.password": "pa55"}, "openssl pkcs12 -in store.p12 -out store.pem"),
        ({"ssl.truststore.location": "a.jks", "ssl.truststore.password": "pa55"},
         "openssl pkcs12 -in store.p12 -nokeys -out store.pem"),
        (KEY, "ssl.keystore.type=JKS: allowed is PEM"),
        ({**PEM, "ssl.keystore.key": "k3y"}, "ssl.keystore.certificate.chain is missing"),
        ({**PEM, "ssl.keystore.certificate.chain": "c"}, "ssl.keystore.key is missing"),
        ({**PEM, **KEY, "ssl.keystore.location": "a"}, "ssl.keystore.location are both set"),
        ({**PEM, **KEY, "ssl.keystore.password": "pa55"}, "PEM stores have none"),
        ({**PEM, "ssl.keystore.location": "a", "ssl.keystore.password": "pa55"}, "have none"),
        ({"ssl.keystore.password": "pa55"}, "ssl.keystore.location is not"),
        ({"ssl.truststore.password": "pa55"}, "ssl.truststore.location is not"),
        ({"ssl.truststore.certificates": "c"}, "ssl.truststore.type=JKS"),
        ({"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "c",
          "ssl.truststore.location": "a"}, "ssl.truststore.location are both set"),
    ],
)  # fmt: skip
def test_settings_that_are_refused(properties: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        tls_settings(properties)
    assert says in str(refused.value)
    assert "pa55" not in str(refused.value)
    assert "k3y" not in str(refused.value)


def test_defaults() -> None:
    assert tls_settings({}) == TlsSettings()
    assert TlsSettings().protocols == {"TLSv1.2", "TLSv1.3"}
    assert TlsSettings().checks_host_name
    assert TlsSettings().client_auth is ssl.CERT_NONE
    assert tls_settings({"ssl.protocol": "TLSv1.2"}).protocols == {"TLSv1.2"}
    assert tls_settings({"ssl.protocol": "TLS", "ssl.client.auth": "REQUIRED"}) == TlsSettings(
        client_auth=ssl.CERT_REQUIRED
    )


def test_a_listener_needs_a_key() -> None:
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.location or ssl\.keystore\.key"):
        server_context(tls_settings({}))


def test_settings_show_no_secret() -> None:
    settings = tls_settings({**PEM, **KEY, "ssl.key.password": "pa55"})
    assert "pa55" not in repr(settings)
    assert "k3y" not in repr(settings)


def test_a_client_always_verifies() -> None:
    for algorithm in ("https", "HTTPS", ""):
        context = client_context(tls_settings({"ssl.endpoint.identification.algorithm": algorithm}))
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname is bool(algorithm)


def test_a_listeners_own_settings_come_first() -> None:
    properties = {
        "ssl.client.auth": "none",
        "ssl.protocol": "TLSv1.2",
        "listener.name.internal.ssl.client.auth": "required",
        "listener.name.external.ssl.protocol": "TLSv1.3",
    }
    internal = listener_properties(properties, "INTERNAL")
    assert internal["ssl.client.auth"] == "required"
    assert internal["ssl.protocol"] == "TLSv1.2"
    assert listener_properties(properties, "EXTERNAL")["ssl.client.auth"] == "none"


def test_the_checked_in_certificates_are_those_that_are_made(tmp_path: Path) -> None:
    """Where openssl is missing they stand in; so they must be the same set."""
    made = certificates(tmp_path)
    names = {p.name for kind in ("*.crt", "*.key", "*.pem") for p in made.glob(kind)}
    wanted = {name for name in names if not Path(name).stem.isdigit()}
    assert wanted == {p.name for p in CHECKED_IN.iterdir()}
    assert shutil.which("openssl") is None or made == tmp_path
