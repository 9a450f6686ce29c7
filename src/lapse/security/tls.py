"""`ssl.*` settings of Kafka as an `ssl.SSLContext`, for a listener or for a client.

Keys and certificates are PEM (KIP-651), from a file (`ssl.keystore.location`) or in the settings
themselves (`ssl.keystore.key`). Java's own stores, JKS and PKCS12, are refused with the command
that converts them: Python's `ssl` reads neither. So are settings that Python cannot follow and
whose neglect would weaken a listener (`ssl.cipher.suites`, protocols before TLS 1.2).

Errors name the setting; what a file or a setting holds is in none of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from lapse.base.errors import ConfigError
from lapse.base.secret import Secret
from lapse.base.security_settings import UNABLE

T = TypeVar("T")

PEM = "PEM"
JKS = "JKS"
_NO_REASON = "not PEM, of no known kind, or key and certificate do not belong together"
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_IDENTIFICATION = {"https": True, "": False}


@dataclass(frozen=True, slots=True)
class PemStore:
    """Where keys and certificates are.

    Attributes:
        location: a PEM file, or None.
        certificates: PEM text, or None; it or the location is there.
        key: PEM text that goes with `certificates`; None in a trust store.
    """

    location: str | None = None
    certificates: Secret | None = None
    key: Secret | None = None


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The settings of one side, judged but not yet read from files.

    Attributes:
        keystore: own key and certificates, own first; a client may have none.
        key_password: of an encrypted key.
        truststore: whose certificates are believed; None: those that the system believes.
        client_auth: what a listener requires of clients.
        protocols: TLS versions, a subset of 1.2 and 1.3.
        checks_host_name: whether a client compares the broker's name with its certificate.
    """

    keystore: PemStore | None = None
    key_password: Secret | None = None
    truststore: PemStore | None = None
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    protocols: frozenset[str] = frozenset(_VERSIONS)
    checks_host_name: bool = True


def listener_properties(properties: Mapping[str, str], listener: str) -> dict[str, str]:
    """The settings that a listener sees: `listener.name.NAME.x` stands for `x`, over any `x`."""
    prefix = f"listener.name.{listener.lower()}."
    own = {
        name[len(prefix) :]: text
        for name, text in properties.items()
        if name.lower().startswith(prefix)
    }
    return {**properties, **own}


def tls_settings(properties: Mapping[str, str]) -> TlsSettings:
    """Judge a listener's or a client's `ssl.*` settings.

    Raises:
        ConfigError: a setting is out of range, contradicts another or cannot be followed.
    """
    for name, advice in UNABLE.items():
        if properties.get(name, "").strip():
            raise ConfigError(f"{name} is not supported; {advice}")
    client_auth = _one_of(properties, "ssl.client.auth", "none", _CLIENT_AUTH)
    identification = _one_of(
        properties, "ssl.endpoint.identification.algorithm", "https", _IDENTIFICATION
    )
    password = properties.get("ssl.key.password")
    return TlsSettings(
        keystore=_keystore(properties),
        key_password=None if password is None else Secret(password),
        truststore=_truststore(properties),
        client_auth=client_auth,
        protocols=_protocols(properties),
        checks_host_name=identification,
    )


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """A listener's context; reads the files.

    Raises:
        ConfigError: there is no key, or a file cannot be used.
    """
    if settings.keystore is None:
        raise ConfigError("ssl.keystore.location or ssl.keystore.key must be set for a listener")
    context = _context(ssl.PROTOCOL_TLS_SERVER, settings)
    context.verify_mode = settings.client_auth
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """A client's context, which always verifies the broker's certificate; reads the files.

    Raises:
        ConfigError: a file cannot be used.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT, settings)
    context.check_hostname = settings.checks_host_name
    return context


# --- judging -------------------------------------------------------------------------------------


def _keystore(properties: Mapping[str, str]) -> PemStore | None:
    key = properties.get("ssl.keystore.key")
    chain = properties.get("ssl.keystore.certificate.chain")
    if (key is None) != (chain is None):
        lacking = "ssl.keystore.key" if key is None else "ssl.keystore.certificate.chain"
        raise ConfigError(f"{lacking} is missing: key and certificate chain go together")
    location = _location(properties, "ssl.keystore", None if key is None else "ssl.keystore.key")
    if key is not None and chain is not None:
        return PemStore(None, Secret(chain), Secret(key))
    return None if location is None else PemStore(location)


def _truststore(properties: Mapping[str, str]) -> PemStore | None:
    inline = "ssl.truststore.certificates"
    certificates = properties.get(inline)
    location = _location(properties, "ssl.truststore", None if certificates is None else inline)
    if certificates is not None:
        return PemStore(None, Secret(certificates))
    return None if location is None else PemStore(location)


def _location(properties: Mapping[str, str], store: str, inline: str | None) -> str | None:
    """The store's file, after a look at what goes together; `inline` is set instead of it."""
    location = properties.get(f"{store}.location")
    if inline is not None and location is not None:
        raise ConfigError(f"{inline} and {store}.location are both set; one must go")
    if inline is None and location is None:
        if f"{store}.password" in properties:
            raise ConfigError(f"{store}.password is set, but {store}.location is not")
        return None
    kind = properties.get(f"{store}.type", JKS)
    if kind.upper() != PEM:
        raise ConfigError(f"{store}.type={kind}: allowed is {PEM}{_conversion(store, location)}")
    if f"{store}.password" in properties:
        raise ConfigError(
            f"{store}.password is set, but PEM stores have none; the key's is ssl.key.password"
        )
    return location


