"""Which rows stay, beside an account of keys in plain Python; with memory for a few keys, too."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pytest

from lapse.records.column_spec import TYPES
from lapse.spark.export.decide import Kind, Step
from lapse.spark.export.judge import MEMORY_BYTES, Partition, judge
from lapse.spark.views.key_table import KEYS_MIN

SCHEMA = pa.schema(
    [("key", TYPES["key"]), ("offset", TYPES["offset"]), ("is_tombstone", pa.bool_())]
)
LOG_START, START, END = 100, 600, 1000
KEYS = 200


@dataclass(frozen=True)
class Record:
    offset: int
    key: bytes | None
    is_tombstone: bool = False

    def row(self) -> dict[str, object]:
        return {"offset": self.offset, "key": self.key, "is_tombstone": self.is_tombstone}


def in_batches(records: Sequence[Record], size: int = 70) -> Iterator[pa.RecordBatch]:
    for n in range(0, len(records), size):
        yield pa.RecordBatch.from_pylist([r.row() for r in records[n : n + size]], SCHEMA)


def drawn(chance: random.Random, first: int, until: int) -> list[Record]:
    """A quarter of the offsets are gone, as after a round."""
    found = []
    for offset in range(first, until):
        number = min(chance.randrange(KEYS), chance.randrange(KEYS))
        key = None if number == 0 else b"key %d" % number * (1 + number % 3)
        if chance.random() < 0.75:
            found.append(Record(offset, key, key is not None and chance.random() < 0.2))
    return found


def expected(
    kind: Kind, rows: Sequence[Record], log: Sequence[Record], *, late: bool
) -> tuple[set[int], set[int]]:
    """Offsets of the rows that stay, and of the new records that become rows."""
    new = [r for r in log if r.offset >= START]
    deleted = {r.key: r.offset for r in new if r.is_tombstone}
    newest = {r.key: r.offset for r in new if r.key is not None}
    oldest: dict[bytes | None, int] = {}
    for r in log:
        oldest.setdefault(r.key, r.offset)
    known = {r.key: r.offset for r in sorted(rows, key=lambda r: r.offset) if r.offset >= LOG_START}

    def stays(r: Record) -> bool:
        if r.key is None:
            return kind is Kind.HISTORY
        if late and oldest.get(r.key, END) > known.get(r.key, -1):
            return False
        return r.key not in newest if kind is Kind.LATEST else r.offset > deleted.get(r.key, -1)

    def comes(r: Record) -> bool:
        if r.key is None:
            return kind is Kind.HISTORY
        if r.is_tombstone or r.offset < deleted.get(r.key, -1):
            return False
        return kind is Kind.HISTORY or newest[r.key] == r.offset

    kept = {r.offset for r in rows if r.offset >= LOG_START and stays(r)}
    return kept, {r.offset for r in new if comes(r)}


@pytest.mark.parametrize("memory_bytes", [1, 40_000, MEMORY_BYTES])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kind", Kind)
def test_rows_are_judged_as_by_an_account_of_keys(
    kind: Kind, late: bool, memory_bytes: int
) -> None:
    for seed in range(12):
        chance = random.Random(seed)
        history = drawn(chance, 0, START)
        compacted = [r for r in history if chance.random() < 0.5]
        log = compacted + drawn(chance, START, END)
        rows = [r for r in history if not r.is_tombstone]
        if kind is Kind.LATEST:
            rows = list({r.key: r for r in rows if r.key is not None}.values())
        chance.shuffle(rows)
        files = {f"{n}.parquet": rows[n::3] for n in range(3)}
        step = Step(START, END, LOG_START, moved=True, files=tuple(files))
        asked = Partition(
            step,
            kind,
            late,
            lambda a, b, log=log: in_batches([r for r in log if a <= r.offset < b]),
            {name: lambda some=some: in_batches(some) for name, some in files.items()},
        )
        found = judge(asked, memory_bytes)
        there = [r for r in log if r.offset >= LOG_START]
        stay, come = expected(kind, rows, there, late=late)
        kept = {
            r.offset
            for name, some in files.items()
            for n, r in enumerate(some)
            if (flags := found.stay[name]) is None or flags[n]
        }
        assert kept == stay
        if found.alive is None:
            new = {r.offset for r in there if r.offset >= START} - set(found.dead.tolist())
        else:
            new = set(found.alive.tolist())
            assert found.alive.tolist() == sorted(new)
        assert new == come
        assert KEYS_MIN < KEYS / 4  # so that the least memory takes several passes


@pytest.mark.parametrize(("kind", "read"), [(Kind.LATEST, True), (Kind.HISTORY, False)])
def test_files_are_read_only_where_they_may_lose_rows(kind: Kind, read: bool) -> None:
    """A history grows without a look at what there is, as long as nothing is deleted."""
    looked = []

    def rows() -> Iterator[pa.RecordBatch]:
        looked.append(True)
        yield from in_batches([Record(3, b"old")])

    new = [Record(START, b"new"), Record(START + 1, None)]
    step = Step(START, END, 0, files=("a",))
    asked = Partition(step, kind, False, lambda _a, _b: in_batches(new), {"a": rows})
    assert judge(asked).stay == {"a": None}
    assert bool(looked) is read
