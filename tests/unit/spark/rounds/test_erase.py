"""What of the Spark search needs no Spark; the rest is in tests/spark/test_prove_erased.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lapse.lifecycle.erase.findings import AuditUnit
from lapse.lifecycle.erase.places import FileState
from lapse.lifecycle.erase.search import make_search
from lapse.lifecycle.erase.table import table_of
from lapse.spark.rounds.erase import DEATHS_MAX, DIED, audit_one, dealt, is_same
from lapse.testing.clock import ManualClock

MIB = 1 << 20
STATE = FileState(device=1, inode=2, size=3, mtime_ns=4, ctime_ns=5)


def test_a_file_is_the_same_whatever_its_device_is_called() -> None:
    assert is_same(replace(STATE, device=9), STATE)
    assert not is_same(STATE, None)


@pytest.mark.parametrize("field", ["inode", "size", "mtime_ns", "ctime_ns"])
def test_another_file_is_not(field: str) -> None:
    assert not is_same(replace(STATE, **{field: 99}), STATE)


def test_small_files_share_a_task_and_a_giant_has_one_of_its_own() -> None:
    sizes = [*[MIB] * 100, 500 * MIB]
    units = [(n, AuditUnit("r", f"{n}.log")) for n in range(len(sizes))]
    bins = dealt(units, sizes, task_slots=2)
    assert sorted(unit for some in bins for unit in some) == units
    assert len(bins) == 8
    assert [n for n, _ in next(some for some in bins if (100, units[100][1]) in some)] == [100]
    assert len(dealt(units[:3], [MIB] * 3, task_slots=64)) == 1


def test_after_two_deaths_a_file_is_not_touched() -> None:
    search = make_search([b"k"])
    unit = AuditUnit("/nowhere", "x")
    found = [
        audit_one(unit, search, table_of(search), ManualClock(), attempt)
        for attempt in (DEATHS_MAX - 1, DEATHS_MAX)
    ]
    assert [(one.vanished, one.problem) for one in found] == [(True, None), (False, DIED)]
