"""What this machine, or the container on it, lets a process have: memory and processors.

A container's limits are those of control groups, version 2; where there are none, the machine's.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")


def memory_bytes(group: Path = _GROUP) -> int:
    """All that may be used, also what is in use now."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # "max" is no limit
        memory = min(memory, int((group / "memory.max").read_text()))
    return memory


def processors(group: Path = _GROUP) -> int:
    """As Java counts them for `local[*]`: at least one, a part of one counts as one."""
    count = os.cpu_count() or 1
    with contextlib.suppress(AttributeError):  # macOS has no such call
        count = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        count = min(count, -(-int(quota) // int(period)))
    return max(count, 1)
