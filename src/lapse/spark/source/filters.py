"""Spark's filters, as far as they are taken: what need not be read, which records are wanted.

A filter that is taken is not applied by Spark again, so it must mean here what it means there: on a
plain column, with a value of its type. What is not understood stays Spark's, and excludes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import pyarrow as pa
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
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from lapse.records.column_filter import Condition, Test, Value
from lapse.records.column_spec import TIME, TYPES
from lapse.spark.scan.plan import Pruning

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def taken(filters: Sequence[Filter]) -> tuple[Pruning, list[Filter]]:
    """What they exclude, all together, and those that Spark has to apply itself."""
    judged = [(one, condition_of(one)) for one in filters]
    conditions = tuple(condition for _, condition in judged if condition is not None)
    mine = [one for one, condition in judged if condition is not None]
    left = [one for one, condition in judged if condition is None]
    return replace(pruning_of(mine), conditions=conditions), left


# --- which records --------------------------------------------------------------------------------


_COMPARED: dict[type[Filter], Test] = {
    EqualTo: Test.EQUAL,
    EqualNullSafe: Test.SAME,
    GreaterThan: Test.GREATER,
    GreaterThanOrEqual: Test.GREATER_OR_EQUAL,
    LessThan: Test.LESS,
    LessThanOrEqual: Test.LESS_OR_EQUAL,
}
_TEXTS: dict[type[Filter], Test] = {
    StringStartsWith: Test.STARTS_WITH,
    StringEndsWith: Test.ENDS_WITH,
    StringContains: Test.CONTAINS,
}


def condition_of(one: Filter) -> Condition | None:
    """The same for Arrow; None where it is not certain to mean the same."""
    if isinstance(one, Not):
        inner = condition_of(one.child)
        return None if inner is None else replace(inner, negated=not inner.negated)
    path: tuple[str, ...] = getattr(one, "attribute", ())
    column = path[0] if len(path) == 1 else ""
    if column not in TYPES:
        return None
    if isinstance(one, (IsNull, IsNotNull)):
        return Condition(column, Test.NULL, negated=isinstance(one, IsNotNull))
    test, values = _asked(one)
    if test is None or not values or None in values:
        return None
    found = [_value(TYPES[column], value) for value in values]
    known = tuple(value for value in found if value is not None)
    return Condition(column, test, known) if len(known) == len(found) else None


def _asked(one: Filter) -> tuple[Test | None, tuple[Any, ...]]:
    if isinstance(one, In):
        return Test.IN, tuple(one.value)
    test = _COMPARED.get(type(one)) or _TEXTS.get(type(one))
    return test, (getattr(one, "value", None),)


def _value(kind: pa.DataType, value: Any) -> Value | None:
    """As Arrow compares it with a column of this type; None for another type's, or out of range."""
    if kind == TIME:
        aware = isinstance(value, datetime) and value.tzinfo is not None
        return _micros(value) if aware else None
    wanted = _PYTHON_TYPES.get(kind)
    if wanted is None or type(value) not in wanted:
        return None
    try:
        pa.scalar(value, kind)
    except (pa.ArrowInvalid, OverflowError):
        return None
    return bytes(value) if isinstance(value, bytearray) else value


_PYTHON_TYPES: dict[pa.DataType, tuple[type, ...]] = {
    pa.binary(): (bytes, bytearray),
    pa.string(): (str,),
    pa.int32(): (int,),
    pa.int64(): (int,),
    pa.bool_(): (bool,),
}


def _micros(time: datetime) -> int:
    return (time.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)


# --- what need not be read ------------------------------------------------------------------------


def pruning_of(filters: Sequence[Filter]) -> Pruning:
    """What the filters exclude for certain, all together; what is not understood is left out."""
    pruning = Pruning()
    for one in filters:
        narrow = _NARROWERS.get((type(one), getattr(one, "attribute", ())))
        value = getattr(one, "value", None)
        if narrow is not None and value is not None:
            pruning = narrow(pruning, value)
    return pruning


def _offsets_from(pruning: Pruning, offset: int) -> Pruning:
    return replace(pruning, offset_from=max(pruning.offset_from, offset))


def _offsets_until(pruning: Pruning, offset: int) -> Pruning:
    return replace(pruning, offset_until=min(pruning.offset_until, offset))


def _offsets_in(pruning: Pruning, offsets: Sequence[int | None]) -> Pruning:
    known = [offset for offset in offsets if offset is not None]
    if not known:
        return _offsets_until(pruning, 0)
    return _offsets_until(_offsets_from(pruning, min(known)), max(known) + 1)


def _times_from(pruning: Pruning, time: datetime) -> Pruning:
    wanted, known = _ms_not_before(_micros(time)), pruning.timestamp_from
    return replace(pruning, timestamp_from=wanted if known is None else max(known, wanted))


def _times_until(pruning: Pruning, time: datetime, *, itself: bool = False) -> Pruning:
    """Before that time, or up to it `itself`, which may be the last that Python knows."""
    wanted, known = _ms_not_before(_micros(time) + itself), pruning.timestamp_until
    return replace(pruning, timestamp_until=wanted if known is None else min(known, wanted))


def _times_to(pruning: Pruning, time: datetime) -> Pruning:
    return _times_until(pruning, time, itself=True)


def _times_in(pruning: Pruning, times: Sequence[datetime | None]) -> Pruning:
    known = [time for time in times if time is not None]
    return _times_to(_times_from(pruning, min(known)), max(known)) if known else pruning


def _ms_not_before(micros: int) -> int:
    """A record's time is a whole millisecond."""
    return -(-micros // 1000)


def _topics_in(pruning: Pruning, topics: Iterable[str]) -> Pruning:
    wanted = frozenset(topics)
    return replace(pruning, topics=wanted if pruning.topics is None else pruning.topics & wanted)


def _numbers_in(pruning: Pruning, numbers: Iterable[int]) -> Pruning:
    wanted = frozenset(numbers)
    return replace(pruning, numbers=wanted if pruning.numbers is None else pruning.numbers & wanted)


Narrow: TypeAlias = "Callable[[Pruning, Any], Pruning]"
_NARROWERS: dict[tuple[type[Filter], tuple[str, ...]], Narrow] = {
    (GreaterThan, ("offset",)): lambda p, v: _offsets_from(p, v + 1),
    (GreaterThanOrEqual, ("offset",)): _offsets_from,
    (LessThan, ("offset",)): _offsets_until,
    (LessThanOrEqual, ("offset",)): lambda p, v: _offsets_until(p, v + 1),
    (In, ("offset",)): _offsets_in,
    (GreaterThan, ("timestamp",)): _times_from,
    (GreaterThanOrEqual, ("timestamp",)): _times_from,
    (LessThan, ("timestamp",)): _times_until,
    (LessThanOrEqual, ("timestamp",)): _times_to,
    (In, ("timestamp",)): _times_in,
    (In, ("topic",)): _topics_in,
    (In, ("partition",)): _numbers_in,
}
for _equal in (EqualTo, EqualNullSafe):
    _NARROWERS |= {
        (_equal, ("offset",)): lambda p, v: _offsets_in(p, [v]),
        (_equal, ("timestamp",)): lambda p, v: _times_in(p, [v]),
        (_equal, ("topic",)): lambda p, v: _topics_in(p, [v]),
        (_equal, ("partition",)): lambda p, v: _numbers_in(p, [v]),
    }
