"""How many files the process may hold open, and how many connections each address.

A broker holds a descriptor for each connection and each log that is written to; the usual soft
limit of 1,024 is there for programs that use `select`. It is raised once, by a process that is a
broker. `ConnectionsByAddress` keeps one address from taking them all (`max.connections.per.ip`).
"""

from __future__ import annotations

import contextlib
import resource
import sys
from collections import Counter
from enum import Enum

_DARWIN_MAX = 10_240  # its hard limit may say "infinity", which it then refuses


def raise_open_files() -> int:
    """Raise the soft limit of open files to the hard one; returns what is in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard
    if sys.platform == "darwin":
        wanted = _DARWIN_MAX if hard == resource.RLIM_INFINITY else min(hard, _DARWIN_MAX)
    if soft not in {wanted, resource.RLIM_INFINITY}:
        with contextlib.suppress(ValueError, OSError):  # then it stays as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Admission(Enum):
    """Whether one more connection of an address is taken."""

    TAKEN = "taken"
    REFUSED = "refused"
    REFUSED_FIRST = "refused, for the first time since the address was below the limit"


class ConnectionsByAddress:
    """Open connections, by the address that they come from; lives in the event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()
        self._refused: set[str] = set()

    def enter(self, host: str) -> Admission:
        """One more; what is taken must `leave`."""
        if self._open[host] < self._most:
            self._open[host] += 1
            return Admission.TAKEN
        if host in self._refused:
            return Admission.REFUSED
        self._refused.add(host)
        return Admission.REFUSED_FIRST

    def leave(self, host: str) -> None:
        """One that was taken is over."""
        self._open[host] -= 1
        self._refused.discard(host)
        if not self._open[host]:
            del self._open[host]
