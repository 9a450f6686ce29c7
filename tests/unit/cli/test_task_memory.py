"""Tasks share what was asked for, and on one machine they cannot have more than there is."""

from __future__ import annotations

import pytest

from lapse.base.host import memory_bytes, processors
from lapse.cli.task_memory import memory_here, memory_of

MIB = 1 << 20
ALL = memory_bytes()


@pytest.mark.parametrize(
    ("asked", "tasks", "master", "found"),
    [
        (768 * MIB, 2, "local[*]", 384 * MIB),
        (100 * ALL, 2, "local[2]", (ALL - ALL // 4) // 2),
        (100 * ALL, 50, "spark://host:7077", 2 * ALL),
        (1, 8, "local", 1),
    ],
)
def test_of_a_run(asked: int, tasks: int, master: str, found: int) -> None:
    assert memory_of(asked, tasks, master).bytes == found


def test_where_nobody_runs_yet() -> None:
    assert memory_here(64 * MIB).bytes == 64 * MIB // processors()
    assert memory_here(64 * MIB, "local[4,4]").bytes == 16 * MIB
    assert memory_here(64 * MIB, "yarn").bytes == 64 * MIB // processors()
