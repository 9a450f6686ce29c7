"""How late each log is, as metrics: by kind, 0 where nothing is, service or no service.

Of logs that rounds have to do with the rows of `cleaner_metrics` tell the deadlines; of the others
only the first segment's age and records below the log start can be late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric, Sample

from lapse.lifecycle.decide.lateness import Deadline, overdue_ms, retention_deadline
from lapse.log.partition_log import PartitionLog, segment_facts

NAME = "lapse_overdue_seconds"
_DOC = (
    "By how much the worst deadline of a kind is missed: superseded values, tombstones, markers, "
    "deleted ranges, retention. 0: nothing is late."
)


def overdue(
    logs: Iterable[PartitionLog], told: Mapping[str, tuple[Deadline, ...]], now_ms: int
) -> Metric:
    """Of all logs; `told` are the deadlines of those that rounds have to do with, by name."""
    family = GaugeMetricFamily(NAME, _DOC, labels=["topic", "partition", "kind"])
    for log in logs:
        deadlines = told.get(str(log.partition))
        if deadlines is None:
            expires = retention_deadline(segment_facts(log.segments[0]), log.config)
            deadlines = () if expires is None else (expires,)
        where = {"topic": log.partition.topic, "partition": str(log.partition.partition)}
        for kind, late_ms in overdue_ms(log.config, deadlines, now_ms).items():
            family.samples.append(Sample(NAME, {**where, "kind": kind}, late_ms / 1000))
    return family
