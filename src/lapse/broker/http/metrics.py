"""Prometheus metrics of a broker, collected from its counters and logs at each scrape.

Names that Grafana boards know are those of jmx_exporter's rules for Kafka; ours begin with
`lapse_` and end in a unit. What concerns compaction is in `cleaner_metrics`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lapse.broker.conditions import conditions, free_bytes
from lapse.broker.http.latency import group_time_lag, producer_to_log
from lapse.broker.request.context import Services

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


class BrokerCollector(Collector):
    """What one broker has to say."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterable[Metric]:
        yield from self._topics()
        yield from self._latencies()
        yield from self._logs()
        yield from self._directories()
        yield from self._writes()
        yield from self._broker()
        yield from self._logins()
        yield from self._fetch_sessions()

    def _topics(self) -> Iterable[Metric]:
        topics = dict(self._services.counters.topics)
        for name, field, doc in _TOPIC_COUNTERS:
            family = CounterMetricFamily(name, doc, labels=["topic"])
            for topic, counters in topics.items():
                family.add_metric([topic], getattr(counters, field))
            yield family

    def _latencies(self) -> Iterable[Metric]:
        services = self._services
        yield producer_to_log(dict(services.counters.topics))
        committed, now_ms = services.groups.committed(), services.clock.now_ms()
        yield group_time_lag(committed, services.partitions, now_ms)

    def _logs(self) -> Iterable[Metric]:
        logs = self._services.partitions.all()
        for name, field, doc in _LOG_GAUGES:
            family = GaugeMetricFamily(f"kafka_log_log_{name}", doc, labels=["topic", "partition"])
            for log in logs:
                where = [log.partition.topic, str(log.partition.partition)]
                family.add_metric(where, getattr(log, field))
            yield family
        family = GaugeMetricFamily(
            "lapse_log_cut_off_bytes",
            "Bytes that recovery cut off a log and kept aside.",
            labels=["topic", "partition"],
        )
        for log in logs:
            if log.aside:
                where = [log.partition.topic, str(log.partition.partition)]
                family.add_metric(where, sum(one.size for one in log.aside))
        yield family

    def _directories(self) -> Iterable[Metric]:
        partitions = self._services.partitions
        states = dict.fromkeys((str(d.path) for d in partitions.directories), 0)
        states.update(dict.fromkeys(map(str, partitions.offline_directories), 1))
        yield GaugeMetricFamily(
            "kafka_log_logmanager_offlinelogdirectorycount",
            "Directories of log.dirs that failed.",
            sum(states.values()),
        )
        family = GaugeMetricFamily(
            "kafka_log_logmanager_logdirectoryoffline",
            "Whether a directory of log.dirs failed.",
            labels=["logDirectory"],
        )
        for path, state in states.items():
            family.add_metric([path], state)
        yield family
        family = GaugeMetricFamily(
            "lapse_log_directory_free_bytes",
            "What a directory of log.dirs has room for.",
            labels=["logDirectory"],
        )
        for name, free in free_bytes(partitions.directories).items():
            family.add_metric([name], free)
        yield family

    def _writes(self) -> Iterable[Metric]:
        """What is not written, and why."""
        partitions = self._services.partitions
        failures = CounterMetricFamily(
            "lapse_failed_appends", "Batches that were not appended.", labels=["reason"]
        )
        for reason, count in dict(partitions.append_failures.by_reason).items():
            failures.add_metric([reason], count)
        yield failures
        refusing: Counter[str] = Counter()
        for one in conditions(partitions, self._services.topics.image.topics.values()):
            refusing[one.reason] += one.logs
        family = GaugeMetricFamily(
            "lapse_logs_refusing_writes", "Logs that take no writes just now.", labels=["reason"]
        )
        for reason, logs in refusing.items():
            family.add_metric([reason], logs)
        yield family

    def _broker(self) -> Iterable[Metric]:
        counters = self._services.counters
        requests = CounterMetricFamily(
            "lapse_broker_requests", "Requests handled.", labels=["request"]
        )
        for api, count in dict(counters.requests).items():
            requests.add_metric([api], count)
        yield requests
        failures = CounterMetricFamily(
            "lapse_housekeeping_failures", "Logs not looked after.", labels=["chore"]
        )
        for chore, count in dict(counters.housekeeping_failures).items():
            failures.add_metric([chore], count)
        yield failures
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
            family = CounterMetricFamily(
                f"lapse_broker_connections_{name}", doc, labels=["listener"]
            )
            for entrance in self._services.entrances:
                listener = entrance.listener.name
                family.add_metric([listener], values.get(listener, 0))
            yield family
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
            family = CounterMetricFamily(metric, doc, labels=["listener"])
            for name, value in values.items():
                family.add_metric([name], value)
            yield family
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
