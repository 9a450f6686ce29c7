"""Metrics under the names of kafka_exporter, and the two gauges that kafbat's UI reads.

What boards made for these show without Lapse's own names: where partitions begin and end, how far
groups are behind, and topics' bytes a second. A partition is reported by the broker that leads it,
a group's offsets by its coordinator, for partitions that it has a replica of.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric, Sample

from lapse.base.errors import LapseError
from lapse.base.ids import TopicPartition
from lapse.broker.logs.counters import TopicCounters
from lapse.broker.logs.partitions import Partitions
from lapse.log.partition_log import PartitionLog

RATES = "kafka_server_BrokerTopicMetrics_FifteenMinuteRate"
_COUNTED = {"BytesInPerSec": "bytes_in", "BytesOutPerSec": "bytes_out"}
_WHERE = ("topic", "partition")
_WINDOW_SECONDS = 900.0
_LOOK_SECONDS_MIN = 1.0
_RATES_DOC = "Bytes a second, averaged over about a quarter of an hour; without topic: of all."


def partition_metrics(
    logs: Iterable[tuple[PartitionLog, dict[str, str]]], partitions: Partitions
) -> Iterator[Metric]:
    """Of the partitions led here; each log with its labels."""
    newest, oldest = (
        GaugeMetricFamily(f"kafka_topic_partition_{name}_offset", doc, labels=_WHERE)
        for name, doc in (
            ("current", "The high watermark: where readers end."),
            ("oldest", "The log start offset."),
        )
    )
    for log, labels in logs:
        state = partitions.state_of(log.partition)
        if state is None or state.leader == partitions.node_id:
            newest.samples.append(Sample(newest.name, labels, log.high_watermark))
            oldest.samples.append(Sample(oldest.name, labels, log.log_start_offset))
    yield from (newest, oldest)


def group_metrics(
    committed: Iterable[tuple[str, TopicPartition, int]], partitions: Partitions
) -> Iterator[Metric]:
    """Of committed offsets: group, partition, offset."""
    names = ["consumergroup", "topic", "partition"]
    current = GaugeMetricFamily(
        "kafka_consumergroup_current_offset", "What a group has committed.", labels=names
    )
    lag = GaugeMetricFamily(
        "kafka_consumergroup_lag", "Offsets between that and the high watermark.", labels=names
    )
    for group, where, offset in committed:
        labels = [group, where.topic, str(where.partition)]
        current.add_metric(labels, offset)
        try:
            end = partitions.get(where).high_watermark
        except LapseError:
            continue  # no replica of it is here
        lag.add_metric(labels, max(end - offset, 0))
    yield from (current, lag)


class FifteenMinuteRates:
    """Rates that forget what is long ago, as of Kafka's meters; looked at when somebody asks.

    Between two looks the rate is taken for constant, so it does not matter who asks how often.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], int] = {}
        self._rates: dict[tuple[str, str], float] = {}
        self._at_s: float | None = None

    def metric(self, topics: Mapping[str, TopicCounters], at_s: float) -> Metric:
        """By `name` and `topic`, and by `name` alone; `at_s`: of a clock that never goes back."""
        counts = {
            (name, topic): int(getattr(counted, field))
            for topic, counted in topics.items()
            for name, field in _COUNTED.items()
        }
        with self._lock:
            self._look(counts, at_s)
            rates = {key: self._rates.get(key, 0.0) for key in counts}
        family = GaugeMetricFamily(RATES, _RATES_DOC, labels=("name", "topic"))
        for name in _COUNTED:
            total = math.fsum(rate for (of, _), rate in rates.items() if of == name)
            family.samples.append(Sample(RATES, {"name": name}, total))
        for (name, topic), rate in rates.items():
            family.samples.append(Sample(RATES, {"name": name, "topic": topic}, rate))
        return family

    def _look(self, counts: Mapping[tuple[str, str], int], at_s: float) -> None:
        passed = None if self._at_s is None else at_s - self._at_s
        if passed is not None and passed < _LOOK_SECONDS_MIN:
            return
        if passed is not None:
            share = -math.expm1(-passed / _WINDOW_SECONDS)
            for key, count in counts.items():
                now = max(count - self._seen.get(key, 0), 0) / passed
                last = self._rates.get(key)
                self._rates[key] = now if last is None else last + share * (now - last)
        self._seen, self._at_s = dict(counts), at_s
        self._rates = {key: rate for key, rate in self._rates.items() if key in counts}
