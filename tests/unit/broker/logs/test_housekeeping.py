"""Housekeeping on a clock that moves when told: what is due is done, what fails stops nothing."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.clock import Clock, SystemClock
from lapse.base.config import broker_config
from lapse.base.errors import StorageError
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.housekeeping import (
    Guard,
    Housekeeping,
    apply_retention,
    believing,
    chores_at,
)
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.lifecycle.clock_guard import BROKER, read_record
from lapse.lifecycle.decide.clock import ClockVerdict
from lapse.log.checkpoints import LOG_START, RECOVERY_POINT, read_offsets
from lapse.log.env import LogEnv
from lapse.log.reserve import PLENTY_BYTES, RESERVE, RESERVE_BYTES
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.testing.clock import ManualClock
from tests.support.broker.failing import FullTillUnlinked
from tests.support.broker.running import batch_of, connect, create, produce, running_node, until
from tests.support.log.logs import (
    NOW,
    append,
    batch,
    batches_of,
    config,
    open_log,
    rewrite,
    while_it_is_committed,
)

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)
IDEMPOTENT = BatchSpec(producer_id=5, producer_epoch=0, base_sequence=0)
NEVER = {"lapse.housekeeping.interval.ms": str(10**9)}  # the test ticks


def housekeeping(node: Node, guard: Guard = believing) -> Housekeeping:
    s = node.services
    made = Housekeeping(
        s.partitions, s.clock, s.config, s.counters, DiskThreads("chores", 1), guard
    )
    made.tick(s.clock.now_ms())
    return made


def judged(now_ms: int, jumped_ms: int) -> ClockVerdict:
    return replace(believing(now_ms), jumped_ms=jumped_ms)


def test_retention_takes_no_segment_that_a_round_has_made_meanwhile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """T-23: what was looked at was too old; what has its base offset now has young records."""
    log = open_log(tmp_path, config(cleanup_policy="compact,delete", retention_ms=10_000))
    for name, time_ms in (("old", NOW - 60_000), ("young", NOW), ("last", NOW)):
        append(log, batch(name=name, timestamp=time_ms), now_ms=time_ms)
        log.roll(NOW)
    done = rewrite(log, list(log.segments[:2]), lambda _: True, tmp_path / ".lapse" / "1" / "a")
    caplog.set_level(logging.INFO)
    while_it_is_committed(log, done, lambda: apply_retention(log, NOW, believing(NOW)))
    assert "retention took" not in caplog.text
    assert sorted(batches_of(log)) == [0, 3, 6]
    assert log.log_start_offset == 0


async def test_the_event_loop_has_its_turn_between_two_logs(tmp_path: Path) -> None:
    """A break after each log's chores: eight that were rolled at once are not synced at once."""
    async with running_node(tmp_path, NEVER) as node, await connect(node) as c:
        await create(node, "t")
        await create(node, "u")
        await produce(c, "t", (0, batch_of(b"a")))
        s, synced_at_breaks = node.services, []
        logs = [s.partitions.get(T0), s.partitions.get(U0)]
        await produce(c, "u", (0, batch_of(b"a")))
        for log in logs:
            log.roll(s.clock.now_ms())

        class Watched(DiskThreads):
            def breaks(self, _clock: Clock) -> Callable[[], None]:
                return lambda: synced_at_breaks.append(sum(log.recovery_point for log in logs))

        chores = Housekeeping(s.partitions, s.clock, s.config, s.counters, Watched("chores", 1))
        chores.tick(s.clock.now_ms())
        assert synced_at_breaks == [1, 2]


async def test_an_idle_segment_is_rolled_and_synced(tmp_path: Path) -> None:
    """L5: by the clock, with nobody writing."""
    clock = ManualClock()
    async with running_node(tmp_path, NEVER, clock=clock) as node, await connect(node) as c:
        await create(node, "t", cleanup_policy="compact", max_compaction_lag_ms="5000")
        await produce(c, "t", (0, batch_of(b"a")))
        chores, log = housekeeping(node), node.services.partitions.get(T0)
        clock.advance(4_999)
        chores.tick(clock.now_ms())
        assert (len(log.segments), log.recovery_point) == (1, 0)
        clock.advance(1)
        chores.tick(clock.now_ms())
        assert (len(log.segments), log.recovery_point) == (2, 1)
        clock.advance(10_000)
        chores.tick(clock.now_ms())
        assert len(log.segments) == 2  # the empty one is left alone


