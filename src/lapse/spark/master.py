"""Whose work a session does: which masters Spark knows, and whether somebody is there.

Spark itself answers a wrong one with Java stacks, and waits for a master of its own that is not
there for more than a minute.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator

from lapse.base.errors import ConfigError, LapseError

_KNOWN = re.compile(
    r"local(\[(\*|[1-9]\d*)(, *\d+)?\])?|local-cluster\[\d+, *\d+, *\d+\]|spark://.+|k8s://.+|yarn"
)
_STANDALONE = "spark://"
_PORT = 7077
_SECONDS_MAX = 5.0


class NoMaster(LapseError):
    """Nobody answers where a master should be."""


def check_master(master: str) -> None:
    """Raises ConfigError for what is no master; NoMaster where none of Spark's own answers."""
    if not _KNOWN.fullmatch(master):
        raise ConfigError(
            f"{master!r} is no Spark master: local[N], local[*], local-cluster[N,CORES,MIB], "
            "spark://HOST:PORT, yarn or k8s://…"
        )
    if not master.startswith(_STANDALONE):
        return
    reasons = []
    for host, port in _addresses(master):
        try:
            socket.create_connection((host, port), _SECONDS_MAX).close()
        except OSError as e:
            reasons.append(f"{host}:{port}: {e.strerror or e}")
        else:
            return
    raise NoMaster(f"no Spark master answers at {master} ({'; '.join(reasons)}): is it running?")


def _addresses(master: str) -> Iterator[tuple[str, int]]:
    for text in master.removeprefix(_STANDALONE).split(","):
        host, _, port = text.strip().rpartition(":")
        number = 0
        with contextlib.suppress(ValueError):
            number = int(port)
        if not host or not 0 < number < 1 << 16:
            raise ConfigError(f"{master!r}: a Spark master is at HOST:PORT, as in host:{_PORT}")
        yield host.strip("[]"), number
