"""The table of keys: growing, giving up half of its range, and what it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lapse.kernels import key_table as kernel
from lapse.kernels.key_table import ABSENT, ELSEWHERE, PARTS
from lapse.kernels.keyhash import hash_bytes
from lapse.records.column_spec import TIME
from lapse.spark.views.key_table import KEYS_MIN, NO_TIME, KeyTable

SEEDS = (5, -7)


def records(keys: list[bytes | None], first: int = 0, value: bytes | None = b"v") -> pa.RecordBatch:
    count = len(keys)
    times = pa.array([1000 * (first + n) for n in range(count)], TIME)
    return pa.record_batch(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array([value] * count, pa.binary()),
            "offset": pa.array(range(first, first + count), pa.int64()),
            "timestamp": times,
            "create_time": pa.nulls(count, TIME),
            "is_tombstone": pa.array([value is None] * count),
        }
    )


def told(table: KeyTable) -> dict[bytes, tuple[Any, ...]]:
    names = ("offset", "timestamp", "records", "bytes", "value_length", "tombstone", "create_time")
    return {
        key: tuple(int(entry[name]) for name in names)
        for keys, entries in table.rows()
        for key, entry in zip(keys.to_pylist(), entries, strict=True)
    }


def test_the_last_record_counts_and_all_are_counted() -> None:
    table = KeyTable(0, PARTS, SEEDS, 1 << 20)
    table.note(records([b"a", b"b", None, b"a", b""]))
    table.note(records([b"b"], 5, None))
    assert told(table) == {
        b"a": (3, 3000, 2, 4, 1, 0, NO_TIME), b"b": (5, 5000, 2, 3, -1, 1, NO_TIME),
        b"": (4, 4000, 1, 1, 1, 0, NO_TIME),
    }  # fmt: skip
    assert len(table) == 3


@pytest.mark.parametrize("size", [4, 300])
def test_it_grows_as_keys_come(size: int) -> None:
    """Past the first slots and the first arena several times over."""
    keys = [n.to_bytes(size, "big") for n in range(3000)]
    table = KeyTable(0, PARTS, SEEDS, 1 << 30)
    for first in (0, 3000):
        table.note(records(keys, first))  # type: ignore[arg-type]
    assert {key: offset for key, (offset, *_) in told(table).items()} == {
        key: 3000 + n for n, key in enumerate(keys)
    }
    assert table.part_until == PARTS


@pytest.mark.parametrize("size", [4, 300])
def test_it_gives_up_keys_before_it_takes_more_than_it_may(size: int) -> None:
    memory, keys = 1 << 18, [n.to_bytes(size, "big") for n in range(6000)]
    begin, found = 0, dict[bytes, tuple[Any, ...]]()
    while begin < PARTS:
        table = KeyTable(begin, PARTS, SEEDS, memory)
        for first in range(0, len(keys), 1000):
            table.note(records(keys[first : first + 1000], first))  # type: ignore[arg-type]
            assert table.nbytes <= memory
        assert begin < table.part_until <= PARTS
        here = told(table)
        assert not here.keys() & found.keys()
        found |= here
        begin = table.part_until
    assert len(found) == len(keys)
    assert {key: entry[0] for key, entry in found.items()} == {k: n for n, k in enumerate(keys)}


def test_few_huge_keys_are_held_all_the_same() -> None:
    keys: list[bytes | None] = [bytes([n]) * 100_000 for n in range(KEYS_MIN)]
    table = KeyTable(0, PARTS, SEEDS, 1 << 18)
    table.note(records(keys))
    assert sorted(told(table)) == keys
    assert table.part_until == PARTS


def test_giving_up_half() -> None:
    table = KeyTable(0, PARTS, SEEDS, 1 << 20)
    table.note(records([b"%d" % n for n in range(1000)]))
    whole = told(table)
    table.narrow()
    half = told(table)
    assert 400 < len(half) == len(table) < 600
    assert half == {key: whole[key] for key in half}
    rest = KeyTable(PARTS // 2, PARTS, SEEDS, 1 << 20)
    rest.note(records([b"%d" % n for n in range(1000)]))
    assert half | told(rest) == whole


def test_keys_of_the_same_hash_are_two() -> None:
    """No two such keys are known, so one is given the hash of the other."""
    table = KeyTable(0, PARTS, SEEDS, 1 << 20)
    table.note(records([b"aaaa"]))
    words = np.empty(2, np.uint64)
    hash_bytes(np.frombuffer(b"bbbb", np.uint8), *SEEDS, words)
    table._entries["hash"][0] = words[0]
    table._fill_slots()
    table.note(records([b"bbbb"], 1))
    table.note(records([b"bbbb"], 2))
    found = {key: row[:1] + row[2:3] for key, row in told(table).items()}
    assert found == {b"aaaa": (0, 1), b"bbbb": (2, 2)}


def test_keys_are_found_again() -> None:
    """Each in the table that has its part; keys that are not there nowhere."""
    keys: list[bytes | None] = [b"%d" % (n % 500) * (1 + n % 4) for n in range(3000)]
    asked = records([*keys[::7], None, b"nobody", b""], 10_000)
    begin, found = 0, dict[bytes | None, int]()
    while begin < PARTS:
        table = KeyTable(begin, PARTS, SEEDS, 1 << 16)
        table.note(records(keys))
        entries = table.entries
        for key, entry in zip(asked["key"].to_pylist(), table.find(asked).tolist(), strict=True):
            if entry == ABSENT:
                assert key in {b"nobody", b""}
            elif entry != ELSEWHERE:
                found[key] = int(entries["offset"][entry])
                assert entries["first_offset"][entry] == keys.index(key)
        begin = table.part_until
    newest = {key: n for n, key in enumerate(keys)}
    assert found == {key: newest[key] for key in keys[::7]}


def test_a_key_outside_its_bytes_is_refused() -> None:
    none, nobody = np.empty(0, np.int64), np.empty(0, np.bool_)
    data, table = np.zeros(10, np.uint8), KeyTable(0, PARTS, SEEDS, 1 << 16)
    for start, length, room in ((8, 3, 1), (-1, 1, 1), (0, 1, 2)):
        asked = kernel.Columns(
            data, np.array([start]), np.array([length]), none, none, none, none, nobody
        )
        found = np.empty(room, np.int64)
        arrays, parts = table._table(), (0, PARTS)
        assert kernel.find_keys(asked, arrays, parts, SEEDS, found) == kernel.UNSOUND
