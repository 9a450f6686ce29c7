"""Tasks share what all processes may have and have not, and no more than the machine has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lapse.base.host import memory_bytes, processors
from lapse.cli.task_memory import idle_bytes, memory_of
from lapse.lifecycle.outlook.memory import (
    IDLE_BYTES,
    JAVA_GROWTH_BYTES,
    memory_here,
    share_of,
)

MIB, GIB = 1 << 20, 1 << 30
ALL = memory_bytes()


@pytest.mark.parametrize(
    ("asked", "tasks", "host", "used", "found"),
    [
        (768 * MIB, 2, 8 * GIB, 478 * MIB, 145 * MIB),
        (100 * GIB, 2, 8 * GIB, 500 * MIB, 3 * GIB),  # no more than there is
        (400 * MIB, 2, 8 * GIB, 478 * MIB, 50 * MIB),  # a fourth of it, and so more in all
        (1, 8, 8 * GIB, 0, 1),
    ],
)
def test_what_is_left_for_a_task(asked: int, tasks: int, host: int, used: int, found: int) -> None:
    assert share_of(asked, tasks, host, used).bytes == found


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the system does not say")
def test_what_processes_have_counts_all_of_them() -> None:
    mine = idle_bytes(os.getpid())
    code = "import time; data = bytearray(b'x' * (64 << 20)); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert idle_bytes(os.getpid()) - mine > 64 * MIB
        assert 64 * MIB < memory_of(2 * GIB, 1, "local[1]").bytes < 2 * GIB - 64 * MIB
        process.kill()
    assert idle_bytes(process.pid) == 0


def test_of_tasks_elsewhere_it_is_theirs_alone() -> None:
    assert memory_of(100 * ALL, 50, "spark://host:7077").bytes == 2 * ALL


def test_where_nobody_runs_yet() -> None:
    usual = IDLE_BYTES + JAVA_GROWTH_BYTES
    assert memory_here(64 * MIB).bytes == 16 * MIB // processors()
    assert memory_here(2 * usual, "local[4,4]") == share_of(usual, 4, ALL, 0)
    assert memory_here(64 * MIB, "yarn").bytes == 16 * MIB // processors()
