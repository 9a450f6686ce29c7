"""Conditions on columns, beside SQL's three-valued logic spelt out row by row."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from lapse.base.ids import TopicPartition
from lapse.records.batch import scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.column_filter import Condition, Test, Value, among, matching
from lapse.records.column_spec import TYPES
from lapse.records.columns import ArrowColumns, ColumnSpec
from lapse.records.layout import Codec
from lapse.records.legacy import Message, MessageSpec, build_messages

TP = TopicPartition("orders", 3)
COLUMNS: dict[str, list[Value | None]] = {
    "key": [b"", b"a", b"a\x00", b"\xff", b"\x7f", None],
    "topic": ["", "a", "ab", "b", "é", None],
    "partition": [0, 1, 7, None],
    "offset": [-1, 0, 1 << 62, None],
    "timestamp": [-(1 << 62), -1, 0, 1_767_268_800_000_000, None],
    "is_tombstone": [True, False, None],
}
COMPARISONS: dict[Test, Callable[[Value, Value], bool]] = {
    Test.EQUAL: operator.eq,
    Test.GREATER: operator.gt,
    Test.GREATER_OR_EQUAL: operator.ge,
    Test.LESS: operator.lt,
    Test.LESS_OR_EQUAL: operator.le,
    Test.STARTS_WITH: lambda value, what: value.startswith(what),  # type: ignore[union-attr, arg-type]
    Test.ENDS_WITH: lambda value, what: value.endswith(what),  # type: ignore[union-attr, arg-type]
    Test.CONTAINS: lambda value, what: what in value,  # type: ignore[operator]
}
TEXTS = {Test.STARTS_WITH, Test.ENDS_WITH, Test.CONTAINS}


def holds(value: Value | None, condition: Condition) -> bool | None:
    """The slow twin: true, false or neither."""
    found: bool | None
    if condition.test is Test.NULL:
        found = value is None
    elif condition.test is Test.SAME:
        found = value == condition.values[0]
    elif value is None:
        found = None
    elif condition.test is Test.IN:
        found = value in condition.values
    else:
        found = COMPARISONS[condition.test](value, condition.values[0])
    return found if found is None or not condition.negated else not found


def conditions_on(name: str) -> list[Condition]:
    values = [value for value in COLUMNS[name] if value is not None]
    tests = [test for test in COMPARISONS if name == "topic" or test not in TEXTS]
    one_value = [Condition(name, t, (v,)) for t in [*tests, Test.SAME] for v in values]
    several = [Condition(name, Test.IN, (values[0], values[-1])), Condition(name, Test.NULL)]
    return [*one_value, *several]


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("name", COLUMNS)
def test_a_condition_holds_as_in_sql(name: str, negated: bool) -> None:
    """Also where no value is null."""
    for values in (COLUMNS[name], COLUMNS[name][:-1]):
        column = pa.array(values, TYPES[name])
        for one in conditions_on(name):
            asked = Condition(one.column, one.test, one.values, negated)
            expected = [holds(value, asked) is True for value in values]
            assert matching({name: column}, [asked]).tolist() == expected, asked


def test_all_of_several_must_hold() -> None:
    columns = {"offset": pa.array([1, 2, 3]), "key": pa.array([b"a", None, b"a"])}
    both = Condition("offset", Test.GREATER, (1,)), Condition("key", Test.EQUAL, (b"a",))
    assert matching(columns, both).tolist() == [False, False, True]


def test_a_list_column_may_be_null() -> None:
    column = pa.array([None, []], TYPES["headers"])
    asked = [Condition("headers", Test.NULL)]
    assert matching({"headers": column}, asked).tolist() == [True, False]


def test_offsets_are_among_others() -> None:
    rng = np.random.default_rng(5)
    for size in (0, 1, 7, 40):
        offsets = np.flatnonzero(rng.random(60) < size / 60)
        for more in (0, 1, 30, 60):
            chosen = np.flatnonzero(rng.random(80) < more / 80)
            expected = [offset in set(chosen.tolist()) for offset in offsets.tolist()]
            assert among(offsets, chosen).tolist() == expected


# --- in batches -----------------------------------------------------------------------------------


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("format_of", ["v2", "v2 lz4", "v1", "v1 gzip"])
def test_records_that_are_left_out_are_as_if_they_were_not_there(
    format_of: str, views: bool
) -> None:
    """Whether or not the column that decides is handed out."""
    rng = random.Random(7)
    keys = [rng.choice([None, b"", b"k%d" % rng.randrange(5)]) for _ in range(300)]
    rows = [(key, b"value %d" % n, 1000 + n) for n, key in enumerate(keys)]
    codec = {"lz4": Codec.LZ4, "gzip": Codec.GZIP}.get(format_of.partition(" ")[2], Codec.NONE)
    data = b""
    for first in range(0, len(rows), 50):
        some = rows[first : first + 50]
        if format_of.startswith("v2"):
            batch = BatchSpec(base_offset=first, codec=codec)
            data += build_batch([NewRecord(*row) for row in some], batch)
        else:
            old = [Message(first + n, row[2], row[0], row[1]) for n, row in enumerate(some)]
            data += build_messages(old, MessageSpec(magic=1, codec=codec))
    conditions = (
        Condition("key", Test.IN, (b"k1", b"k3", b"")),
        Condition("offset", Test.GREATER, (20,)),
    )
    for names in (("value", "partition"), ("key", "value", "offset")):
        spec = ColumnSpec(names, views=views, conditions=conditions)
        made = ArrowColumns(TP, spec).convert(data, scan_batches(data, ""), "here")
        found = [row for part in made for row in part.to_pylist()]
        expected = [n for n, key in enumerate(keys) if key in (b"k1", b"k3", b"") and n > 20]
        assert [row["value"] for row in found] == [b"value %d" % n for n in expected]
        if "key" in names:
            assert [row["offset"] for row in found] == expected
            assert [row["key"] for row in found] == [keys[n] for n in expected]


@pytest.mark.parametrize("format_of", ["v2", "v2 lz4", "v1", "v1 gzip"])
def test_records_of_some_offsets(format_of: str) -> None:
    """Batches without any of them are not even inflated."""
    codec = {"lz4": Codec.LZ4, "gzip": Codec.GZIP}.get(format_of.partition(" ")[2], Codec.NONE)
    data, only = b"", np.array([3, 57, 99, 100, 101, 399])
    for first in range(0, 400, 50):
        rows = range(first, first + 50)
        if format_of.startswith("v2"):
            batch = BatchSpec(base_offset=first, codec=codec)
            data += build_batch([NewRecord(b"k", b"%d" % n) for n in rows], batch)
        else:
            old = [Message(n, 0, b"k", b"%d" % n) for n in rows]
            data += build_messages(old, MessageSpec(magic=1, codec=codec))
    for conditions in ((), (Condition("offset", Test.LESS, (100,)),)):
        spec = ColumnSpec(("value",), offsets=only, conditions=conditions)
        made = ArrowColumns(TP, spec).convert(data, scan_batches(data, ""), "here")
        found = [int(row["value"]) for part in made for row in part.to_pylist()]
        assert found == [n for n in only.tolist() if not conditions or n < 100]


def test_a_batch_of_which_nothing_is_wanted_is_not_decoded() -> None:
    good, bad = (
        build_batch([NewRecord(b"k", b"v" * 50)], BatchSpec(base_offset=n, codec=Codec.LZ4))
        for n in (0, 1)
    )
    data = bytearray(good + bad)
    data[-10:] = bytes(10)
    rows = scan_batches(bytes(data), "", check_crc=False)
    spec = ColumnSpec(("offset",), offsets=np.array([0]))
    (found,) = ArrowColumns(TP, spec).convert(bytes(data), rows, "here")
    assert found["offset"].to_pylist() == [0]
