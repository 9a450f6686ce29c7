"""One task's memory as `clean` and `lifecycle` would choose it on this machine, without a Spark."""

from __future__ import annotations

from lapse.base.host import memory_bytes, processors
from lapse.lifecycle.round.choice import task_memory
from lapse.lifecycle.round.plan import MapMemory
from lapse.lifecycle.round.slots import local_slots

IDLE_BYTES = 450 << 20  # of all processes together, where it cannot be measured
JAVA_GROWTH_BYTES = 48 << 20  # Java keeps some data of jobs and their results
TASKS_SHARE = 4  # the tasks get at least 1/4 of the requested memory


def memory_here(requested_bytes: int, master: str = "local[*]") -> MapMemory:
    """One task's memory before any process runs; a master elsewhere counts as this machine."""
    tasks = local_slots(master, processors()) or processors()
    return share_of(requested_bytes, tasks, memory_bytes(), IDLE_BYTES + JAVA_GROWTH_BYTES)


def share_of(requested_bytes: int, tasks: int, host_bytes: int, used_bytes: int) -> MapMemory:
    """What remains for one of `tasks` tasks; pure."""
    left = max(requested_bytes - used_bytes, requested_bytes // TASKS_SHARE)
    return MapMemory(task_memory(left, tasks, host_bytes))
