"""What /metrics says of compaction: as things are when it is asked, service or no service."""

from __future__ import annotations

import asyncio
import gc
import re
import weakref
from dataclasses import replace
from pathlib import Path

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.http.cleaner_metrics import Rows, row_of, same_until_ms
from lapse.broker.node import Node
from lapse.lifecycle.clock_guard import BROKER, CONFIRMED
from lapse.lifecycle.decide.deadline import next_look_ms
from lapse.lifecycle.decide.promises import RETENTION_SLACK_MS, SLACK_MS
from lapse.lifecycle.decide.select import LogInfo, decide
from lapse.lifecycle.owner.remote import RemoteOwner
from lapse.lifecycle.round import bad, ledger
from lapse.lifecycle.round.bad import note_failure
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.ledger import LedgerEntry
from lapse.lifecycle.round.receipt import BadSpot
from lapse.lifecycle.service.loop import Service, ServiceOptions
from lapse.lifecycle.status import reports
from lapse.lifecycle.status.backoff import FIRST_BACKOFF_MS
from lapse.lifecycle.status.pauses import EVERY_LOG, Pause, pause
from lapse.lifecycle.status.reports import ServiceProgress
from lapse.log.env import LogEnv
from lapse.log.facts import StartMove
from lapse.log.partition_log import PartitionLog
from lapse.testing.clock import ManualClock
from tests.support.broker.running import create, running_node
from tests.support.lifecycle.decide.logs import compacted as settings_of
from tests.support.lifecycle.decide.logs import log as facts_of
from tests.support.lifecycle.decide.logs import segment
from tests.support.lifecycle.rounds import MEMORY, NOW, compacted, env_of, overwritten, write
from tests.support.lifecycle.served import Recorded
from tests.unit.broker.test_node import get

HTTP = {"lapse.http.port": "0", "lapse.housekeeping.interval.ms": str(10**9)}
SETTINGS = {
    "internal_segment_bytes": "1000",
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0.5",
    "max_compaction_lag_ms": "60000",
}


