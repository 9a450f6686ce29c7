"""What a task of a round may use, by which the small plan or the split one is chosen.

`clean` and `lifecycle` know how many tasks run at once; `plan` and `explain`, which start no Spark,
say what those would choose on this machine.
"""

from __future__ import annotations

from lapse.base.host import memory_bytes, processors
from lapse.lifecycle.round.choice import task_memory
from lapse.lifecycle.round.plan import MapMemory
from lapse.spark.bins import local_slots


def memory_of(asked_bytes: int, tasks: int, master: str) -> MapMemory:
    """Of those asked for all tasks, one's; on one machine no more than that has."""
    here = local_slots(master, 1) is not None
    return MapMemory(task_memory(asked_bytes, tasks, memory_bytes() if here else None))


def memory_here(asked_bytes: int, master: str = "local[*]") -> MapMemory:
    """The same where nobody runs yet; a master of other machines counts as this one."""
    tasks = local_slots(master, processors()) or processors()
    return memory_of(asked_bytes, tasks, master)
