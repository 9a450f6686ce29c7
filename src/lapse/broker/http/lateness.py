"""How late each log is, as metrics: by kind, 0 where nothing is, service or no service.

Of logs that rounds have to do with the rows of `cleaner_metrics` tell the deadlines; of the others
only the first segment's age and records below the log start can be late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric, Sample

from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.lateness import Deadline, overdue_ms, retention_deadline
from lapse.log.partition_log import PartitionLog, segment_facts

NAME = "lapse_overdue_seconds"
_DOC = (
    "By how much the worst deadline of a kind is missed: superseded values, tombstones, markers, "
    "deleted ranges, retention. 0: nothing is late."
)


class Late(NamedTuple):
    """By how much the worst deadline of a kind is missed in a log; 0: not at all."""

    log: TopicPartition
    kind: str
    ms: int


def overdue(
    logs: Iterable[PartitionLog], told: Mapping[str, tuple[Deadline, ...]], now_ms: int
) -> Metric:
    """Of all logs, as a metric."""
    family = GaugeMetricFamily(NAME, _DOC, labels=["topic", "partition", "kind"])
    for one in lateness_of(logs, told, now_ms):
        where = {"topic": one.log.topic, "partition": str(one.log.partition), "kind": one.kind}
        family.samples.append(Sample(NAME, where, one.ms / 1000))
    return family


def lateness_of(
    logs: Iterable[PartitionLog], told: Mapping[str, tuple[Deadline, ...]], now_ms: int
) -> Iterator[Late]:
    """Of all logs; `told` are the deadlines of those that rounds have to do with, by name."""
    for log in logs:
        deadlines = told.get(str(log.partition))
        if deadlines is None:
            expires = retention_deadline(segment_facts(log.segments[0]), log.config)
            deadlines = () if expires is None else (expires,)
        for kind, late_ms in overdue_ms(log.config, deadlines, now_ms).items():
            yield Late(log.partition, kind, late_ms)
