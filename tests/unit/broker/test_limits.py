"""The limit of open files, in a process of its own as it cannot be put back; connections."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from lapse.broker.limits import Admission, ConnectionsByAddress

TAKEN, REFUSED, REFUSED_FIRST = Admission

CHILD = """
import resource
from lapse.broker.limits import raise_open_files
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
