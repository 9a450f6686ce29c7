"""What a broker's metrics say of compaction: Kafka's names for it, and ours, log by log.

Kafka's gauges tell what a cleaner thread last saw, and go stale when nothing is eligible (SEMANTICS
§8). These are decided from the logs as they are, by the very functions that choose rounds, whenever
somebody asks; so they also tell what waits while no lifecycle service runs. What rounds have cost
comes from the service's reports in the first log directory.

A log has a sample only where there is something to say of it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lapse.broker.control import ServiceSeen, StampCache
from lapse.broker.services import Services
from lapse.lifecycle.clock_guard import ClockGuard
from lapse.lifecycle.decide.bounds import Bound
from lapse.lifecycle.decide.deadline import compaction_delay_ms, next_look_ms
from lapse.lifecycle.decide.select import Blocked, Decision, LogInfo, decide
from lapse.lifecycle.reports import RoundReport, RoundTail, read_progress
from lapse.log.facts import BadRange
from lapse.log.partition_log import PartitionLog

_CLEANER = "kafka_log_logcleaner"
_MANAGER = "kafka_log_logcleanermanager"
_WHERE = ("topic", "partition")


@dataclass(frozen=True, slots=True)
class Row:
    """One log that rounds have to do with.

    Attributes:
        labels: topic and partition.
        directory: the log directory it is in.
        ratio: of dirty bytes.
        delay_ms: by how much it is late, 0 if it is not (KIP-354).
        deadline_ms: when something is due next at the latest; None if nothing ever is.
        uncleanable: why rounds leave (the rest of) it alone, "" if they do not.
        uncleanable_bytes: of its sealed segments, those.
        bad: where rounds could not read, if there is such a place.
    """

    labels: tuple[str, str]
    directory: str
    ratio: float
    delay_ms: int
    deadline_ms: int | None
    uncleanable: str
    uncleanable_bytes: int
    bad: BadRange | None


def row_of(log: PartitionLog, info: LogInfo, now_ms: int) -> Row | None:
    """What there is to say of a log; None if rounds have nothing to do with it."""
    if not info.config.compacts and not info.facts.start_moves:
        return None
    decision = decide(info, now_ms)
    reason, held_bytes = _uncleanable(decision)
    return Row(
        labels=(log.partition.topic, str(log.partition.partition)),
        directory=os.path.dirname(info.facts.dir),
        ratio=decision.bounds.ratio,
        delay_ms=compaction_delay_ms(info.facts, info.config, now_ms),
        deadline_ms=now_ms if decision.due else next_look_ms(decision),
        uncleanable=reason,
        uncleanable_bytes=held_bytes,
        bad=info.facts.bad,
    )


def _uncleanable(decision: Decision) -> tuple[str, int]:
    facts, bounds = decision.info.facts, decision.bounds
    if decision.blocked is Blocked.UNHANDLED:
        reason, first = "unhandled", 0
    elif facts.bad is not None:
        reason, first = "bad_range", facts.bad.segment_base
    elif bounds.bound is Bound.UNREADABLE:
        reason, first = "unreadable", bounds.upper
    else:
        return "", 0
    return reason, sum(s.size for s in facts.segments[:-1] if s.base_offset >= first)


class CleanerCollector(Collector):
    """What one broker has to say of compaction; `seen` tells of its lifecycle service."""

    def __init__(
        self,
        services: Services,
        seen: Callable[[], ServiceSeen],
        guard: ClockGuard,
        data_dir: Path,
    ) -> None:
        self._services, self._seen, self._guard = services, seen, guard
        self._data_dir = data_dir
        self._stamps = StampCache()
        self._tail = RoundTail(data_dir)
        self._asking = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        with self._asking:
            self._tail.refresh()
            rows = list(self._rows())
            last_run, by_log = list(self._tail.last_run), dict(self._tail.by_log)
        yield from self._kafka(rows)
        yield from _costs(last_run)
        yield from self._service()
        yield from _of_logs(rows)
        yield from _of_rounds(rows, by_log)

    def _rows(self) -> Iterator[Row]:
        now_ms = self._services.clock.now_ms()
        for log in self._services.partitions.all():
            if log.offline_reason is None:
                stamps = self._stamps.waiting(log.dir, now_ms)
                row = row_of(log, LogInfo(log.facts(), log.config, stamps), now_ms)
                if row is not None:
                    yield row

    def _kafka(self, rows: list[Row]) -> Iterator[Metric]:
        cleanable = [r for r in rows if not r.uncleanable]
        dirtiest = max((r.ratio for r in cleanable), default=0.0)
        yield _gauge(
            f"{_MANAGER}_max_dirty_percent", "Of the dirtiest log that may be cleaned.",
            int(100 * dirtiest),
        )  # fmt: skip
        yield _gauge(
            f"{_CLEANER}_max_compaction_delay_secs",
            "By how much the latest log is past max.compaction.lag.ms.",
            max((r.delay_ms for r in rows), default=0) / 1000,
        )
        directories = [str(d.path) for d in self._services.partitions.directories]
        counts, sizes = dict.fromkeys(directories, 0), dict.fromkeys(directories, 0)
        for row in rows:
            if row.uncleanable and row.directory in counts:
                counts[row.directory] += 1
                sizes[row.directory] += row.uncleanable_bytes
        for name, doc, values in (
            ("uncleanable_partitions_count", "Logs that rounds leave alone, or part of.", counts),
            ("uncleanable_bytes", "Bytes that rounds leave alone.", sizes),
        ):
            family = GaugeMetricFamily(f"{_MANAGER}_{name}", doc, labels=["logDirectory"])
            for path, value in values.items():
                family.add_metric([path], value)
            yield family

    def _service(self) -> Iterator[Metric]:
        """Whether rounds run at all."""
        seen = self._seen()
        progress = None if seen.pid is None else read_progress(self._data_dir)
        missing = seen.pid is None and self._services.config.log_cleaner_enable
        yield _gauge(
            f"{_MANAGER}_time_since_last_run_ms",
            "Since the lifecycle service last looked at the logs.", round(seen.idle_s * 1000),
        )  # fmt: skip
        yield _gauge(
            f"{_CLEANER}_deadthreadcount", "1 while rounds should run and no service is there.",
            int(missing),
        )  # fmt: skip
        yield _gauge(
            "lapse_lifecycle_service_up", "Whether a lifecycle service is connected.",
            int(seen.pid is not None),
        )  # fmt: skip
        yield _gauge(
            "lapse_lifecycle_clock_ahead_seconds",
            "How far the clock jumped while nobody has confirmed it: nothing is removed then.",
            max(0 if progress is None else progress.clock_ahead_ms, self._guard.ahead_ms) / 1000,
        )


def _gauge(name: str, doc: str, value: float) -> Metric:
    return GaugeMetricFamily(name, doc, value)


def _costs(last_run: list[RoundReport]) -> Iterator[Metric]:
    """Of the run of rounds that ended last."""
    read = sum(r.bytes_read for r in last_run)
    written = sum(r.bytes_written for r in last_run)
    fill = (r.map_entries / r.map_entries_max for r in last_run if r.map_entries_max)
    yield _gauge(
        f"{_CLEANER}_cleaner_recopy_percent", "Bytes written of those read by the last rounds.",
        100 * written / read if read else 0,
    )  # fmt: skip
    yield _gauge(
        f"{_CLEANER}_max_clean_time_secs", "What the longest of the last rounds took.",
        max((r.total_seconds for r in last_run), default=0),
    )  # fmt: skip
    yield _gauge(
        f"{_CLEANER}_max_buffer_utilization_percent", "How full a map got in the last rounds.",
        int(100 * max(fill, default=0)),
    )  # fmt: skip


def _of_logs(rows: list[Row]) -> Iterator[Metric]:
    ratio = _family("lapse_compaction_dirty_ratio", "Share of dirty bytes.")
    delay = _family("lapse_compaction_delay_seconds", "By how much max.compaction.lag.ms is past.")
    deadline = _family(
        "lapse_lifecycle_next_deadline_timestamp_seconds",
        "When a round is due next at the latest, or may be.",
    )
    alone = _family("lapse_lifecycle_uncleanable", "1 where rounds leave it alone.", "reason")
    first = _family("lapse_bad_range_first_offset", "From where on rounds could not read.")
    tries = _family("lapse_bad_range_tries", "Rounds that failed there.")
    again = _family("lapse_bad_range_next_try_timestamp_seconds", "When the next will try.")
    for row in rows:
        ratio.add_metric(row.labels, row.ratio)
        delay.add_metric(row.labels, row.delay_ms / 1000)
        if row.deadline_ms is not None:
            deadline.add_metric(row.labels, row.deadline_ms / 1000)
        if row.uncleanable:
            alone.add_metric((*row.labels, row.uncleanable), 1)
        if row.bad is not None:
            first.add_metric(row.labels, row.bad.first_offset)
            tries.add_metric(row.labels, row.bad.tries)
            again.add_metric(row.labels, row.bad.next_try_ms / 1000)
    yield from (ratio, delay, deadline, alone, first, tries, again)


def _of_rounds(rows: list[Row], by_log: dict[str, RoundReport]) -> Iterator[Metric]:
    """What each log's last round cost (L13)."""
    read = _family("lapse_round_read_bytes_per_dirty_byte", "By the last round.")
    written = _family("lapse_round_written_bytes_per_dirty_byte", "By the last round.")
    for row in rows:
        report = by_log.get("-".join(row.labels))
        if report is not None and report.dirty_bytes:
            read.add_metric(row.labels, report.bytes_read / report.dirty_bytes)
            written.add_metric(row.labels, report.bytes_written / report.dirty_bytes)
    yield from (read, written)


def _family(name: str, doc: str, *more: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, doc, labels=[*_WHERE, *more])
