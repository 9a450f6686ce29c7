"""The limit of open files, in a process of its own: it cannot be put back."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

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
