"""What conditions exclude; `test_read_pruned` has what is left unread by that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lapse.records.column_filter import Condition, Test, Value
from lapse.spark.scan.plan import OFFSET_MAX, Pruning
from lapse.spark.scan.pruning import pruning_of

NOON_MS = 1_767_268_800_000
NOON = NOON_MS * 1000
LAST_MS = 253_402_300_799_999
LAST = (datetime.max.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
    microseconds=1
)


def of(column: str, test: Test, *values: Value) -> Condition:
    return Condition(column, test, values)


def offset(test: Test, *values: int) -> Condition:
    return of("offset", test, *values)


def time(test: Test, *micros: int) -> Condition:
    return of("timestamp", test, *micros)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([offset(Test.GREATER, 7)], Pruning(offset_from=8)),
        ([offset(Test.GREATER_OR_EQUAL, 7), offset(Test.LESS, 9)], Pruning(7, 9)),
        ([offset(Test.LESS_OR_EQUAL, 7), offset(Test.LESS, 9)], Pruning(0, 8)),
        ([offset(Test.GREATER, 7), offset(Test.GREATER_OR_EQUAL, 3)], Pruning(8)),
        ([offset(Test.EQUAL, 7)], Pruning(7, 8)),
        ([offset(Test.SAME, 7)], Pruning(7, 8)),
        ([offset(Test.IN, 9, 8, 7)], Pruning(7, 10)),
        ([of("topic", Test.EQUAL, "a")], Pruning(topics=frozenset("a"))),
        (
            [of("topic", Test.IN, "a", "b"), of("topic", Test.SAME, "c")],
            Pruning(topics=frozenset()),
        ),
        (
            [of("partition", Test.IN, 1, 2), of("partition", Test.IN, 2, 3)],
            Pruning(numbers=frozenset({2})),
        ),
        ([time(Test.GREATER_OR_EQUAL, NOON)], Pruning(timestamp_from=NOON_MS)),
        ([time(Test.GREATER, NOON)], Pruning(timestamp_from=NOON_MS + 1)),
        ([time(Test.GREATER, NOON - 1)], Pruning(timestamp_from=NOON_MS)),
        ([time(Test.GREATER, NOON + 1)], Pruning(timestamp_from=NOON_MS + 1)),
        (
            [time(Test.GREATER, NOON), time(Test.GREATER, NOON + 9000)],
            Pruning(timestamp_from=NOON_MS + 10),
        ),
        ([time(Test.EQUAL, NOON)], Pruning(timestamp_from=NOON_MS, timestamp_until=NOON_MS + 1)),
        ([time(Test.LESS, NOON)], Pruning(timestamp_until=NOON_MS)),
        ([time(Test.LESS, -1)], Pruning(timestamp_until=0)),
        ([time(Test.LESS_OR_EQUAL, LAST)], Pruning(timestamp_until=LAST_MS + 1)),
        ([time(Test.LESS_OR_EQUAL, NOON)], Pruning(timestamp_until=NOON_MS + 1)),
        (
            [time(Test.LESS, NOON + 1), time(Test.LESS, NOON + 9)],
            Pruning(timestamp_until=NOON_MS + 1),
        ),
        (
            [time(Test.IN, NOON + 5000, NOON)],
            Pruning(timestamp_from=NOON_MS, timestamp_until=NOON_MS + 6),
        ),
    ],
)
def test_conditions_exclude_what_they_say(conditions: list[Condition], expected: Pruning) -> None:
    found = pruning_of(conditions)
    assert found.conditions == tuple(conditions)
    assert pruning_of([]) == Pruning()
    assert found == Pruning(
        expected.offset_from, expected.offset_until, expected.timestamp_from,
        expected.timestamp_until, expected.topics, expected.numbers, tuple(conditions),
    )  # fmt: skip


def test_what_others_say_excludes_nothing_unread() -> None:
    conditions = (
        Condition("offset", Test.EQUAL, (7,), negated=True),
        Condition("topic", Test.IN, ("a",), negated=True),
        Condition("partition", Test.EQUAL, (3,), negated=True),
        Condition("timestamp", Test.EQUAL, (NOON,), negated=True),
        Condition("offset", Test.NULL),
        Condition("offset", Test.NULL, negated=True),
        of("key", Test.EQUAL, b"k"),
        of("create_time", Test.GREATER, NOON),
        of("topic", Test.STARTS_WITH, "a"),
        of("topic", Test.GREATER, "a"),
        of("partition", Test.GREATER, 3),
    )
    assert pruning_of(conditions) == Pruning(conditions=conditions)
    assert Pruning().offset_until == OFFSET_MAX
