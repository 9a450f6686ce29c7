"""What /metrics says of compaction: as things are when it is asked, service or no service."""

from __future__ import annotations

import asyncio
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.http.cleaner_metrics import CleanerCollector
from lapse.broker.node import Node
from lapse.lifecycle.clock_guard import BROKER, CONFIRMED
from lapse.lifecycle.decide.promises import RETENTION_SLACK_MS, SLACK_MS
from lapse.lifecycle.outlook.explain import Surroundings
from lapse.lifecycle.owner.remote import RemoteOwner
from lapse.lifecycle.round import bad
from lapse.lifecycle.round.bad import note_failure
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.ledger import ledger_path
from lapse.lifecycle.round.receipt import BadSpot
from lapse.lifecycle.round.stamps import info_of
from lapse.lifecycle.service.loop import Service, ServiceOptions
from lapse.lifecycle.status import reports
from lapse.lifecycle.status.backoff import FIRST_BACKOFF_MS
from lapse.lifecycle.status.conditions import DEADLINE_MISSED, Condition
from lapse.lifecycle.status.pauses import EVERY_LOG, Pause, pause
from lapse.lifecycle.status.reports import ServiceProgress
from lapse.testing.clock import ManualClock
from tests.support.broker.running import create, running_node
from tests.support.lifecycle.erase.orders import give
from tests.support.lifecycle.rounds import MEMORY, NOW, env_of, overwritten, write
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


async def test_one_ledger_that_cannot_be_read_does_not_blind_the_broker(tmp_path: Path) -> None:
    """Such a log gets no rounds; health and metrics go on, with what needs no ledger of it, too."""
    clock = ManualClock(NOW)
    async with running_node(tmp_path, HTTP, clock=clock) as node:
        await filled(node, "a", "b")
        ledger_path(tmp_path / "a-0").mkdir()
        assert await get(node, "/health") == ("HTTP/1.1 200 OK", "serving\n")
        said = await scrape(node)
        why = '{partition="0",reason="unreadable",topic="a"}'
        assert said["lapse_lifecycle_uncleanable" + why] == 1
        assert said[f"lapse_compaction_dirty_ratio{of('b')}"] == 1
        clock.advance(600_000)
        late = 'lapse_overdue_seconds{kind="superseded",partition="0",topic="a"}'
        assert (await scrape(node))[late] > 0


async def test_what_is_late_in_a_log_that_takes_no_writes_is_late(tmp_path: Path) -> None:
    """It still serves reads: an alert that has fired must not end because a write failed."""
    clock = ManualClock(NOW)
    async with running_node(tmp_path, HTTP, clock=clock) as node:
        await filled(node, "a")
        clock.advance(600_000)
        late = 'lapse_overdue_seconds{kind="superseded",partition="0",topic="a"}'
        before = (await scrape(node))[late]
        assert before > 0
        log = node.services.partitions.get(TopicPartition("a", 0))
        log._core.offline_reason = "a write failed"
        said = await scrape(node)
        assert said[late] == before
        why = '{partition="0",reason="offline",topic="a"}'
        assert said["lapse_lifecycle_uncleanable" + why] == 1
        assert said["kafka_log_logcleanermanager_max_dirty_percent"] == 0
        _, text = await get(node, "/health")
        assert "missed a deadline" in text
        assert "rounds are not running" not in text, "no round of it can be made"
        [look] = node.services.overviews
        seen = look()
        assert (seen.logs, seen.late, seen.due, seen.topics[0].held) == (1, 1, 0, 1)


async def test_logs_that_must_be_looked_through_are_not_said_to_need_nothing(
    tmp_path: Path,
) -> None:
    """A directory of Kafka's has no summaries. With nobody to look, nothing would ever go."""
    clock = ManualClock(NOW)
    async with running_node(tmp_path, HTTP, clock=clock) as node:
        await filled(node, "a")
    shutil.rmtree(tmp_path / "a-0" / ".lapse")
    async with running_node(tmp_path, HTTP, clock=clock) as node:
        clock.advance(reports.SILENT_MS + 1)
        _, text = await get(node, "/health")
        assert "rounds are not running: a round of 1 log is due" in text
        said = await scrape(node)
        kinds = set(re.findall('lapse_overdue_seconds{kind="([a-z]+)"', " ".join(said)))
        assert kinds == {"deleted"}, "of the others nobody knows whether they are on time"
        [look] = node.services.overviews
        assert look().due == 1


async def test_a_look_that_fails_is_a_fault_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> list[Condition]:
        raise ZeroDivisionError("nobody thought of it")

    async with running_node(tmp_path, HTTP, clock=ManualClock(NOW)) as node:
        with monkeypatch.context() as patch:
            patch.setattr(CleanerCollector, "conditions", fail)
            status, text = await get(node, "/health")
        assert status == "HTTP/1.1 503 Service Unavailable"
        first, *more = text.splitlines()
        assert first == "degraded"
        assert "nobody thought of it" in more[0]
        assert await get(node, "/health") == ("HTTP/1.1 200 OK", "serving\n")


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


async def test_what_is_late_stays_late_when_the_clock_is_set_back(tmp_path: Path) -> None:
    """ADR-11: recorded time never goes back; metrics, health and overview go by it as explain does.

    A day back: nothing would be late by the wall clock, and every alert would end.
    """
    clock = ManualClock(NOW)
    orders = {"lapse.erase.orders.dir": str(tmp_path / "orders")}
    async with running_node(tmp_path / "data", {**HTTP, **orders}, clock=clock) as node:
        await filled(node, "a")
        give(tmp_path / "orders" / "late", NOW, NOW + 1000)
        clock.advance(600_000)
        node._guard.look()
        late = 'lapse_overdue_seconds{kind="superseded",partition="0",topic="a"}'
        names = [late, f"lapse_compaction_delay_seconds{of('a')}", "lapse_erasure_overdue_seconds"]
        before = await scrape(node)
        assert min(before[name] for name in names) > 0
        [look] = node.services.overviews
        seen = look()
        assert seen.late == 1
        [missed] = [one for one in seen.troubles if one.reason == DEADLINE_MISSED]
        clock.jump(-86_400_000)
        after = await scrape(node)
        assert [after[name] for name in names] == [before[name] for name in names]
        again = look()
        assert (again.now_ms, again.late) == (seen.now_ms, 1)
        assert missed in again.troubles
        around = Surroundings.of(tmp_path / "data", node.services.config, clock)
        log = node.services.partitions.get(TopicPartition("a", 0))
        explained = around.explained(info_of(log.facts(), log.config, around.now_ms))
        assert explained.overdue_ms["superseded"] == before[late] * 1000


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
