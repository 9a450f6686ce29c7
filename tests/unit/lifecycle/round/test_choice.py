"""Which plan follows from what a task may use, and a split plan's tasks stay within that."""

from __future__ import annotations

import pytest

from lapse.lifecycle.round.choice import SLOT_BYTES, Load, choose, split_for, task_memory

MIB = 1 << 20
FIRST_TABLE = 256 << 10


@pytest.mark.parametrize(
    ("load", "memory_bytes", "name"),
    [
        (Load(0, 10_000_000), 1, "small"),  # nothing is mapped
        (Load(1000, 10), FIRST_TABLE + 1860, "small"),  # 136 a batch, half a one a record
        (Load(1000, 10), FIRST_TABLE + 1859, "split"),
        (Load(100_000, 10), 3_600_000, "split"),
        (Load(100_000, 10), 4_100_000, "small"),  # 29 bytes a key, and a third more to grow
        (Load(100_000, 10, keys=1000), 600_000, "small"),  # the sketches know better
        (Load(100_000, 10, keys=500_000), 4_100_000, "small"),  # but not better than that
        (Load(1000, 10_000), 600_000, "split"),  # the headers alone are too much
        (Load(100_000_000, 200_000), 384 * MIB, "split"),
        (Load(100_000_000, 200_000), 4096 * MIB, "small"),
        (Load(1 << 31, 1000, keys=10), 1023 * MIB, "split"),  # the bitmaps alone are too much
        (Load(1 << 31, 1000, keys=10), 1025 * MIB, "small"),
    ],
)
def test_which_plan(load: Load, memory_bytes: int, name: str) -> None:
    choice = choose(load, memory_bytes)
    assert ("small" if choice.split is None else "split") == name
    mib, kib = f"{memory_bytes / MIB:.1f} MiB", f"{memory_bytes / 1024:.1f} KiB"
    assert f"a task has {mib if memory_bytes >= MIB else kib}" in choice.why


def test_the_reason_in_words() -> None:
    load = Load(100_000_000, 200_000, keys=90_000_000)
    assert choose(load, 4096 * MIB).why == (
        "about 90000000 keys of 100000000 dirty records, in 200000 batches in all, need "
        "3594.5 MiB; a task has 4096.0 MiB"
    )
    assert choose(load, 384 * MIB).why.endswith(
        "a task has 384.0 MiB: 344 hash ranges of about 261628 keys"
    )
    assert choose(Load(7, 1), MIB).why.startswith("7 keys at most of 7 dirty records")


def test_what_the_small_plan_leaves_is_told_and_a_split_one_leaves_nothing() -> None:
    load = Load(1000, 10)
    assert choose(load, FIRST_TABLE + 1860).spare_bytes == 0
    assert choose(load, FIRST_TABLE + 1860 + 17 * MIB).spare_bytes == 17 * MIB
    assert choose(load, FIRST_TABLE + 1859).spare_bytes == 0
    assert choose(Load(0, 10_000_000), 1).spare_bytes == 0  # nothing is mapped, headers are read
    # A sketch may be wrong by some keys, and the map may then take what the records need.
    assert choose(Load(100_000, 10, keys=1000), 600_000).spare_bytes == 0
    known = choose(Load(100_000, 10), 8 * MIB).spare_bytes
    assert choose(Load(100_000, 10, keys=1000), 8 * MIB).spare_bytes == known > MIB


@pytest.mark.parametrize("memory_mib", [1, 16, 384, 2048])
@pytest.mark.parametrize("keys", [1, 10**6, 10**8, 10**10, 10**12])
def test_a_task_stays_within_its_memory(memory_mib: int, keys: int) -> None:
    split = split_for(keys, memory_mib * MIB)
    part = split.chunk_entries * SLOT_BYTES
    assert 2 * part <= memory_mib * MIB * 0.51, "a scan holds its entries twice"
    found = split.chunk_entries * 4
    assert split.slots_max * SLOT_BYTES + part + found <= memory_mib * MIB * 0.85, "a merge"
    assert split.ranges * split.keys_a_range >= keys
    if split.ranges < 1 << 16:
        assert split.keys_a_range <= split.slots_max * 0.5, "one pass a range will do"


def test_next_to_no_memory_is_enough() -> None:
    split = split_for(10**9, 1)
    assert split.ranges == 1 << 16
    assert split.slots_max * SLOT_BYTES == split.chunk_entries * SLOT_BYTES == 64 << 10
    assert split_for(0, 1).ranges == 1


@pytest.mark.parametrize(
    ("asked", "tasks", "host", "each"),
    [
        (768, 2, 4096, 384),
        (2048, 2, 1024, 384),  # three quarters of what there is
        (2048, 2, None, 1024),  # on several machines nobody knows
        (2048, 0, None, 2048),
        (1, 100, 1024, 1),
    ],
)
def test_tasks_share_what_was_asked_for(
    asked: int, tasks: int, host: int | None, each: int
) -> None:
    assert task_memory(asked, tasks, host) == each