async def scrape(node: Node) -> dict[str, float]:
    """Each sample by its name and labels."""
    status, body = await get(node, "/metrics")
    assert status == "HTTP/1.1 200 OK"
    samples = (line.rpartition(" ") for line in body.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def of(topic: str) -> str:
    return f'{{partition="0",topic="{topic}"}}'


async def filled(node: Node, *topics: str) -> None:
    for name in topics:
        await create(node, name, **SETTINGS)
        log = node.services.partitions.get(TopicPartition(name, 0))
        write(log, overwritten(), node.services.clock.now_ms())
        log.roll(node.services.clock.now_ms())


async def test_gauges_are_of_now_though_no_service_runs(tmp_path: Path) -> None:
    """V-2: Kafka's are of the last scan or grab, and stand still without one."""
    clock = ManualClock(NOW)
    async with running_node(tmp_path, HTTP, clock=clock) as node:
        await create(node, "kept")
        await filled(node, "a", "b")
        said = await scrape(node)
        assert said["kafka_log_logcleanermanager_max_dirty_percent"] == 100
        assert said["kafka_log_logcleaner_max_compaction_delay_secs"] == 0
        assert said["lapse_lifecycle_service_up"] == 0
        assert said["kafka_log_logcleaner_deadthreadcount"] == 1
        assert said[f"lapse_compaction_dirty_ratio{of('a')}"] == 1
        assert f"lapse_compaction_dirty_ratio{of('kept')}" not in said  # not compacted
        assert said[f"lapse_lifecycle_next_deadline_timestamp_seconds{of('a')}"] == NOW / 1000
        for waited in (60, 70, 1000):
            clock.advance(waited * 1000 - (clock.now_ms() - NOW))
            said = await scrape(node)
            assert said["kafka_log_logcleaner_max_compaction_delay_secs"] == waited - 60
            assert said[f"lapse_compaction_delay_seconds{of('a')}"] == waited - 60
            since = said["kafka_log_logcleanermanager_time_since_last_run_ms"]
            assert since == waited * 1000


async def test_lateness_of_every_kind_shows_without_a_service(tmp_path: Path) -> None:
    """KIP-354, KIP-107, KIP-32: 0 while all is on time, then by how much the worst is late."""
    clock = ManualClock(NOW)
    async with running_node(tmp_path, HTTP, clock=clock) as node:
        await create(node, "kept", retention_ms="1000", file_delete_delay_ms="0")
        kept = node.services.partitions.get(TopicPartition("kept", 0))
        write(kept, [("k", "v")], NOW)
        await filled(node, "a")

        def late(said: dict[str, float]) -> dict[tuple[str, str], float]:
            names = {n: v for n, v in said.items() if n.startswith("lapse_overdue_seconds")}
            found = re.compile('kind="(.*)",partition="0",topic="(.*)"')
            return {found.search(n).group(2, 1): v for n, v in names.items()}  # type: ignore[union-attr]

        on_time = late(await scrape(node))
        assert on_time == {
            **{("a", kind): 0 for kind in ("superseded", "tombstone", "marker", "deleted")},
            **{("kept", kind): 0 for kind in ("deleted", "retention")},
        }
        clock.advance(60_000 + SLACK_MS + 60_000 + 7000)  # max lag, slack, file.delete.delay
        assert late(await scrape(node)) == {**on_time, ("a", "superseded"): 7}
        clock.advance(RETENTION_SLACK_MS + 1000)
        said = late(await scrape(node))
        gone_by = 1000 + RETENTION_SLACK_MS
        assert said["kept", "retention"] == (clock.now_ms() - NOW - gone_by) / 1000
        log = node.services.partitions.get(TopicPartition("a", 0))
        log.delete_records(log.log_end_offset - 3)
        clock.advance(86_400_000 + 3000)
        assert late(await scrape(node))["a", "deleted"] == 3


async def test_rounds_leave_their_marks(tmp_path: Path) -> None:
    """V-1: Kafka's names, of what the service has reported."""
    clock = ManualClock(NOW)
    async with running_node(tmp_path, HTTP, clock=clock) as node:
        await filled(node, "a")
        owner = RemoteOwner.beside(tmp_path)
        service = Service(
            owner, InlineEngine(RealFs(), clock), env_of(clock), tmp_path,
            ServiceOptions(MEMORY, 1000),
        )  # fmt: skip
        await asyncio.to_thread(service.step)
        clock.advance(5000)
        said = await scrape(node)
        [report] = reports.read_reports(tmp_path)
        read, written = report.bytes_read, report.bytes_written
        assert said["kafka_log_logcleaner_cleaner_recopy_percent"] == 100 * written / read
        assert said["kafka_log_logcleaner_max_clean_time_secs"] == report.total_seconds
        fill = said["kafka_log_logcleaner_max_buffer_utilization_percent"]
        assert fill == 100 * report.map_entries // report.map_entries_max
        dirty = report.dirty_bytes
        assert dirty > 0
        assert report.io_per_dirty_byte == round((read + written) / dirty, 3)
        assert said[f"lapse_round_read_bytes_per_dirty_byte{of('a')}"] == read / dirty
        assert said[f"lapse_round_written_bytes_per_dirty_byte{of('a')}"] == written / dirty
        assert said["kafka_log_logcleanermanager_max_dirty_percent"] == 0
        assert said["kafka_log_logcleanermanager_time_since_last_run_ms"] == 5000
        assert said["lapse_lifecycle_service_up"] == 1
        assert said["kafka_log_logcleaner_deadthreadcount"] == 0
        assert said["lapse_lifecycle_clock_ahead_seconds"] == 0
        held = ServiceProgress("held", "the clock", 1, NOW, clock_ahead_ms=7000)
        reports.write_progress(RealFs(), tmp_path, held)
        assert (await scrape(node))["lapse_lifecycle_clock_ahead_seconds"] == 7
        running = ServiceProgress("running", "", 1, NOW, bytes_done=2, bytes_total=5)
        reports.write_progress(RealFs(), tmp_path, running)
        pause(RealFs(), tmp_path, ["a-0"], Pause(EVERY_LOG, NOW))
        said = await scrape(node)
        assert (said["lapse_lifecycle_run_bytes_done"], said["lapse_lifecycle_run_bytes"]) == (2, 5)
        assert said["lapse_lifecycle_run_seconds_left"] == 0
        assert (said["lapse_lifecycle_paused"], said["lapse_lifecycle_paused_logs"]) == (0, 1)
        running = replace(running, eta_ms=clock.now_ms() + 9000)
        reports.write_progress(RealFs(), tmp_path, running)
        pause(RealFs(), tmp_path, [], Pause(EVERY_LOG, NOW))
        said = await scrape(node)
        assert said["lapse_lifecycle_run_seconds_left"] == 9
        assert (said["lapse_lifecycle_paused"], said["lapse_lifecycle_paused_logs"]) == (1, 1)
        owner.close()


async def test_what_is_left_alone_is_named(tmp_path: Path) -> None:
    """L10; Kafka's uncleanable-bytes fails where there was no checkpoint (V-4)."""
    clock = ManualClock(NOW)
    async with running_node(tmp_path, HTTP, clock=clock) as node:
        await filled(node, "a", "b")
        manager = "kafka_log_logcleanermanager_uncleanable"
        where = f'{{logDirectory="{tmp_path}"}}'
        said = await scrape(node)
        assert (said[f"{manager}_partitions_count{where}"], said[f"{manager}_bytes{where}"]) == (
            0,
            0,
        )
        log = node.services.partitions.get(TopicPartition("a", 0))
        base = log.segments[4].base_offset
        known = note_failure(None, BadSpot(base, base + 3, 210, "torn"), NOW)
        bad.store(RealFs(), log.dir, known)
        log.set_bad(known)
        said = await scrape(node)
        assert said[f"{manager}_partitions_count{where}"] == 1
        above = sum(s.size for s in log.segments[4:-1])
        assert said[f"{manager}_bytes{where}"] == above
        assert said[f"lapse_bad_range_first_offset{of('a')}"] == base + 3
        assert said[f"lapse_bad_range_tries{of('a')}"] == 1
        assert said[f"lapse_bad_range_next_try_timestamp_seconds{of('a')}"] == NOW / 1000 + 60
        reason = 'lapse_lifecycle_uncleanable{partition="0",reason="bad_range",topic="a"}'
        assert said[reason] == 1
        assert not [name for name in said if re.search(r'bad_range.*topic="b"', name)]


async def test_rounds_that_fail_show_within_one_backoff(tmp_path: Path) -> None:
    """S-12: a log that nothing cleans is uncleanable, whatever is wrong with it."""
    clock = ManualClock(NOW)
    async with running_node(tmp_path, HTTP, clock=clock) as node:
        await filled(node, "a", "b")
        owner, engine = RemoteOwner.beside(tmp_path), Recorded(clock)
        engine.failing = {"a-0": "no luck"}
        options = ServiceOptions(MEMORY, 1000)
        service = Service(owner, engine, env_of(clock), tmp_path, options)
        count = (
            f'kafka_log_logcleanermanager_uncleanable_partitions_count{{logDirectory="{tmp_path}"}}'
        )
        for failures in (1, 2):
            clock.advance(await asyncio.to_thread(service.step))
            said = await scrape(node)
            assert said[f"lapse_round_failures{of('a')}"] == failures
            assert said[count] == 1
            why = '{partition="0",reason="rounds_fail",topic="a"}'
            assert said["lapse_lifecycle_uncleanable" + why] == 1
            assert said[count.replace("partitions_count", "bytes")] > 0
            assert f"lapse_round_failures{of('b')}" not in said
            clock.advance(FIRST_BACKOFF_MS * failures)
        engine.failing = {}
        await asyncio.to_thread(service.step)
        said = await scrape(node)
        assert said[count] == 0
        assert f"lapse_round_failures{of('a')}" not in said
        owner.close()


async def test_a_clock_that_jumped_is_a_trouble(tmp_path: Path) -> None:
    """ADR-11: the broker's retention stops too, and says so."""
    clock = ManualClock(NOW)
    settings = {**HTTP, "lapse.housekeeping.interval.ms": "10"}
    async with running_node(tmp_path, settings, clock=clock) as node:

        async def until(held: bool) -> str:
            for _ in range(500):
                text = (await get(node, "/health"))[1]
                known = (tmp_path / BROKER).exists()  # there is something to doubt a clock by
                if known and ("lapse.clock.jump.max.ms" in text) == held:
                    return text
                await asyncio.sleep(0.02)
            raise AssertionError(text)

        await until(held=False)
        clock.jump(86_400_000)
        assert str(tmp_path / CONFIRMED) in await until(held=True)
        ahead = (await scrape(node))["lapse_lifecycle_clock_ahead_seconds"]
        assert ahead == 86_400
        (tmp_path / CONFIRMED).touch()
        await until(held=False)


# --- rows are kept -------------------------------------------------------------------------------


def opened(path: Path, **settings: object) -> PartitionLog:
    """A log with sealed segments, from before max lag is over."""
    config = compacted(max_compaction_lag_ms=60_000, **settings)
    env = LogEnv(RealFs(), ManualClock(NOW))
    path.mkdir()
    log = PartitionLog.open(path, TopicPartition("a", 0), config, env, clean_shutdown=False)
    write(log, overwritten(), NOW)
    log.roll(NOW)
    return log


def test_a_log_that_did_not_change_is_not_looked_at_again(tmp_path: Path) -> None:
    """Ten thousand of them cost a scrape a tenth of a second; their delay grows all the same."""
    log, rows = opened(tmp_path / "a"), Rows()
    late = NOW + 60_001
    row = rows.of(log, late)
    assert row is not None
    assert (row.due, row.delay_ms(late), row.deadline_ms(late)) == (True, 1, late)
    assert rows.of(log, late + 10**9) is row
    assert row.delay_ms(late + 10**9) == 10**9 + 1
    assert row.deadline_ms(late + 10**9) == late + 10**9


def test_what_comes_by_the_clock_or_goes_back_with_it_ends_a_row(tmp_path: Path) -> None:
    log, rows = opened(tmp_path / "a", min_cleanable_dirty_ratio=1), Rows()
    young = rows.of(log, NOW)
    assert young is not None
    assert (young.due, young.next_ms) == (False, NOW + 60_001)
    assert rows.of(log, NOW + 60_000) is young
    late = rows.of(log, NOW + 60_001)
    assert late is not None
    assert late.due
    assert rows.of(log, NOW + 60_000) == young  # the clock was set back


def test_a_log_that_changed_is_looked_at_again(tmp_path: Path) -> None:
    log, rows = opened(tmp_path / "a"), Rows()
    row = rows.of(log, NOW)
    assert row is not None
    assert row.ratio == 1
    log.cleaner_checkpoint = log.log_end_offset
    clean = rows.of(log, NOW)
    assert clean is not None
    assert (clean.ratio, clean.due, clean.late_from_ms) == (0, False, None)
    log.update_config(compacted(cleanup_policy="delete"))
    assert rows.of(log, NOW) is None


def test_a_round_in_the_ledger_ends_a_row_with_a_horizon(tmp_path: Path) -> None:
    """Its commit may be later than its horizon says (L3): the log is not due as early."""
    log, rows = opened(tmp_path / "a"), Rows()
    log.cleaner_checkpoint = log.log_end_offset
    first, generation = log.segments[0], log.generation
    with_horizon = replace(first.summary, horizon_earliest_ms=NOW + 50, horizon_bytes=10**6)
    assert log.adopt_summary(with_horizon, "", generation) is None
    booked = LedgerEntry("r", 0, NOW, NOW + 50, NOW, 1, 1, 1, (), end_offset=100)
    ledger.append(RealFs(), log.dir, booked)
    at = NOW + 50
    row = rows.of(log, at)
    assert row is not None
    assert row.due
    assert rows.of(log, at + 1) is row
    ledger.append(RealFs(), log.dir, replace(booked, committed_ms=NOW + 30))  # another group
    waiting = rows.of(log, at + 1)
    assert waiting is not None
    assert (waiting.due, waiting.next_ms) == (False, NOW + 80)
    passed = rows.of(log, NOW + 80)
    assert passed is not None
    assert passed.due


def test_a_log_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    log, rows = opened(tmp_path / "a"), Rows()
    rows.of(log, NOW)
    log.close()
    held = weakref.ref(log)
    del log
    gc.collect()
    assert held() is None


def test_min_lag_ends_a_row_though_no_round_waits_for_it() -> None:
    """A log that is left alone has a dirty ratio all the same."""
    unhandled = ("unknown codec 7 at offset 3",)
    young = segment(0, largest_timestamp=NOW - 300, append_last_ms=NOW - 300, unhandled=unhandled)
    decision = decide(
        LogInfo(facts_of([young, segment(10, 0)]), settings_of(min_compaction_lag_ms=1000)), NOW
    )
    assert next_look_ms(decision) is None
    assert row_of(decision).ratio == 0
    assert same_until_ms(decision) == NOW + 700
    assert row_of(decide(decision.info, NOW + 700)).ratio == 1


def test_a_move_of_the_log_start_from_the_future_ends_a_row_when_it_is_there() -> None:
    moves = (StartMove(5, NOW + 50),)
    facts = facts_of([segment(0), segment(10, 0)], log_start_offset=5, start_moves=moves)
    decision = decide(LogInfo(facts, settings_of(cleanup_policy="delete")), NOW)
    assert row_of(decision).due  # not waited for
    assert same_until_ms(decision) == NOW + 50
    assert not row_of(decide(decision.info, NOW + 50)).due
