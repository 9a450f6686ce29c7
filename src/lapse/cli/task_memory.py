"""The memory that one task of a round may use, which decides between the small and the split plan.

With Spark on this machine, the requested memory is for all processes together: ours, Java, Spark's
Python daemon and its workers. Their memory is measured once all of them run and are idle, and the
tasks share what remains. Pages that processes share count once; pages of files (code, log segments)
do not count, since the system can take them back. With Spark on other machines, the requested
memory is for the tasks alone.

`clean` and `lifecycle` know how many tasks run at once; `plan` and `explain` start no Spark, and go
by `lifecycle.outlook.memory`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from lapse.base.host import memory_bytes
from lapse.lifecycle.outlook.memory import IDLE_BYTES, JAVA_GROWTH_BYTES, share_of
from lapse.lifecycle.round.choice import task_memory
from lapse.lifecycle.round.plan import MapMemory
from lapse.lifecycle.round.slots import local_slots


def memory_of(requested_bytes: int, tasks: int, master: str) -> MapMemory:
    """One task's memory, with all processes running; on this machine no more than it has."""
    if local_slots(master, 1) is None:
        return MapMemory(task_memory(requested_bytes, tasks, None))
    used = idle_bytes(os.getpid()) or IDLE_BYTES
    return share_of(requested_bytes, tasks, memory_bytes(), used + JAVA_GROWTH_BYTES)


def idle_bytes(pid: int) -> int:
    """The memory of a process and its descendants now; 0 where the system does not report it."""
    return sum(map(_own_bytes, _with_descendants(pid)))


def _with_descendants(pid: int) -> Iterator[int]:
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the process has just ended
            for child in path.read_text().split():
                yield from _with_descendants(int(child))


def _own_bytes(pid: int) -> int:
    """A process's memory; of a page that several processes share, its share."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss_Anon:"):
                return int(line.split()[1]) << 10
    return 0
