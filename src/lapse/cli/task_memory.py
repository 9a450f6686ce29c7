"""What a task of a round may use, by which the small plan or the split one is chosen.

What is asked for on one machine is of all processes together: ours, Java, Spark's Python daemon and
its workers. What those have before there is anything to do is measured, once they all run, and the
tasks share the rest. Pages that processes share count once; pages of files (code, log segments) do
not count, since the system takes them back when it wants them. On other machines than this one what
is asked for is of the tasks alone.

`clean` and `lifecycle` know how many tasks run at once; `plan` and `explain`, which start no Spark,
say what those would choose on this machine.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from lapse.base.host import memory_bytes, processors
from lapse.lifecycle.round.choice import task_memory
from lapse.lifecycle.round.plan import MapMemory
from lapse.spark.session.local import local_slots

IDLE_BYTES = 450 << 20  # of all of them, where it cannot be measured
JAVA_GROWTH_BYTES = 48 << 20  # by what it keeps of jobs and answers
TASKS_SHARE = 4  # part of what is asked for that tasks have in any case, one in so many


def memory_of(asked_bytes: int, tasks: int, master: str) -> MapMemory:
    """One task's, now that everybody runs; on one machine no more than that has."""
    if local_slots(master, 1) is None:
        return MapMemory(task_memory(asked_bytes, tasks, None))
    used = idle_bytes(os.getpid()) or IDLE_BYTES
    return share_of(asked_bytes, tasks, memory_bytes(), used + JAVA_GROWTH_BYTES)


def memory_here(asked_bytes: int, master: str = "local[*]") -> MapMemory:
    """The same where nobody runs yet; a master of other machines counts as this one."""
    tasks = local_slots(master, processors()) or processors()
    return share_of(asked_bytes, tasks, memory_bytes(), IDLE_BYTES + JAVA_GROWTH_BYTES)


def share_of(asked_bytes: int, tasks: int, host_bytes: int, used_bytes: int) -> MapMemory:
    """What is left for one of so many tasks; pure."""
    left = max(asked_bytes - used_bytes, asked_bytes // TASKS_SHARE)
    return MapMemory(task_memory(left, tasks, host_bytes))


def idle_bytes(pid: int) -> int:
    """What a process and those below it have now; 0 where the system does not say."""
    return sum(map(_own_bytes, _with_descendants(pid)))


def _with_descendants(pid: int) -> Iterator[int]:
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has just ended
            for child in path.read_text().split():
                yield from _with_descendants(int(child))


def _own_bytes(pid: int) -> int:
    """Of a page that several have, its part."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss_Anon:"):
                return int(line.split()[1]) << 10
    return 0
