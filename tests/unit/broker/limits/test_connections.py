"""The limit of open files, in a process of its own as it cannot be put back; connections."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from lapse.base.config import broker_config
from lapse.base.errors import ConfigError
from lapse.broker.limits.connections import (
    Admission,
    ConnectionsByAddress,
    allowed_bytes,
    connections_allowed,
)

TAKEN, REFUSED, REFUSED_FIRST = Admission

CHILD = """
import resource
from lapse.broker.limits.connections import raise_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(raise_open_files(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("soft", "hard"), [(128, 500), (500, 500)])
def test_the_soft_limit_becomes_the_hard_one(soft: int, hard: int) -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > hard
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(soft=soft, hard=hard)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["500", "500", "500"]


def test_an_address_may_have_so_many_connections() -> None:
    """Refusals are told once, until one of the address's connections is over."""
    connections = ConnectionsByAddress(2)
    entered = [connections.enter("a") for _ in range(4)]
    assert entered == [TAKEN, TAKEN, REFUSED_FIRST, REFUSED]
    assert connections.enter("b") is TAKEN
    connections.leave("a")
    assert [connections.enter("a") for _ in range(3)] == [TAKEN, REFUSED_FIRST, REFUSED]
    assert ConnectionsByAddress(0).enter("a") is REFUSED_FIRST


def test_all_together_may_have_so_many() -> None:
    connections = ConnectionsByAddress(2, 3)
    assert [connections.enter(host) for host in "aabb"] == [TAKEN, TAKEN, TAKEN, REFUSED_FIRST]
    assert connections.limit("b") == "max.connections is 3"
    connections.leave("a")
    assert connections.enter("b") is TAKEN
    assert connections.enter("b") is REFUSED_FIRST
    assert connections.limit("b") == "max.connections.per.ip is 2"


def test_some_addresses_may_have_more_or_fewer() -> None:
    settings = {
        "max.connections.per.ip": "1",
        "max.connections.per.ip.overrides": " 10.0.0.1:2, ::1:0 , [fe80::1]:3",
    }
    connections = connections_allowed(broker_config(settings))
    taken = dict.fromkeys(("10.0.0.1", "10.0.0.2", "::1", "fe80::1"), 0)
    for host in taken:
        while connections.enter(host) is TAKEN:
            taken[host] += 1
    assert list(taken.values()) == [2, 1, 0, 3]
    assert connections.enter("::ffff:10.0.0.1") is not TAKEN  # the same, by a socket of IPv6
    connections.leave("::ffff:10.0.0.1")
    assert connections.enter("10.0.0.1") is TAKEN
    assert connections.limit("::1") == "max.connections.per.ip.overrides has ::1:0"


@pytest.mark.parametrize(
    "text", ["10.0.0.1", "here:3", "10.0.0.1:x", "10.0.0.1:-1", ":3", "10.0.0.1:" + "9" * 5000]
)
def test_overrides_that_say_nothing(text: str) -> None:
    with pytest.raises(ConfigError, match=r"\.per\.ip\.overrides=.*allowed is ADDRESS"):
        connections_allowed(broker_config({"max.connections.per.ip.overrides": text}))


def test_an_eighth_of_the_memory_unless_told() -> None:
    assert allowed_bytes(12345) == 12345
    assert allowed_bytes(-1) == allowed_bytes(0)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < allowed_bytes(-1) <= total // 8
