"""How many files the process may hold open, how many connections all and each address, and memory.

A broker holds a descriptor for each connection and each log that is written to; the usual soft
limit of 1,024 is there for programs that use `select`. It is raised once, by a process that is a
broker. `ConnectionsByAddress` keeps connections below `max.connections`, and one address from
taking them all (`max.connections.per.ip` and its overrides).
"""

from __future__ import annotations

import contextlib
import ipaddress
import resource
import sys
from collections import Counter
from collections.abc import Mapping
from enum import Enum

from lapse.base.config import INT_MAX, BrokerConfig
from lapse.base.errors import ConfigError
from lapse.base.host import memory_bytes
from lapse.base.typed import whole
from lapse.broker.limits.addresses import plain

_DARWIN_MAX = 10_240  # its hard limit may say "infinity", which it then refuses
_MEMORY_PART = 8
_REMEMBERED_MAX = 1000  # addresses that were refused; of more nothing is said


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
    """Open connections, by the address that they come from; lives in the event loop.

    `most` is for each address that `overrides` does not name, `in_all` for all together.
    """

    def __init__(
        self, most: int, in_all: int = INT_MAX, overrides: Mapping[str, int] | None = None
    ) -> None:
        self._most, self._in_all = most, in_all
        self._overrides = dict(overrides or {})
        self._open: Counter[str] = Counter()
        self._count = 0
        self._refused: set[str] = set()

    def enter(self, host: str) -> Admission:
        """One more; what is taken must `leave`."""
        host = plain(host)
        if self._open[host] < self._most_of(host) and self._count < self._in_all:
            self._open[host] += 1
            self._count += 1
            self._refused.discard(host)
            return Admission.TAKEN
        if host in self._refused or len(self._refused) >= _REMEMBERED_MAX:
            return Admission.REFUSED
        self._refused.add(host)
        return Admission.REFUSED_FIRST

    def limit(self, host: str) -> str:
        """The setting that keeps an address from having one more, for the log."""
        host = plain(host)
        if self._open[host] < self._most_of(host):
            return f"max.connections is {self._in_all}"
        if host in self._overrides:
            return f"max.connections.per.ip.overrides has {host}:{self._overrides[host]}"
        return f"max.connections.per.ip is {self._most}"

    def leave(self, host: str) -> None:
        """One that was taken is over."""
        host = plain(host)
        self._open[host] -= 1
        self._count -= 1
        self._refused.discard(host)
        if not self._open[host]:
            del self._open[host]

    def _most_of(self, host: str) -> int:
        return self._overrides.get(host, self._most)


def connections_allowed(config: BrokerConfig) -> ConnectionsByAddress:
    """By the settings; raises ConfigError."""
    overrides = _overrides_of(config.max_connections_per_ip_overrides)
    return ConnectionsByAddress(config.max_connections_per_ip, config.max_connections, overrides)


def _overrides_of(text: str) -> dict[str, int]:
    """`max.connections.per.ip.overrides`: addresses with a number each, by commas.

    Raises ConfigError.
    """
    found = {}
    for item in filter(None, map(str.strip, text.split(","))):
        host, _, number = item.rpartition(":")
        try:
            address = str(ipaddress.ip_address(host.strip("[]")))
        except ValueError:
            address = ""
        limit = whole(number)
        if not address or limit is None:
            raise ConfigError(
                f"max.connections.per.ip.overrides={text}: allowed is ADDRESS:NUMBER, as in "
                "127.0.0.1:200, by commas; names of hosts are not looked up"
            )
        found[address] = limit
    return found


def allowed_bytes(setting: int) -> int:
    """What a setting of memory allows; -1 (and 0, as in Kafka) stands for an eighth.

    Of the machine's memory, or of what the container may have of it.
    """
    return setting if setting > 0 else memory_bytes() // _MEMORY_PART
