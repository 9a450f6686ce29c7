"""Prometheus metrics of a broker, collected from its counters and logs at each scrape.

Names that Grafana boards know are those of jmx_exporter's rules for Kafka; ours begin with
`lapse_` and end in a unit. What concerns compaction is in `cleaner_metrics`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, Sample
from prometheus_client.registry import Collector

from lapse.base.ids import TopicPartition
from lapse.broker.conditions import conditions, free_bytes
from lapse.broker.http.erasure_metrics import erasure_metrics
from lapse.broker.http.exporter_metrics import (
    FifteenMinuteRates,
    group_metrics,
    partition_metrics,
)
from lapse.broker.http.latency import group_time_lag, producer_to_log
from lapse.broker.http.replica_metrics import replica_metrics
from lapse.broker.request.context import Services
from lapse.lifecycle.clock_guard import moment_seen

_SOCKETS = "kafka_server_socketservermetrics_"
_FETCH_SESSIONS = "kafka_server_fetchsessioncache_"
_TOPIC = "kafka_server_brokertopicmetrics_"
_TOPIC_COUNTERS = (
    (_TOPIC + "messagesin", "messages_in", "Records appended."),
    (_TOPIC + "bytesin", "bytes_in", "Bytes of batches appended."),
    (_TOPIC + "bytesout", "bytes_out", "Bytes of batches fetched."),
    (_TOPIC + "failedproducerequests", "failed_produce_requests", "Batches refused."),
    (
        "lapse_tombstone_values_dropped",
        "tombstone_values_dropped",
        "Values of tombstones (KIP-87) that the topic does not keep.",
    ),
)
_LOG_GAUGES = (
    ("size", "size_bytes", "Bytes of a log's segments."),
    ("logstartoffset", "log_start_offset", "First offset of a log."),
    ("logendoffset", "log_end_offset", "Next offset of a log."),
)


def labelled(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    doc: str,
    label: str,
    values: Mapping[str, float],
) -> Metric:
    """A metric with one label, and a sample for each of its values."""
    family = kind(name, doc, labels=[label])
    for of, value in values.items():
        family.add_metric([of], value)
    return family


def labels_of(partition: TopicPartition) -> dict[str, str]:
    """Of a log; families that share them are written faster."""
    return {"topic": partition.topic, "partition": str(partition.partition)}


class BrokerCollector(Collector):
    """What one broker has to say."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._rates = FifteenMinuteRates()

    def collect(self) -> Iterable[Metric]:
        yield from self._topics()
        yield from self._latencies()
        yield from self._logs()
        yield from self._waiting()
        yield from replica_metrics(self._services.topics.image, self._services.topics.members)
        yield from self._directories()
        yield from self._writes()
        yield from self._broker()
        yield from self._logins()
        yield from self._fetch_sessions()
        yield from self._erasures()

    def _erasures(self) -> Iterable[Metric]:
        """A deadline that was missed stays missed where the wall clock is set back (ADR-11)."""
        services = self._services
        data_dir, jump_max_ms = services.partitions.data_dir, services.config.clock_jump_max_ms
        decided = moment_seen(data_dir, services.clock, jump_max_ms)
        return erasure_metrics(services.erasures, decided.now_ms)

    def _topics(self) -> Iterable[Metric]:
        topics = dict(self._services.counters.topics)
        for name, field, doc in _TOPIC_COUNTERS:
            values = {topic: getattr(counters, field) for topic, counters in topics.items()}
            yield labelled(CounterMetricFamily, name, doc, "topic", values)

    def _latencies(self) -> Iterable[Metric]:
        services = self._services
        topics = dict(services.counters.topics)
        yield producer_to_log(topics)
        committed, now_ms = services.groups.committed(), services.clock.now_ms()
        yield group_time_lag(committed, services.partitions, now_ms)
        yield from group_metrics(committed, services.partitions)
        yield self._rates.metric(topics, services.clock.monotonic())

    def _logs(self) -> Iterable[Metric]:
        logs = [(log, labels_of(log.partition)) for log in self._services.partitions.all()]
        for name, field, doc in _LOG_GAUGES:
            family = GaugeMetricFamily(f"kafka_log_log_{name}", doc, labels=["topic", "partition"])
            for log, labels in logs:
                family.samples.append(Sample(family.name, labels, getattr(log, field)))
            yield family
        yield from partition_metrics(logs, self._services.partitions)
        family = GaugeMetricFamily(
            "lapse_log_cut_off_bytes",
            "Bytes that recovery cut off a log and kept aside.",
            labels=["topic", "partition"],
        )
        for log, labels in logs:
            if log.aside:
                aside_bytes = sum(one.size for one in log.aside)
                family.samples.append(Sample(family.name, labels, aside_bytes))
        yield family

    def _waiting(self) -> Iterable[Metric]:
        services = self._services
        yield labelled(
            GaugeMetricFamily,
            "kafka_server_delayedoperationpurgatory_purgatorysize",
            "Requests that wait for bytes or for replicas.",
            "delayedOperation",
            {one.value: n for one, n in services.purgatory.waiting_by_operation.items()},
        )
        yield CounterMetricFamily(
            "kafka_server_delayeddeleterecordsmetrics_expires",
            "Partitions of DeleteRecords whose replicas were not done in the client's time.",
            services.counters.deletions_expired,
        )

    def _directories(self) -> Iterable[Metric]:
        partitions = self._services.partitions
        states = dict.fromkeys((str(d.path) for d in partitions.directories), 0)
        states.update(dict.fromkeys(map(str, partitions.offline_directories), 1))
        yield GaugeMetricFamily(
            "kafka_log_logmanager_offlinelogdirectorycount",
            "Directories of log.dirs that failed.",
            sum(states.values()),
        )
        yield labelled(
            GaugeMetricFamily,
            "kafka_log_logmanager_logdirectoryoffline",
            "Whether a directory of log.dirs failed.",
            "logDirectory",
            states,
        )
        yield labelled(
            GaugeMetricFamily,
            "lapse_log_directory_free_bytes",
            "What a directory of log.dirs has room for.",
            "logDirectory",
            free_bytes(partitions.directories),
        )

    def _writes(self) -> Iterable[Metric]:
        """What is not written, and why."""
        partitions = self._services.partitions
        yield labelled(
            CounterMetricFamily,
            "lapse_failed_appends",
            "Batches that were not appended.",
            "reason",
            dict(partitions.append_failures.by_reason),
        )
        refusing: Counter[str] = Counter()
        for one in conditions(partitions, self._services.topics.image.topics.values()):
            refusing[one.reason] += one.logs
        yield labelled(
            GaugeMetricFamily,
            "lapse_logs_refusing_writes",
            "Logs that take no writes just now.",
            "reason",
            refusing,
        )

    def _broker(self) -> Iterable[Metric]:
        counters = self._services.counters
        yield labelled(
            CounterMetricFamily,
            "lapse_broker_requests",
            "Requests handled.",
            "request",
            dict(counters.requests),
        )
        yield labelled(
            CounterMetricFamily,
            "lapse_broker_fast_requests",
            "Those of them that took the fast path.",
            "request",
            dict(counters.fast_requests),
        )
        yield labelled(
            CounterMetricFamily,
            "lapse_housekeeping_failures",
            "Logs not looked after.",
            "chore",
            dict(counters.housekeeping_failures),
        )
        yield GaugeMetricFamily(
            "lapse_broker_connections", "Open connections.", counters.connections
        )
        yield CounterMetricFamily(
            "lapse_broker_connections_refused",
            "Connections ended for garbage or an error of ours.",
            counters.connections_refused,
        )
        for name, doc, values in (
            (
                "throttled",
                "Connections closed since their address opens too many a second.",
                counters.connections_throttled,
            ),
            (
                "delayed",
                "Connections taken late since too many come a second.",
                counters.connections_delayed,
            ),
        ):
            names = [entrance.listener.name for entrance in self._services.entrances]
            by_listener = {listener: values.get(listener, 0) for listener in names}
            metric = f"lapse_broker_connections_{name}"
            yield labelled(CounterMetricFamily, metric, doc, "listener", by_listener)
        yield GaugeMetricFamily(
            "lapse_broker_partitions_offline",
            "Partitions whose log could not be opened, or whose directory failed.",
            len(self._services.partitions.offline),
        )

    def _fetch_sessions(self) -> Iterable[Metric]:
        sessions = self._services.fetch_sessions
        yield GaugeMetricFamily(
            _FETCH_SESSIONS + "numincrementalfetchsessions", "Fetch sessions kept.", len(sessions)
        )
        yield GaugeMetricFamily(
            _FETCH_SESSIONS + "numincrementalfetchpartitionscached",
            "Partitions of all fetch sessions.",
            sessions.partitions,
        )
        yield CounterMetricFamily(
            _FETCH_SESSIONS + "incrementalfetchsessionevictions",
            "Fetch sessions that made place for others.",
            sessions.evictions,
        )

    def _logins(self) -> Iterable[Metric]:
        counters = self._services.counters
        listeners = {e.listener.name: e.failures.counts for e in self._services.entrances}
        refused = {name: counts.failures for name, counts in listeners.items()}
        for name, count in dict(counters.logins_refused).items():
            refused[name] = refused.get(name, 0) + count
        logins = {name: counters.logins.get(name, 0) for name in listeners}
        held_back_ms = {name: counts.waited_ms for name, counts in listeners.items()}
        for metric, doc, values in (
            (
                "lapse_broker_certificates_renewed",
                "New files of certificates put in force.",
                dict(counters.certificates_renewed),
            ),
            (
                "lapse_broker_certificates_refused",
                "New files of certificates that cannot be used.",
                dict(counters.certificates_refused),
            ),
            (_SOCKETS + "successful_authentication", "Logins that succeeded.", logins),
            (_SOCKETS + "failed_authentication", "Logins that failed, handshakes too.", refused),
            (
                "lapse_broker_logins_held_back_ms",
                "How long failed logins, handshakes too, were held back.",
                held_back_ms,
            ),
        ):
            yield labelled(CounterMetricFamily, metric, doc, "listener", values)
        attempts = self._services.attempts.counts
        yield CounterMetricFamily(
            "lapse_broker_logins_untried",
            "Logins that were not tried, as too many had failed.",
            attempts.refused,
        )
        yield CounterMetricFamily(
            "lapse_broker_logins_waited_ms",
            "How long logins waited before they were tried, as others had failed.",
            attempts.waited_ms,
        )


def registry(services: Services, *others: Collector) -> CollectorRegistry:
    """A registry of this broker alone, so that a process may hold several."""
    registered = CollectorRegistry()
    for collector in (BrokerCollector(services), *others):
        registered.register(collector)
    return registered
