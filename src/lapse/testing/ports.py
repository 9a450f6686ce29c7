"""Ports that a process keeps for as long as it lives, whether or not anything listens there.

A port that the kernel gives (`bind` to 0) is free again the moment its owner is killed, and the
next to ask, or the next connection that goes out, may get it: the owner then cannot come back,
and its clients talk to a stranger. So these lie below the range that the kernel gives from, and
each is claimed by a lock on one byte of a file that all test processes share.
"""

from __future__ import annotations

import fcntl
import functools
import os
import socket
from pathlib import Path

from lapse.base.errors import LapseError
from lapse.base.fs import RealFs

_FIRST, _END = 10_000, 32_768  # Linux gives from 32,768 on (ip_local_port_range)
_STRIDE = 7_919  # a prime: where processes with neighbouring numbers begin is far apart


class _Claims:
    """The file and what this process has locked of it; the kernel unlocks when the process ends.

    Such locks are lost where any descriptor of the file is closed, so there is one, never closed.
    """

    def __init__(self, pid: int) -> None:
        place = Path(os.environ.get("TMPDIR", "/tmp"))  # noqa: S108 — the same for all
        self._file = RealFs().open_append(place / f"lapse-test-ports-{os.getuid()}")
        self._next = pid * _STRIDE

    def take(self) -> int:
        for _ in range(_END - _FIRST):
            port = _FIRST + self._next % (_END - _FIRST)
            self._next += 1
            if self._lock(port) and _is_free(port):
                return port
        raise LapseError(f"none of the ports {_FIRST} to {_END - 1} is free")

    def _lock(self, port: int) -> bool:
        try:
            fcntl.lockf(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            return False
        return True


@functools.cache
def _claims_of(pid: int) -> _Claims:
    """Those of this process: a fork has the memory of its parent, but none of its locks."""
    return _Claims(pid)


def own_port() -> int:
    """A port of the loopback address that no other caller gets while this process lives."""
    return _claims_of(os.getpid()).take()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers bind
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
