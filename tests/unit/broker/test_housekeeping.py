"""Housekeeping on a clock that moves when told: what is due is done, what fails stops nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.housekeeping import Housekeeping
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.log.checkpoints import RECOVERY_POINT, read_offsets
from lapse.records.builder import NewRecord, build_batch
from lapse.testing.clock import ManualClock
from tests.unit.broker.running import batch_of, connect, create, produce, running_node

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)
NEVER = {"lapse.housekeeping.interval.ms": str(10**9)}  # the test ticks


def housekeeping(node: Node) -> Housekeeping:
    s = node.services
    made = Housekeeping(s.partitions, s.clock, s.config, s.counters)
    made.tick(s.clock.now_ms())
    return made


async def test_an_idle_segment_is_rolled_and_synced(tmp_path: Path) -> None:
    """DESIGN L5: by the clock, with nobody writing."""
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
