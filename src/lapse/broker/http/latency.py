"""KIP-32's latencies, as metrics: from a producer to the log, and from the log to a group.

Producers: per topic, from the create time of a batch's first record to its append; a summary, so
that a mean over any time can be had. A batch whose first record has no time does not count; one
from a producer whose clock is ahead counts as 0.

Groups: per partition, how long the next record that a group has not done with has been in the log;
0 where there is none. By append times (`log.append_times`), so up to a second more, and reported
only where these are known: a record's timestamp may be of any age.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric, SummaryMetricFamily

from lapse.base.errors import LapseError
from lapse.base.ids import TopicPartition
from lapse.broker.logs.counters import TopicCounters
from lapse.broker.logs.partitions import Partitions
from lapse.log.partition_log import PartitionLog

_TO_LOG = "lapse_producer_to_log_seconds"
_LAG = "lapse_group_time_lag_seconds"


def producer_to_log(topics: Mapping[str, TopicCounters]) -> Metric:
    """Of each topic that was written to."""
    doc = "From the create time of a batch's first record to its append, by the broker's clock."
    family = SummaryMetricFamily(_TO_LOG, doc, labels=["topic"])
    for topic, counted in topics.items():
        family.add_metric([topic], counted.timed_batches, counted.latency_ms / 1000)
    return family


def group_time_lag(
    committed: Iterable[tuple[str, TopicPartition, int]], partitions: Partitions, now_ms: int
) -> Metric:
    """Of each committed offset: group, partition, offset."""
    doc = "How long the next record of a group has been in the log; 0 where it has read all."
    family = GaugeMetricFamily(_LAG, doc, labels=["group", "topic", "partition"])
    for group, where, offset in committed:
        try:
            lag_ms = time_lag_ms(partitions.get(where), offset, now_ms)
        except (LapseError, OSError):
            continue  # no such partition any more, or one that cannot be read
        if lag_ms is not None:
            family.add_metric([group, where.topic, str(where.partition)], lag_ms / 1000)
    return family


def time_lag_ms(log: PartitionLog, offset: int, now_ms: int) -> int | None:
    """How long the first record at or after an offset has been in the log; None: unknown."""
    if offset >= log.high_watermark:
        return 0
    appended_ms = log.state.append_time_from(offset)
    return None if appended_ms is None else max(now_ms - appended_ms, 0)
