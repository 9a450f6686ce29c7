"""How late each log is, as metrics by kind, also while no lifecycle service runs; 0: not late.

For logs that get rounds, the deadlines come from the rows of `log_rows`; for the other logs
only the first segment's age and records below the log start offset can be late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric, Sample

from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.lateness import Deadline, overdue_ms, retention_deadline
from lapse.log.partition_log import PartitionLog, segment_facts

NAME = "lapse_overdue_seconds"
_DOC = (
    "By how much the worst deadline of a kind is missed: superseded values, tombstones, markers, "
    "deleted ranges, retention. 0: nothing is late; none: not known, a log is to be looked through."
)


class Late(NamedTuple):
    """By how much the worst deadline of a kind is missed in a log; 0: not at all."""

    log: TopicPartition
    kind: str
    ms: int


def overdue(
    logs: Iterable[PartitionLog],
    by_log: Mapping[TopicPartition, tuple[Deadline, ...]],
    now_ms: int,
    unknown: Mapping[TopicPartition, Set[str]],
) -> Metric:
    """The lateness of all logs, as a metric; `unknown`: kinds that are on time as far as is known.

    Of these nothing is told, as long as nothing is known to be late: a 0 would be a guess.
    """
    family = GaugeMetricFamily(NAME, _DOC, labels=["topic", "partition", "kind"])
    for late in lateness_of(logs, by_log, now_ms):
        if not late.ms and late.kind in unknown.get(late.log, ()):
            continue
        where = {"topic": late.log.topic, "partition": str(late.log.partition), "kind": late.kind}
        family.samples.append(Sample(NAME, where, late.ms / 1000))
    return family


def lateness_of(
    logs: Iterable[PartitionLog],
    by_log: Mapping[TopicPartition, tuple[Deadline, ...]],
    now_ms: int,
) -> Iterator[Late]:
    """The lateness of all logs, by each kind; `by_log`: deadlines of those that get rounds."""
    for log in logs:
        for kind, late_ms in overdue_ms(log.config, _deadlines(log, by_log), now_ms).items():
            yield Late(log.partition, kind, late_ms)


def missed(
    logs: Iterable[PartitionLog],
    by_log: Mapping[TopicPartition, tuple[Deadline, ...]],
    now_ms: int,
) -> Iterator[Late]:
    """The same of what is late alone: of most logs nothing is."""
    late = (log for log in logs if _is_past(_deadlines(log, by_log), now_ms))
    return (one for one in lateness_of(late, by_log, now_ms) if one.ms)


def _is_past(deadlines: tuple[Deadline, ...], now_ms: int) -> bool:
    return any(deadline.ms < now_ms for deadline in deadlines)


def _deadlines(
    log: PartitionLog, by_log: Mapping[TopicPartition, tuple[Deadline, ...]]
) -> tuple[Deadline, ...]:
    found = by_log.get(log.partition)
    return deadlines_without_rounds(log) if found is None else found


def deadlines_without_rounds(log: PartitionLog) -> tuple[Deadline, ...]:
    """Of a log that gets none."""
    expires = retention_deadline(segment_facts(log.segments[0]), log.config)
    return () if expires is None else (expires,)
