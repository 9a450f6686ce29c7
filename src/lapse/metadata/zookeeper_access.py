"""How one gets into ZooKeeper, by TLS and with a login; and who else does, by ACLs.

Java's TLS clients believe the truststore alone; kazoo's own would believe the system's
certificates, too. And kazoo looks for answers at the socket only: where one record of TLS has
several, all but the first would wait for the next ping. So connections are made here.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from lapse.base.errors import ConfigError
from lapse.base.secret import Secret
from lapse.base.zookeeper_settings import ZooKeeperConfig
from lapse.security.tls import client_context, tls_settings

_log = logging.getLogger(__name__)

_LOGIN = "lapse.zookeeper.login"
_SET_ACL = "zookeeper.set.acl"
_UNLOCKS_KEY = "ssl.key.password"  # as TLS calls it; a setting's name


@dataclass(frozen=True, slots=True)
class Access:
    """How connections are made.

    Attributes:
        login: USER:PASSWORD of ZooKeeper's scheme `digest`; None: nobody logs in.
        sets_acl: whether nodes are for those alone who get in as this one does.
        tls: makes what a connection is encrypted by, from the files as they are then; None: it is
            plain text.
    """

    login: Secret | None = None
    sets_acl: bool = False
    tls: Callable[[], ssl.SSLContext] | None = None


def access_of(config: ZooKeeperConfig, connect: str) -> Access:
    """By a broker's settings; `connect` is its `zookeeper.connect`. Reads files.

    Raises:
        ConfigError: a setting cannot be followed, or does not go with another.
    """
    login = config.zookeeper_login.reveal()
    user, colon, password = login.partition(":")
    if login and not (user and colon and password):
        raise ConfigError(f"{_LOGIN}: allowed is USER:PASSWORD")
    tls = _tls(config) if config.zookeeper_ssl_client_enable else None
    has_certificate = tls is not None and bool(config.zookeeper_ssl_keystore_location)
    if config.zookeeper_set_acl:
        if not (login or has_certificate):
            raise ConfigError(
                f"{_SET_ACL}=true: for whom? Set {_LOGIN}, or zookeeper.ssl.keystore.location"
            )
        if not connect.partition("/")[2].strip("/"):
            raise ConfigError(
                f"{_SET_ACL}=true: zookeeper.connect={connect} needs a path, such as /lapse: nodes "
                "of others are not to be ours"
            )
    return Access(config.zookeeper_login if login else None, config.zookeeper_set_acl, tls)


def _tls(config: ZooKeeperConfig) -> Callable[[], ssl.SSLContext]:
    stores = {
        "ssl.truststore": (
            config.zookeeper_ssl_truststore_type, config.zookeeper_ssl_truststore_location,
        ),
        "ssl.keystore": (
            config.zookeeper_ssl_keystore_type, config.zookeeper_ssl_keystore_location,
        ),
    }  # fmt: skip
    given = {
        "ssl.endpoint.identification.algorithm": (
            config.zookeeper_ssl_endpoint_identification_algorithm
        )
    }
    for store, (kind, location) in stores.items():
        if location:
            by_name = "PEM" if location.lower().endswith(".pem") else "JKS"
            given |= {f"{store}.location": location, f"{store}.type": kind or by_name}
    password = config.zookeeper_ssl_keystore_password.reveal()
    if password:
        given[_UNLOCKS_KEY] = password

    def context() -> ssl.SSLContext:
        try:
            return client_context(tls_settings(given))
        except ConfigError as e:
            said = str(e).replace(_UNLOCKS_KEY, "ssl.keystore.password")
            raise ConfigError(f"of zookeeper.ssl.client.enable, zookeeper.{said}") from e

    context()  # what is wrong is said before anything is opened
    return context


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, with connections made here.

    Attributes:
        why: why the last attempt to connect came to nothing; empty where it did not.
    """

    def __init__(self, context: Callable[[], ssl.SSLContext]) -> None:
        super().__init__()
        self._read, self._context = context, context()
        self.why = ""

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None,
        timeout: float | None = None, **_of_kazoos_own: object,
    ) -> ssl.SSLSocket:  # fmt: skip
        """With certificates as they are by now. Raises OSError."""
        try:
            self._context = self._read()
        except ConfigError as e:
            _log.warning("going on with the certificates of before: %s", e)
        try:
            plain = socket.create_connection(address, timeout)
            try:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as kazoo's own have
                made = self._context.wrap_socket(plain, server_hostname=hostname)
            except BaseException:
                plain.close()
                raise
        except OSError as e:
            self.why = str(e)
            raise
        self.why = ""
        return made

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], broken: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:  # fmt: skip
        """What TLS has taken off the socket already counts, too."""
        held = [one for one in readers if isinstance(one, ssl.SSLSocket) and one.pending()]
        others = [one for one in readers if one not in held]
        found = super().select(others, writers, broken, 0 if held else timeout)
        return [*held, *found[0]], found[1], found[2]
