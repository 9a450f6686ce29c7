"""From conditions on records to what need not be read at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from lapse.records.column_filter import Condition, Test
from lapse.spark.scan.plan import Pruning

# Whole numbers: from the first, before the last; None is no bound.
Span: TypeAlias = tuple[int | None, int | None]


def pruning_of(conditions: Sequence[Condition]) -> Pruning:
    """What the conditions exclude, all together; tasks judge records by the conditions again."""
    pruning = Pruning(conditions=tuple(conditions))
    for one in conditions:
        narrow = None if one.negated else _NARROWERS.get(one.column)
        if narrow is not None:
            pruning = narrow(pruning, one)
    return pruning


_SPANS: Mapping[Test, Callable[[Sequence[Any]], Span]] = {
    Test.GREATER: lambda values: (values[0] + 1, None),
    Test.GREATER_OR_EQUAL: lambda values: (values[0], None),
    Test.LESS: lambda values: (None, values[0]),
    Test.LESS_OR_EQUAL: lambda values: (None, values[0] + 1),
    **dict.fromkeys(
        (Test.EQUAL, Test.SAME, Test.IN), lambda values: (min(values), max(values) + 1)
    ),
}
_CHOSEN = frozenset({Test.EQUAL, Test.SAME, Test.IN})


def _span(one: Condition) -> Span:
    span = _SPANS.get(one.test)
    return (None, None) if span is None else span(one.values)


def _of_offsets(pruning: Pruning, one: Condition) -> Pruning:
    first, until = _span(one)
    if first is not None:
        pruning = replace(pruning, offset_from=max(pruning.offset_from, first))
    if until is not None:
        pruning = replace(pruning, offset_until=min(pruning.offset_until, until))
    return pruning


def _of_times(pruning: Pruning, one: Condition) -> Pruning:
    first, until = map(_ms_not_before, _span(one))
    if first is not None:
        known = pruning.timestamp_from
        pruning = replace(pruning, timestamp_from=first if known is None else max(known, first))
    if until is not None:
        known = pruning.timestamp_until
        pruning = replace(pruning, timestamp_until=until if known is None else min(known, until))
    return pruning


def _ms_not_before(micros: int | None) -> int | None:
    """A record's time is a whole millisecond."""
    return None if micros is None else -(-micros // 1000)


def _of_topics(pruning: Pruning, one: Condition) -> Pruning:
    if one.test not in _CHOSEN:
        return pruning
    return replace(pruning, topics=_both(pruning.topics, one.values))


def _of_partitions(pruning: Pruning, one: Condition) -> Pruning:
    if one.test not in _CHOSEN:
        return pruning
    return replace(pruning, numbers=_both(pruning.numbers, one.values))


def _both(known: frozenset[Any] | None, wanted: Iterable[Any]) -> frozenset[Any]:
    return frozenset(wanted) if known is None else known.intersection(wanted)


_NARROWERS: Mapping[str, Callable[[Pruning, Condition], Pruning]] = {
    "offset": _of_offsets,
    "timestamp": _of_times,
    "topic": _of_topics,
    "partition": _of_partitions,
}
