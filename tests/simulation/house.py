"""One log directory with its chores and its lifecycle service, on a clock that obeys.

Real parts: `PartitionLog`, the decisions of `broker.housekeeping`, `Service` with rounds in this
process. A crash ends it at some file operation (`CrashFs`), or between two; what is on disk then is
opened again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from lapse.base.config import TopicConfig
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.broker import housekeeping
from lapse.lifecycle.clock_guard import BROKER, ClockGuard
from lapse.lifecycle.owner_directory import DirectoryOwner
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import MapMemory
from lapse.lifecycle.service import Service, ServiceOptions
from lapse.log.checkpoints import CLEAN_SHUTDOWN
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog
from lapse.testing.clock import ManualClock
from lapse.testing.crash_fs import Crashed, CrashFs

PAUSE_MS = 1000
JUMP_MAX_MS = 3_600_000
STEPS_MAX = 40  # of the service in one tick: it must come to rest


class Unsynced(RealFs):
    """Does not wait for the disk: no power is cut here."""

    def fsync_file(self, path: Path) -> None:
        pass

    def fsync_dir(self, path: Path) -> None:
        pass

    def sync_all(self, paths: object) -> None:
        pass


class House:
    """The directory while it is open."""

    def __init__(
        self, path: Path, configs: Mapping[TopicPartition, TopicConfig], clock: ManualClock
    ) -> None:
        self.path, self.configs, self.clock = path, configs, clock
        self.fs: CrashFs
        self.openings = 0
        self.open()

    def open(self) -> None:
        self.openings += 1
        self.fs = CrashFs(Unsynced(), None)
        self.guard = ClockGuard(self.fs, self.clock, self.path, JUMP_MAX_MS, BROKER)
        self.owner = DirectoryOwner(
            self.path, self.configs, self.fs, self.clock, believed=self._believed
        )
        if self.guard.latest_ms is not None:  # as `Partitions` does, believed or not
            for partition in self.configs:
                self.log(partition).believe(self.guard.latest_ms)
        env = LogEnv(self.fs, self.clock)
        engine = InlineEngine(self.fs, self.clock)
        options = ServiceOptions(MapMemory(1 << 20), PAUSE_MS, clock_jump_max_ms=JUMP_MAX_MS)
        self.service = Service(self.owner, engine, env, self.path, options)

    def _believed(self) -> int | None:
        """The time to note by, as `lapse clean` asks for it."""
        clock = self.guard.look()
        return None if clock.held else clock.latest_ms

    def log(self, partition: TopicPartition) -> PartitionLog:
        return self.owner._directory.logs[partition]

    def touch(self) -> None:
        """Files that are being written have times of this clock: a crash leaves nothing else."""
        at_ns = self.clock.now_ms() * 1_000_000
        for partition in self.configs:
            log = self.log(partition)
            path = log.dir / f"{log.segments[-1].base_offset:020d}.log"
            if path.stat().st_mtime_ns > at_ns:
                os.utime(path, ns=(at_ns, at_ns))

    def crash(self) -> None:
        """As `kill -9` leaves it."""
        self.fs.crashed = True
        with contextlib.suppress(Crashed):
            self.owner._directory.close(clean=False)
        (self.path / CLEAN_SHUTDOWN).unlink(missing_ok=True)
        self.open()

    def restart(self) -> None:
        self.owner.close()
        self.open()

    def tick(self) -> None:
        """What a second of a broker and its service is: chores, then rounds until none is due."""
        now_ms, verdict = self.clock.now_ms(), self.guard.look()
        self.touch()
        for partition in self.configs:
            log = self.log(partition)
            log.believe(verdict.latest_ms)
            for _, chore, time_ms in housekeeping.chores_at(now_ms, verdict):
                chore(log, time_ms)
        for _ in range(STEPS_MAX):
            if self.service.step() > 0:
                break
        else:
            raise AssertionError("the service does not come to rest")
        for partition in self.configs:
            self.log(partition).sweep_deleted(now_ms)

    def tick_and_crash(self, die_at: int) -> bool:
        """The same, and it dies on the way, if there are as many file operations."""
        self.fs._die_at = self.fs.operations + die_at
        try:
            self.tick()
        except Crashed:
            self.crash()
            return True
        self.fs._die_at = None
        return False
