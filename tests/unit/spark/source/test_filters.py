"""Which filters are taken, and what they exclude; `spark/test_filters` has Spark apply them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from lapse.records.column_filter import Condition, Test
from lapse.spark.scan.plan import OFFSET_MAX, Pruning
from lapse.spark.source.filters import condition_of, pruning_of, taken

OFFSET, TIME, TOPIC, NUMBER = ("offset",), ("timestamp",), ("topic",), ("partition",)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MICRO = timedelta(microseconds=1)
LAST, LAST_MS = datetime.max.replace(tzinfo=UTC), 253_402_300_799_999
NOON_MS = 1_767_268_800_000


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([GreaterThan(OFFSET, 7)], Pruning(offset_from=8)),
        ([GreaterThanOrEqual(OFFSET, 7), LessThan(OFFSET, 9)], Pruning(7, 9)),
        ([LessThanOrEqual(OFFSET, 7), LessThan(OFFSET, 9)], Pruning(0, 8)),
        ([EqualTo(OFFSET, 7)], Pruning(7, 8)),
        ([EqualNullSafe(OFFSET, 7)], Pruning(7, 8)),
        ([In(OFFSET, (9, None, 7))], Pruning(7, 10)),
        ([In(OFFSET, (None,))], Pruning(0, 0)),
        ([EqualTo(TOPIC, "a")], Pruning(topics=frozenset("a"))),
        ([In(TOPIC, ("a", "b")), EqualTo(TOPIC, "c")], Pruning(topics=frozenset())),
        ([In(NUMBER, (1, 2)), In(NUMBER, (2, 3))], Pruning(numbers=frozenset({2}))),
        ([GreaterThanOrEqual(TIME, NOON)], Pruning(timestamp_from=NOON_MS)),
        (
            [EqualTo(TIME, NOON)],
            Pruning(timestamp_from=NOON_MS, timestamp_until=NOON_MS + 1),
        ),
        ([LessThan(TIME, NOON)], Pruning(timestamp_until=NOON_MS)),
        ([LessThanOrEqual(TIME, LAST)], Pruning(timestamp_until=LAST_MS + 1)),
        ([LessThanOrEqual(TIME, NOON)], Pruning(timestamp_until=NOON_MS + 1)),
        (
            [LessThan(TIME, NOON + MICRO), LessThan(TIME, NOON + 9 * MICRO)],
            Pruning(timestamp_until=NOON_MS + 1),
        ),
        (
            [In(TIME, (NOON + 5000 * MICRO, None, NOON))],
            Pruning(timestamp_from=NOON_MS, timestamp_until=NOON_MS + 6),
        ),
        (
            [GreaterThan(TIME, NOON + MICRO)],
            Pruning(timestamp_from=NOON_MS + 1),
        ),
        (
            [GreaterThan(TIME, NOON.astimezone(timezone(timedelta(hours=5))))],
            Pruning(timestamp_from=NOON_MS),
        ),
    ],
)
def test_filters_exclude_what_they_say(filters: list[Filter], expected: Pruning) -> None:
    assert pruning_of(filters) == expected


def test_what_is_not_understood_excludes_nothing() -> None:
    filters: list[Filter] = [
        In(TIME, (None,)),
        Not(GreaterThan(OFFSET, 7)),
        IsNull(OFFSET),
        IsNotNull(OFFSET),
        EqualNullSafe(OFFSET, None),
        EqualTo(("key",), b"k"),
        GreaterThan(("headers", "offset"), 7),
        StringStartsWith(TOPIC, "a"),
    ]
    assert pruning_of(filters) == Pruning()
    assert Pruning().offset_until == OFFSET_MAX


NOON_MICROS = 1000 * NOON_MS
KEY = ("key",)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (EqualTo(KEY, b"k"), Condition("key", Test.EQUAL, (b"k",))),
        (EqualTo(KEY, bytearray(b"k")), Condition("key", Test.EQUAL, (b"k",))),
        (EqualNullSafe(NUMBER, 3), Condition("partition", Test.SAME, (3,))),
        (GreaterThan(TIME, NOON), Condition("timestamp", Test.GREATER, (NOON_MICROS,))),
        (LessThan(("create_time",), NOON), Condition("create_time", Test.LESS, (NOON_MICROS,))),
        (EqualTo(("control",), False), Condition("control", Test.EQUAL, (False,))),
        (In(OFFSET, (1, 5)), Condition("offset", Test.IN, (1, 5))),
        (IsNull(("headers",)), Condition("headers", Test.NULL)),
        (IsNotNull(KEY), Condition("key", Test.NULL, negated=True)),
        (Not(IsNotNull(KEY)), Condition("key", Test.NULL)),
        (Not(EqualTo(KEY, b"")), Condition("key", Test.EQUAL, (b"",), negated=True)),
        (StringStartsWith(TOPIC, "a"), Condition("topic", Test.STARTS_WITH, ("a",))),
    ],
)
def test_a_filter_on_a_column_is_taken(one: Filter, expected: Condition) -> None:
    assert condition_of(one) == expected
    assert taken([one])[1] == []
    assert taken([one])[0].conditions == (expected,)


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("headers", "key"), "k"),
        EqualTo(("nobody",), 1),
        EqualNullSafe(OFFSET, None),
        EqualTo(OFFSET, True),
        EqualTo(OFFSET, 1.5),
        EqualTo(NUMBER, 1 << 40),
        EqualTo(OFFSET, 1 << 70),
        EqualTo(("control",), 1),
        EqualTo(KEY, "k"),
        EqualTo(TOPIC, b"a"),
        GreaterThan(TIME, NOON.replace(tzinfo=None)),  # whose noon?
        EqualTo(TIME, NOON_MICROS),
        EqualTo(("headers",), ()),
        In(OFFSET, ()),
        In(OFFSET, (1, None)),
        In(OFFSET, (1, "2")),
        Not(In(OFFSET, (1, None))),
    ],
    ids=str,
)
def test_what_may_mean_something_else_stays_sparks(one: Filter) -> None:
    assert condition_of(one) is None
    assert taken([one]) == (Pruning(), [one])
