"""A listener's keys and certificates, read again when their files change.

`broker.access.certificates` looks every second. What cannot be used leaves what was in force: a
file that is half written, a key of another certificate. It is tried again when the files change
once more. Connections keep what they began with. Keys that stand in the settings themselves do not
change.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass

from lapse.security.tls import PemStore, TlsSettings, server_context


@dataclass(frozen=True, slots=True)
class _Print:
    """What distinguishes a file from the one that was there before; None where there is none."""

    inode: int
    size: int
    changed_ns: int


class Certificates:
    """Those of one listener.

    Attributes:
        context: for a handshake that begins now.
    """

    def __init__(self, settings: TlsSettings) -> None:
        """Read the files; raises ConfigError where they cannot be used."""
        self._settings = settings
        self._seen = self._prints()
        self.context = server_context(settings)

    def look(self) -> bool:
        """Read files that have changed since the last look; whether new ones are in force now.

        Raises:
            ConfigError: they cannot be used; the context stays. Said once for each change.
        """
        # Before they are read: what changes meanwhile is seen at the next look.
        prints = self._prints()
        if prints == self._seen:
            return False
        self._seen = prints
        self.context = server_context(self._settings)
        return True

    def following(self) -> ssl.SSLContext:
        """A context that stays and takes every handshake to the newest, for servers not ours."""
        first = self.context

        def take(
            connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _asked: ssl.SSLContext
        ) -> None:
            connection.context = self.context

        first.sni_callback = take
        return first

    def _prints(self) -> tuple[_Print | None, ...]:
        stores = (self._settings.keystore, self._settings.truststore)
        return tuple(_print_of(s) for s in stores if s is not None and s.location is not None)


def _print_of(store: PemStore) -> _Print | None:
    assert store.location is not None
    try:
        found = os.stat(store.location)  # follows links: those of a mounted secret are exchanged
    except OSError:
        return None
    return _Print(found.st_ino, found.st_size, found.st_ctime_ns)
