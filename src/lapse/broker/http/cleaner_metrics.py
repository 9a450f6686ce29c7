"""A broker's compaction metrics: Kafka's names, and Lapse's, log by log.

Kafka's gauges show what a cleaner thread last saw, and go stale when nothing is eligible (V-1,
V-2). These are computed from the current logs at each scrape, by the functions that choose rounds;
so they also show what waits while no lifecycle service runs. What is late is told by the time that
rounds decide by, which does not go back with the wall clock (ADR-11). The costs of rounds come from
the service's reports in the first log directory.

A log has a sample only where there is something to report.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric, Sample
from prometheus_client.registry import Collector

from lapse.base.errors import CorruptData, StorageError
from lapse.base.ids import TopicPartition
from lapse.broker.conditions import conditions
from lapse.broker.control.control import ServiceSeen
from lapse.broker.http.lateness import deadlines_without_rounds, missed, overdue
from lapse.broker.http.log_rows import WHERE, Row, Rows, failing
from lapse.broker.http.metrics import labelled
from lapse.broker.request.context import Services
from lapse.lifecycle.clock_guard import ClockGuard
from lapse.lifecycle.decide.lateness import Deadline
from lapse.lifecycle.outlook.overview import LogSeen, Overview, Trouble, overview_of
from lapse.lifecycle.status.conditions import (
    KINDS,
    Condition,
    Connection,
    Seen,
    engine_report,
    pipeline_conditions,
)
from lapse.lifecycle.status.pauses import EVERY_LOG, pauses_or_all
from lapse.lifecycle.status.reports import (
    ENGINE_STATES,
    HELD,
    Queue,
    RoundReport,
    RoundTail,
    ServiceProgress,
    read_progress,
    read_queue,
)
from lapse.lifecycle.status.snapshot import read_status
from lapse.log.partition_log import PartitionLog

_CLEANER = "kafka_log_logcleaner"
_MANAGER = "kafka_log_logcleanermanager"


class CleanerCollector(Collector):
    """One broker's compaction metrics; `seen` returns the state of its lifecycle service.

    `conditions` returns what is out of order, including logs that take no writes.
    """

    def __init__(
        self,
        services: Services,
        seen: Callable[[], ServiceSeen],
        guard: ClockGuard,
        data_dir: Path,
    ) -> None:
        self._services, self._seen, self._guard = services, seen, guard
        self._data_dir = data_dir
        self._known = Rows()
        self._tail = RoundTail(data_dir)
        self._lock = threading.Lock()
        self.of_cluster: Callable[[], Sequence[Condition]] = tuple  # what else is out of order

    def collect(self) -> Iterable[Metric]:
        now_ms = self._guard.moment().now_ms
        rows, last_run, by_log = self._look(now_ms)
        yield from self._kafka(rows, now_ms)
        logs = self._logs()
        unknown = {row.log: row.unknown for row in rows if row.unknown}
        yield overdue(logs, _deadlines(rows), now_ms, unknown)
        yield from _costs(last_run)
        yield from self._service()
        yield from _of_health(self._pipeline(logs, rows, now_ms), self._writes())
        yield from _of_logs(rows, now_ms)
        yield from _of_rounds(rows, by_log)

    def conditions(self) -> list[Condition]:
        """All that is out of order; callable from any thread; reads files."""
        now_ms = self._guard.moment().now_ms
        rows, _, _ = self._look(now_ms)
        return self._found(self._logs(), rows, now_ms)

    def _found(
        self, logs: Sequence[PartitionLog], rows: Sequence[Row], now_ms: int
    ) -> list[Condition]:
        pipeline = self._pipeline(logs, rows, now_ms)
        return [*self._writes(), *pipeline_conditions(pipeline)]

    def overview(self) -> Overview:
        """All logs, counted; callable from any thread; reads files."""
        now_ms = self._guard.moment().now_ms
        rows, _, _ = self._look(now_ms)
        logs, status = self._logs(), None
        with contextlib.suppress(CorruptData, StorageError):
            status = read_status(self._data_dir, self._services.clock.now_ms())
        return overview_of(
            self._services.config.node_id, now_ms, logs_seen(logs, rows),
            (Trouble(c.is_fault, c.reason, str(c)) for c in self._found(logs, rows, now_ms)),
            status, len(self._services.topics.image.topics),
        )  # fmt: skip

    def _look(self, now_ms: int) -> tuple[list[Row], list[RoundReport], dict[str, RoundReport]]:
        with self._lock:
            self._tail.refresh()
            known = [*self._rows(now_ms)]
            failures = self._failures(self._services.clock.now_ms())
            rows = [failing(row, failures.get(row.name, 0)) for row in known]
            return rows, list(self._tail.last_run), dict(self._tail.by_log)

    def _logs(self) -> Sequence[PartitionLog]:
        """All that are open: what is late in one that takes no writes is late, too."""
        return self._services.partitions.all()

    def _writes(self) -> list[Condition]:
        topics = self._services.topics.image.topics.values()
        return [*self.of_cluster(), *conditions(self._services.partitions, topics)]

    def _pipeline(self, logs: Sequence[PartitionLog], rows: Sequence[Row], now_ms: int) -> Seen:
        """The state of rounds, from the logs, the control socket and the service's files.

        What the service says of itself is judged by the wall clock, which it writes with, too.
        """
        seen, reasons = self._seen(), {h.log: h.reason for h in self._queue().held}
        late = missed(logs, _deadlines(rows), now_ms)
        progress = self._progress()
        held = self._guard.trouble if self._guard.held else ""
        if not held and seen.pid is not None and progress is not None and progress.state == HELD:
            held = progress.detail
        connection = Connection(seen.pid, seen.left_ms, seen.last_pid, round(seen.idle_s * 1000))
        return Seen(
            now_ms=self._services.clock.now_ms(),
            wanted=self._services.config.log_cleaner_enable,
            service=progress,
            connection=connection,
            due=sum(row.needs_service for row in rows),
            failing={r.name: (r.failures, reasons.get(r.name, "")) for r in rows if r.failures},
            late_ms={(str(one.log), one.kind): one.ms for one in late},
            clock=held,
            decided_ms=now_ms,
        )

    def _progress(self) -> ServiceProgress | None:
        """The service's last progress report; None also where it cannot be read."""
        with contextlib.suppress(CorruptData, StorageError):
            return read_progress(self._data_dir)
        return None

    def _queue(self) -> Queue:
        with contextlib.suppress(CorruptData, StorageError):
            return read_queue(self._data_dir) or Queue()
        return Queue()

    def _rows(self, now_ms: int) -> Iterator[Row]:
        for log in self._logs():
            row = self._known.of(log, now_ms)
            if row is not None:
                self._tail.meet(row.name, log.topic_id)
                yield row

    def _failures(self, now_ms: int) -> dict[str, int]:
        """Rounds that failed in a row, by log; also where no plan could be made at all."""
        queue = self._queue()
        held = {h.log: h.count for h in queue.held if now_ms < h.until_ms and h.count}
        return {**held, **self._tail.failures}

    def _kafka(self, rows: list[Row], now_ms: int) -> Iterator[Metric]:
        cleanable = [r for r in rows if not r.uncleanable]
        dirtiest = max((r.ratio for r in cleanable), default=0.0)
        yield GaugeMetricFamily(
            f"{_MANAGER}_max_dirty_percent", "Of the dirtiest log that may be cleaned.",
            int(100 * dirtiest),
        )  # fmt: skip
        yield GaugeMetricFamily(
            f"{_CLEANER}_max_compaction_delay_secs",
            "By how much the latest log is past max.compaction.lag.ms.",
            max((r.delay_ms(now_ms) for r in rows), default=0) / 1000,
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
            metric = f"{_MANAGER}_{name}"
            yield labelled(GaugeMetricFamily, metric, doc, "logDirectory", values)

    def _service(self) -> Iterator[Metric]:
        """Whether rounds run at all."""
        seen = self._seen()
        progress = None if seen.pid is None else self._progress()
        missing = seen.pid is None and self._services.config.log_cleaner_enable
        yield GaugeMetricFamily(
            f"{_MANAGER}_time_since_last_run_ms",
            "Since the lifecycle service last looked at the logs.", round(seen.idle_s * 1000),
        )  # fmt: skip
        yield GaugeMetricFamily(
            f"{_CLEANER}_deadthreadcount", "1 while rounds should run and no service is there.",
            int(missing),
        )  # fmt: skip
        yield GaugeMetricFamily(
            "lapse_lifecycle_service_up", "Whether a lifecycle service is connected.",
            int(seen.pid is not None),
        )  # fmt: skip
        yield from self._run(progress)
        yield GaugeMetricFamily(
            "lapse_lifecycle_clock_ahead_seconds",
            "How far the clock jumped and has not been confirmed: nothing is removed then.",
            max(0 if progress is None else progress.clock_ahead_ms, self._guard.ahead_ms) / 1000,
        )

    def _run(self, progress: ServiceProgress | None) -> Iterator[Metric]:
        """The progress of the rounds under way, and whether rounds are paused."""
        now_ms = self._services.clock.now_ms()
        pauses = pauses_or_all(self._data_dir, now_ms)
        named = sum(p.log != EVERY_LOG for p in pauses)
        done, total, eta_ms = 0, 0, 0
        if progress is not None:
            done, total, eta_ms = progress.bytes_done, progress.bytes_total, progress.eta_ms
        for name, doc, value in (
            ("paused", "1 where somebody has paused the rounds of all logs.", len(pauses) > named),
            ("paused_logs", "Logs whose rounds somebody has paused by name.", named),
            ("run_bytes_done", "Of the rounds under way.", done),
            ("run_bytes", "That the rounds under way are to read and write.", total),
            ("run_seconds_left", "If they go on as they did; 0 where that is not known.",
             max(eta_ms - now_ms, 0) / 1000 if eta_ms else 0),
        ):  # fmt: skip
            yield GaugeMetricFamily(f"lapse_lifecycle_{name}", doc, float(value))


def logs_seen(logs: Iterable[PartitionLog], rows: Iterable[Row]) -> Iterator[LogSeen]:
    """As an overview counts them; those without a row get no rounds."""
    by_log = {row.log: row for row in rows}
    for log in logs:
        row = by_log.get(log.partition)
        if row is None:
            deadlines = deadlines_without_rounds(log)
            yield LogSeen(log.partition, log.config, log.size_bytes, deadlines)
        else:
            yield LogSeen(
                log.partition, log.config, log.size_bytes, row.deadlines, row.needs_service,
                bool(row.uncleanable), row.dirty_bytes, row.ratio,
            )  # fmt: skip


def _deadlines(rows: Iterable[Row]) -> dict[TopicPartition, tuple[Deadline, ...]]:
    return {row.log: row.deadlines for row in rows}


def _of_health(seen: Seen, writes: Iterable[Condition]) -> Iterator[Metric]:
    """Every class of conditions that degrades a broker, and the engine's state."""
    present = {one.reason for one in (*writes, *pipeline_conditions(seen))}
    yield labelled(
        GaugeMetricFamily,
        "lapse_degraded",
        "1 where the broker is degraded, by reason.",
        "reason",
        {reason: reason in present for reason, kind in KINDS.items() if kind.degrades},
    )
    engine = engine_report(seen)
    yield labelled(
        GaugeMetricFamily,
        "lapse_lifecycle_engine",
        "1 for the state of what runs rounds.",
        "state",
        {name: name == engine.state for name in ENGINE_STATES},
    )
    yield GaugeMetricFamily(
        "lapse_lifecycle_engine_failures", "How often in a row it failed.", engine.failures
    )


def _costs(last_run: list[RoundReport]) -> Iterator[Metric]:
    """Of the run of rounds that ended last."""
    read = sum(r.bytes_read for r in last_run)
    written = sum(r.bytes_written for r in last_run)
    fill = (r.map_entries / r.map_entries_max for r in last_run if r.map_entries_max)
    yield GaugeMetricFamily(
        f"{_CLEANER}_cleaner_recopy_percent", "Bytes written of those read by the last rounds.",
        100 * written / read if read else 0,
    )  # fmt: skip
    yield GaugeMetricFamily(
        f"{_CLEANER}_max_clean_time_secs", "What the longest of the last rounds took.",
        max((r.total_seconds for r in last_run), default=0),
    )  # fmt: skip
    yield GaugeMetricFamily(
        f"{_CLEANER}_max_buffer_utilization_percent", "How full a map got in the last rounds.",
        int(100 * max(fill, default=0)),
    )  # fmt: skip


def _of_logs(rows: list[Row], now_ms: int) -> Iterator[Metric]:
    ratio = _family("lapse_compaction_dirty_ratio", "Share of dirty bytes.")
    delay = _family("lapse_compaction_delay_seconds", "By how much max.compaction.lag.ms is past.")
    deadline = _family(
        "lapse_lifecycle_next_deadline_timestamp_seconds",
        "When a round is due next at the latest, or may be.",
    )
    alone = _family("lapse_lifecycle_uncleanable", "1 where rounds leave it alone.", "reason")
    failures = _family("lapse_round_failures", "Rounds that failed, one after the other.")
    first = _family("lapse_bad_range_first_offset", "From where on rounds could not read.")
    tries = _family("lapse_bad_range_tries", "Rounds that failed there.")
    again = _family("lapse_bad_range_next_try_timestamp_seconds", "When the next will try.")
    for row in rows:
        _add(ratio, row, row.ratio)
        _add(delay, row, row.delay_ms(now_ms) / 1000)
        deadline_ms = row.deadline_ms(now_ms)
        if deadline_ms is not None:
            _add(deadline, row, deadline_ms / 1000)
        if row.uncleanable:
            alone.add_metric((*row.where.values(), row.uncleanable), 1)
        if row.failures:
            _add(failures, row, row.failures)
        if row.bad is not None:
            _add(first, row, row.bad.first_offset)
            _add(tries, row, row.bad.tries)
            _add(again, row, row.bad.next_try_ms / 1000)
    yield from (ratio, delay, deadline, alone, failures, first, tries, again)


def _of_rounds(rows: list[Row], by_log: dict[str, RoundReport]) -> Iterator[Metric]:
    """What each log's last round cost (L13)."""
    read = _family("lapse_round_read_bytes_per_dirty_byte", "By the last round.")
    written = _family("lapse_round_written_bytes_per_dirty_byte", "By the last round.")
    for row in rows:
        report = by_log.get(row.name)
        if report is not None and report.dirty_bytes:
            _add(read, row, report.bytes_read / report.dirty_bytes)
            _add(written, row, report.bytes_written / report.dirty_bytes)
    yield from (read, written)


def _family(name: str, doc: str, *more: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, doc, labels=[*WHERE, *more])


def _add(family: GaugeMetricFamily, row: Row, value: float) -> None:
    """As `add_metric`, with the row's labels as they are."""
    family.samples.append(Sample(family.name, row.where, value))