async def test_retention_by_age_then_files_go_after_their_delay(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = {**NEVER, "log.retention.check.interval.ms": "1000"}
    async with running_node(tmp_path, settings, clock=clock) as node, await connect(node) as c:
        await create(node, "t", retention_ms="10000", segment_ms="1000", file_delete_delay_ms="500")
        record = NewRecord(b"k", b"v", timestamp=clock.now_ms())
        await produce(c, "t", (0, build_batch([record])))
        chores, log = housekeeping(node), node.services.partitions.get(T0)
        clock.advance(1_000)
        chores.tick(clock.now_ms())
        assert log.log_start_offset == 0
        clock.advance(10_000)
        chores.tick(clock.now_ms())
        assert log.log_start_offset == 1
        assert [n for n in os.listdir(log.dir) if n.endswith(".log.deleted")]
        clock.advance(500)
        chores.tick(clock.now_ms())
        assert not [n for n in os.listdir(log.dir) if n.endswith(".deleted")]


async def test_retention_counts_what_has_no_time_from_its_append(tmp_path: Path) -> None:
    """Beside a record of two months ago, too; Kafka lets both go at once (T-25)."""
    clock = ManualClock()
    settings = {**NEVER, "log.retention.check.interval.ms": "1000"}
    async with running_node(tmp_path, settings, clock=clock) as node, await connect(node) as c:
        old = clock.now_ms() - 60 * 86_400_000
        for topic, times in (("t", (-1, -1)), ("u", (old + 1, old + 2))):
            await create(node, topic, retention_ms="10000", segment_ms="1000")
            for some in ((old,), times):
                batch = build_batch([NewRecord(b"k", b"v", time) for time in some])
                await produce(c, topic, (0, batch))
        chores = housekeeping(node)
        starts = []
        for passed_ms in (1000, 9000, 1000):
            clock.advance(passed_ms)
            chores.tick(clock.now_ms())
            starts.append([node.services.partitions.get(one).log_start_offset for one in (T0, U0)])
        assert starts == [[0, 3], [0, 3], [3, 3]]


async def test_t24_the_active_segment_expires_too(tmp_path: Path) -> None:
    """Many guides say that it cannot."""
    clock = ManualClock()
    settings = {**NEVER, "log.retention.check.interval.ms": "1000"}
    async with running_node(tmp_path, settings, clock=clock) as node, await connect(node) as c:
        await create(node, "t", retention_ms="10000", cleanup_policy="compact,delete")
        record = NewRecord(b"k", b"v", timestamp=clock.now_ms())
        await produce(c, "t", (0, build_batch([record])))
        chores, log = housekeeping(node), node.services.partitions.get(T0)
        clock.advance(10_000)
        chores.tick(clock.now_ms())
        assert (log.log_start_offset, len(log.segments)) == (0, 1)
        clock.advance(1_000)
        chores.tick(clock.now_ms())
        assert (log.log_start_offset, len(log.segments), log.size_bytes) == (1, 1, 0)
        await produce(c, "t", (0, batch_of(b"a")))
        assert log.log_end_offset == 2


async def test_a_clock_that_jumped_removes_nothing_until_it_is_confirmed(tmp_path: Path) -> None:
    """ADR-11; what was asked for by offset goes all the same."""
    clock, jumped = ManualClock(), True
    settings = {
        **NEVER, "log.retention.check.interval.ms": "1000", "producer.id.expiration.ms": "10000",
    }  # fmt: skip
    async with running_node(tmp_path, settings, clock=clock) as node, await connect(node) as c:
        await create(node, "t", retention_ms="10000", segment_ms="1000")
        await produce(c, "t", (0, batch_of(b"a", b"b", spec=IDEMPOTENT)))
        log = node.services.partitions.get(T0)
        chores = housekeeping(node, lambda now_ms: judged(now_ms, 5 * jumped))
        clock.jump(365 * 86_400_000)
        chores.tick(clock.now_ms())
        assert [s.base_offset for s in log.segments] == [0, 2]  # rolled: nothing is lost by that
        assert (log.log_start_offset, len(log.facts().producers)) == (0, 1)
        await produce(c, "t", (0, batch_of(b"c")))
        log.delete_records(2)
        assert [s.base_offset for s in log.segments] == [2]
        jumped = False
        for _ in range(2):
            clock.advance(20_000)
            chores.tick(clock.now_ms())
        assert log.log_start_offset == 3
        assert log.facts().producers == ()


async def test_retention_by_size_asks_no_clock(tmp_path: Path) -> None:
    """Else a disk fills up while nobody is there to confirm a clock."""
    clock = ManualClock()
    settings = {**NEVER, "log.retention.check.interval.ms": "1000"}
    async with running_node(tmp_path, settings, clock=clock) as node, await connect(node) as c:
        await create(node, "t", retention_ms="1000", retention_bytes="100", segment_ms="1000")
        log = node.services.partitions.get(T0)
        chores = housekeeping(node, lambda now_ms: judged(now_ms, 5))
        for _ in range(4):
            await produce(c, "t", (0, batch_of(b"a", b"b")))
            clock.advance(1000)
            chores.tick(clock.now_ms())
        assert 100 <= log.size_bytes < 200
        assert 0 < log.log_start_offset < 8  # by age all would have gone


async def test_started_behind_after_a_reboot_it_notes_by_what_was_kept(tmp_path: Path) -> None:
    """ADR-11: the clock of the machine is not believed, and says that it is an hour ago."""
    clock = ManualClock()
    clock.advance(10_000)
    async with running_node(tmp_path, NEVER, clock=clock) as node:
        await create(node, "t")
    kept_ms = clock.now_ms()
    clock.reboot(40_000_000, -3_600_000)
    clock.advance(2_000)
    async with running_node(tmp_path, NEVER, clock=clock) as node, await connect(node) as c:
        clock.advance(500)
        await create(node, "u")
        record = NewRecord(b"k", b"v", timestamp=clock.now_ms())
        for topic in "tu":
            await produce(c, topic, (0, build_batch([record])))
        logs = [node.services.partitions.get(tp) for tp in (T0, U0)]
        assert [log.active_append_first_ms for log in logs] == [kept_ms + 500] * 2


async def test_l11_the_active_segment_is_rolled_in_time_for_a_trim(tmp_path: Path) -> None:
    """D-7: in Kafka an idle partition keeps what was deleted for ever."""
    clock = ManualClock()
    async with running_node(tmp_path, NEVER, clock=clock) as node, await connect(node) as c:
        await create(
            node, "t", cleanup_policy="delete", lapse_physical_delete_max_lag_ms="10000",
            file_delete_delay_ms="2000", lapse_roll_time="record",
        )  # fmt: skip
        await produce(c, "t", (0, batch_of(b"a", b"b", b"c")))
        chores, log = housekeeping(node), node.services.partitions.get(T0)
        log.delete_records(1)
        clock.advance(3_000)
        log.delete_records(2)  # the first one's deadline stays
        clock.advance(999)
        chores.tick(clock.now_ms())
        assert [s.base_offset for s in log.segments] == [0]
        clock.advance(1)
        chores.tick(clock.now_ms())
        assert [s.base_offset for s in log.segments] == [0, 3]
        assert [m.offset for m in log.facts().start_moves] == [1, 2]  # what a round is due for
        assert (log.dir / f"{3:020d}.snapshot").exists()
        clock.advance(60_000)
        chores.tick(clock.now_ms())
        assert [s.base_offset for s in log.segments] == [0, 3]


async def test_l11_a_segment_all_of_which_is_dead_goes_without_a_round(tmp_path: Path) -> None:
    """Also what a crash kept DeleteRecords from: only the log start was moved then."""
    clock = ManualClock()
    async with running_node(tmp_path, NEVER, clock=clock) as node, await connect(node) as c:
        await create(
            node, "t", lapse_physical_delete_max_lag_ms="10000", file_delete_delay_ms="2000"
        )
        await produce(c, "t", (0, batch_of(b"a", b"b", b"c")))
        chores, log = housekeeping(node), node.services.partitions.get(T0)
        log.advance_log_start(-1)
        assert log.size_bytes > 0
        chores.tick(clock.now_ms())
        assert (log.size_bytes, log.facts().start_moves) == (0, ())
        assert [s.base_offset for s in log.segments] == [3]
        clock.advance(2000)
        chores.tick(clock.now_ms())
        assert list(log.dir.glob(f"{0:020d}*")) == []
        for _ in range(3):  # nothing is left to be rolled
            clock.advance(1_000_000)
            chores.tick(clock.now_ms())
        assert [s.base_offset for s in log.segments] == [3]


async def test_directories_of_deleted_topics_go_after_their_delay(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_node(tmp_path, NEVER, clock=clock) as node, await connect(node) as c:
        await create(node, "t", file_delete_delay_ms="500")
        await produce(c, "t", (0, batch_of(b"a")))
        await Admin(c).delete_topic("t")
        chores = housekeeping(node)
        assert [n for n in os.listdir(tmp_path) if n.endswith("-delete")]
        clock.advance(500)
        chores.tick(clock.now_ms())
        assert not [n for n in os.listdir(tmp_path) if n.startswith("t-0")]


async def test_recovery_points_are_checkpointed(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = {**NEVER, "log.flush.offset.checkpoint.interval.ms": "60000"}
    async with running_node(tmp_path, settings, clock=clock) as node, await connect(node) as c:
        await create(node, "t", segment_ms="1000")
        await produce(c, "t", (0, batch_of(b"a")))
        chores = housekeeping(node)
        clock.advance(60_000)
        chores.tick(clock.now_ms())
        assert read_offsets(tmp_path / RECOVERY_POINT) == {T0: 1}


async def test_log_starts_are_checkpointed_at_an_interval_of_their_own(tmp_path: Path) -> None:
    """For a real Kafka that is started on the directory after a crash (D-8)."""
    clock = ManualClock()
    settings = {
        **NEVER, "log.flush.offset.checkpoint.interval.ms": "600000",
        "log.flush.start.offset.checkpoint.interval.ms": "5000",
    }  # fmt: skip
    async with running_node(tmp_path, settings, clock=clock) as node, await connect(node) as c:
        await create(node, "t")
        await produce(c, "t", (0, batch_of(b"a", b"b")))
        chores = housekeeping(node)
        node.services.partitions.get(T0).delete_records(1)
        chores.tick(clock.now_ms())
        clock.advance(4_999)
        chores.tick(clock.now_ms())
        assert read_offsets(tmp_path / LOG_START).get(T0) is None
        clock.advance(1)
        chores.tick(clock.now_ms())
        assert read_offsets(tmp_path / LOG_START) == {T0: 1}
        assert read_offsets(tmp_path / RECOVERY_POINT) == {}


class _BrokenFs(RealFs):
    """Has no room for producer snapshots of topic t, so that its log cannot roll."""

    broken = True

    def write_file(self, path: Path, data: bytes | bytearray | memoryview) -> None:
        if self.broken and path.parent.name == "t-0" and path.suffix == ".snapshot":
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise StorageError(f"writing {path}: {full.strerror}") from full
        super().write_file(path, data)


async def test_a_failing_log_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, fs = ManualClock(), _BrokenFs()
    async with running_node(tmp_path, NEVER, clock=clock, fs=fs) as node, await connect(node) as c:
        for name in ("t", "u"):
            await create(node, name, segment_ms="1000")
            await produce(c, name, (0, batch_of(b"a")))
        chores = housekeeping(node)
        for _ in range(3):
            clock.advance(1_000)
            chores.tick(clock.now_ms())
        said = [r.getMessage() for r in caplog.records if "roll of t-0 failed" in r.getMessage()]
        assert len(said) == len(set(said))  # not the same line again and again
        assert said
        assert node.services.counters.housekeeping_failures["roll"] == 3
        assert len(node.services.partitions.get(U0).segments) == 2
        fs.broken = False
        chores.tick(clock.now_ms())
        assert len(node.services.partitions.get(T0).segments) == 2


class Kept(RealFs):
    """`is_refusing`: no `.deleted` file can be removed."""

    is_refusing = False

    def unlink(self, path: Path) -> None:
        if self.is_refusing and path.name.endswith(".deleted"):
            cause = OSError(errno.EPERM, os.strerror(errno.EPERM))
            raise StorageError(f"removing {path}: {cause.strerror}") from cause
        super().unlink(path)


async def test_a_file_that_cannot_be_removed_is_shown_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No other chore of the same name succeeds meanwhile, and takes it back each time."""
    fs, now_ms = Kept(), SystemClock().now_ms()
    names = [name for name, _, _ in chores_at(now_ms, believing(now_ms))]
    assert len(set(names)) == len(names)
    async with running_node(tmp_path, NEVER, fs=fs) as node, await connect(node) as c:
        await create(node, "t", file_delete_delay_ms="0")
        await produce(c, "t", (0, batch_of(b"a")))
        chores, fs.is_refusing = housekeeping(node), True
        node.services.partitions.get(T0).delete_records(-1)
        for _ in range(3):
            chores.tick(node.services.clock.now_ms() + 1)
            (said,) = [one for one in chores.troubles() if "unlink of t-0" in one]
            assert said.startswith(f"unlink of t-0 fails: removing {tmp_path}/t-0/")
        fs.is_refusing = False
        chores.tick(node.services.clock.now_ms() + 1)
        assert chores.troubles() == []
    assert caplog.text.count("unlink of t-0 failed: ") == 1


@pytest.mark.parametrize("is_made_anew", [False, True])
async def test_what_failed_of_a_log_goes_with_its_topic(tmp_path: Path, is_made_anew: bool) -> None:
    """One that is made anew by its name has nothing of it: retention is not due again so soon."""
    clock, fs = ManualClock(), _BrokenFs()
    settings = {**NEVER, "log.retention.check.interval.ms": "1000"}
    async with (
        running_node(tmp_path, settings, clock=clock, fs=fs) as node,
        await connect(node) as c,
    ):
        await create(node, "t", retention_ms="10")
        await produce(c, "t", (0, batch_of(b"a")))
        chores = housekeeping(node)
        clock.advance(1_000)
        chores.tick(clock.now_ms())
        assert [one.split(" fails")[0] for one in chores.troubles()] == ["retention of t-0"]
        await node.services.topics.delete(node.services.topics.image.topics["t"])
        if is_made_anew:
            await create(node, "t")
        chores.tick(clock.now_ms())
        assert chores.troubles() == []
        fs.broken = False


async def test_records_are_no_older_than_the_time_that_removes_them(tmp_path: Path) -> None:
    """ADR-11: the clock is set back an hour, and time stands still at what was believed."""
    clock = ManualClock()
    settings = {**NEVER, "log.retention.check.interval.ms": "1"}
    async with running_node(tmp_path, settings, clock=clock) as node, await connect(node) as c:
        await create(node, "t", retention_ms="1800000", cleanup_policy="delete")
        now_ms = clock.now_ms()
        log = node.services.partitions.get(T0)
        chores = housekeeping(node, lambda _: believing(now_ms))
        clock.jump(-3_600_000)
        await produce(c, "t", (0, build_batch([NewRecord(b"k", b"v", timestamp=now_ms)])))
        for _ in range(2):
            chores.tick(clock.now_ms())
            clock.advance(10)
        assert log.log_start_offset == 0
        assert log.active_append_first_ms == now_ms


async def test_opened_under_a_clock_that_jumped_nobody_is_forgotten(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_node(tmp_path, NEVER, clock=clock) as node, await connect(node) as c:
        await create(node, "t")
        record = NewRecord(b"k", b"v", timestamp=clock.now_ms())
        await produce(c, "t", (0, build_batch([record], IDEMPOTENT)))
    clock.jump(365 * 86_400_000)
    async with running_node(tmp_path, NEVER, clock=clock) as node:
        assert node.services.partitions.get(T0).facts().producers
    (tmp_path / "clock-confirmed").touch()
    async with running_node(tmp_path, NEVER, clock=clock) as node:
        assert not node.services.partitions.get(T0).facts().producers


async def test_the_time_is_durable_before_retention_goes_by_it(tmp_path: Path) -> None:
    """ADR-11: a clock that is set back over a restart is never before what was removed by."""
    kept: list[int] = []

    class Looking(RealFs):
        def rename(self, source: Path, target: Path) -> None:
            if target.name.endswith(".log.deleted"):
                record = read_record(tmp_path / BROKER)
                kept.append(-1 if record is None else record.now_ms)
            super().rename(source, target)

    clock = ManualClock()
    settings = {"lapse.housekeeping.interval.ms": "5", "log.retention.check.interval.ms": "1000"}
    async with (
        running_node(tmp_path, settings, fs=Looking(), clock=clock) as node,
        await connect(node) as c,
    ):
        await create(node, "t", retention_ms="10000")
        await produce(c, "t", (0, build_batch([NewRecord(b"k", b"v", clock.now_ms())])))
        expires_ms = clock.now_ms() + 10_000
        clock.advance(11_000)
        await until(lambda: kept or clock.advance(10))
        assert kept[0] >= expires_ms


async def test_room_for_a_start_on_a_full_disk_is_kept_after_a_minute(tmp_path: Path) -> None:
    """Who starts there can delete a topic, and so make room: it did not start at all."""
    fs, free, clock = FullTillUnlinked(), [PLENTY_BYTES], ManualClock(NOW)
    around = LogEnv(fs, clock, free_bytes=lambda _: free[0])
    settings = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0", **NEVER}
    config = broker_config({**settings, "lapse.http.port": "-1", "file.delete.delay.ms": "0"})
    node = Node(config, around)
    await node.start()
    await create(node, "t")
    await create(node, "u")
    chores = housekeeping(node)
    assert not (tmp_path / RESERVE).exists()
    clock.advance(60_000)
    chores.tick(clock.now_ms())
    assert (tmp_path / RESERVE).stat().st_size == RESERVE_BYTES
    await node.stop()
    fs.is_full, free[0] = True, 0
    node = Node(config, around)
    await node.start()
    assert not (tmp_path / RESERVE).exists()
    fs.is_full = True  # by what came since
    async with await connect(node) as connection:
        await Admin(connection).delete_topic("t")
    fs.is_full = False
    assert set(node.services.topics.image.topics) == {"u"}
    await node.stop()