def _conversion(store: str, location: str | None) -> str:
    """How a store of Java becomes PEM."""
    if location is None:
        return ""
    what = " -nokeys" if store == "ssl.truststore" else ""
    return (
        f"; convert {location} with `keytool -importkeystore -srckeystore {location} "
        "-destkeystore store.p12 -deststoretype PKCS12` (not needed if it is PKCS12) and "
        f"`openssl pkcs12 -in store.p12{what} -out store.pem`"
    )


def _protocols(properties: Mapping[str, str]) -> frozenset[str]:
    names = properties.get("ssl.enabled.protocols", "").replace(",", " ").split()
    _check_versions("ssl.enabled.protocols", names)
    enabled = frozenset(names) or frozenset(_VERSIONS)
    newest = properties.get("ssl.protocol", "TLSv1.3").strip()
    if newest == "TLS":
        return enabled
    _check_versions("ssl.protocol", [newest])
    chosen = frozenset(name for name in enabled if _VERSIONS[name] <= _VERSIONS[newest])
    if not chosen:
        raise ConfigError(f"ssl.protocol={newest} leaves none of ssl.enabled.protocols")
    return chosen


def _check_versions(setting: str, names: Iterable[str]) -> None:
    for name in names:
        if name not in _VERSIONS:
            raise ConfigError(f"{setting}={name}: allowed are {', '.join(_VERSIONS)}")


def _one_of(properties: Mapping[str, str], setting: str, default: str, table: Mapping[str, T]) -> T:
    text = properties.get(setting, default).strip().lower()
    if text not in table:
        allowed = ", ".join(name or "nothing" for name in table)
        raise ConfigError(f"{setting}={text}: allowed are {allowed}")
    return table[text]


# --- reading -------------------------------------------------------------------------------------


def _context(protocol: int, settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    versions = [_VERSIONS[name] for name in settings.protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if settings.keystore is not None:
        _load_key(context, settings.keystore, settings.key_password)
    store = settings.truststore
    if store is None:
        is_server = protocol == ssl.PROTOCOL_TLS_SERVER
        context.load_default_certs(
            ssl.Purpose.CLIENT_AUTH if is_server else ssl.Purpose.SERVER_AUTH
        )
        return context
    # As in Java, whatever is in the store is believed, also what is no root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    setting = "ssl.truststore.certificates" if store.location is None else "ssl.truststore.location"
    certificates = None if store.certificates is None else store.certificates.reveal()
    with _reading(setting, store.location):
        context.load_verify_locations(cafile=store.location, cadata=certificates)
    return context


def _load_key(context: ssl.SSLContext, store: PemStore, password: Secret | None) -> None:
    was_asked = False

    def ask() -> str:
        # Without an answer from here, OpenSSL would prompt at the terminal.
        nonlocal was_asked
        was_asked = True
        if password is None:
            raise ConfigError("ssl.key.password is missing: the key is encrypted")
        return password.reveal()

    setting = "ssl.keystore.key" if store.location is None else "ssl.keystore.location"
    try:
        with contextlib.ExitStack() as opened:
            chain, key = store.location, None
            if store.certificates is not None and store.key is not None:
                chain_setting = "ssl.keystore.certificate.chain"
                chain = opened.enter_context(_as_file(chain_setting, store.certificates))
                key = opened.enter_context(_as_file(setting, store.key))
            assert chain is not None  # a store has one or the other
            with _reading(setting, store.location):
                context.load_cert_chain(chain, key, password=ask)
    except ConfigError as e:
        # What OpenSSL says of a wrong password depends on the kind of key and of file.
        hint = "; is ssl.key.password the right one?" if was_asked and password is not None else ""
        raise ConfigError(f"{e}{hint}") from None


@contextlib.contextmanager
def _reading(setting: str, location: str | None) -> Iterator[None]:
    """What OpenSSL and the system refuse, as a ConfigError that names the setting."""
    named = setting if location is None else f"{setting}={location}"
    try:
        yield
    except ssl.SSLError as e:
        raise ConfigError(f"{named}: {e.reason or _NO_REASON}") from None
    except OSError as e:
        # Pipes have no position: to OpenSSL's look for other kinds of content that is an error.
        reason = _NO_REASON if e.errno == errno.ESPIPE else e.strerror or str(e)
        raise ConfigError(f"{named}: {reason}") from None


@contextlib.contextmanager
def _as_file(setting: str, pem: Secret) -> Iterator[str]:
    """A path under which OpenSSL reads the text, once: the end of a pipe. No disk sees it."""
    data = pem.reveal().encode()
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)  # a full pipe must not wait for its reader, which is us
        try:
            written = os.write(writing, data) if data else 0
        except BlockingIOError:
            written = 0
        finally:
            os.close(writing)
        if written != len(data):
            raise ConfigError(f"{setting}: {len(data)} bytes do not fit a pipe; use a file")
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)
