"""What filters exclude, and what the page says; reading through Spark is in `tests/spark`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

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

from lapse.records.columns import TYPES
from lapse.spark.scan.options import OPTIONS
from lapse.spark.scan.plan import OFFSET_MAX, Pruning
from lapse.spark.source.format import pruning_of

OFFSET, TIME, TOPIC, NUMBER = ("offset",), ("timestamp",), ("topic",), ("partition",)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
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
        ([EqualTo(TIME, NOON)], Pruning(timestamp_from=NOON_MS)),
        (
            [GreaterThan(TIME, NOON + timedelta(microseconds=1))],
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
    """An upper bound in time says nothing of later offsets; a negation nothing that helps."""
    filters: list[Filter] = [
        LessThan(TIME, NOON),
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


def test_the_page_names_every_option_and_column() -> None:
    page = (Path(__file__).parents[4] / "docs" / "data-source.md").read_text()
    for name in (*OPTIONS, *TYPES):
        assert f"`{name}`" in page, name
