"""How many files the process may hold open: as many as the system lets it.

A broker holds a descriptor for each connection and each log that is written to; the usual soft
limit of 1,024 is there for programs that use `select`. Called once, by a process that is a broker.
"""

from __future__ import annotations

import contextlib
import resource
import sys

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
