"""One log directory with its chores and its lifecycle service, on a clock that obeys.

Real parts: `PartitionLog`, the decisions of `broker.logs.housekeeping`, `Service` with rounds in
this process. A crash ends it at some file operation (`CrashFs`), or between two; what is on disk
then is opened again.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from lapse.base.config import TopicConfig
from lapse.base.ids import TopicPartition
from lapse.broker.logs import housekeeping
from lapse.lifecycle.clock_guard import BROKER, ClockGuard
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import MapMemory
from lapse.lifecycle.service.loop import Service, ServiceOptions
from lapse.lifecycle.status.reports import read_reports
from lapse.log.checkpoints import CLEAN_SHUTDOWN
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog
from lapse.testing.clock import ManualClock
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.support.lifecycle.rounds import Unsynced

PAUSE_MS = 1000
JUMP_MAX_MS = 3_600_000
STEPS_MAX = 40  # of the service in one tick: it must come to rest
IDLE_ROUNDS_MAX = 2  # that change nothing, while nothing happens to the log


class House:
    """The directory while it is open."""

    def __init__(
        self, path: Path, configs: Mapping[TopicPartition, TopicConfig], clock: ManualClock
    ) -> None:
        self.path, self.configs, self.clock = path, dict(configs), clock
        self.fs: CrashFs
        self.openings = 0
        self.producer_id_expiration_ms = 86_400_000
        self.pause_ms = PAUSE_MS
        self._rounds_seen = 0
        self._idle_rounds: Counter[str] = Counter()
        self.open()

    def configure(self, partition: TopicPartition, config: TopicConfig) -> None:
        """As a broker does it while it runs; a restart knows it too."""
        self.configs[partition] = config
        self.log(partition).update_config(config)
        self.happened()

    def happened(self) -> None:
        """Something that may make rounds of the logs worth while."""
        self._idle_rounds.clear()

    def open(self) -> None:
        self.openings += 1
        self.fs = CrashFs(Unsynced(), None)
        self.guard = ClockGuard(self.fs, self.clock, self.path, JUMP_MAX_MS, BROKER)
        self._latest_ms: int | None = None
        self.owner = DirectoryOwner(
            self.path, self.configs, self.fs, self.clock,
            producer_id_expiration_ms=self.producer_id_expiration_ms, believed=self._believed,
        )  # fmt: skip
        self.happened()  # a new service remembers nothing
        if self._latest_ms is not None:  # as `Partitions` does, believed or not
            for partition in self.configs:
                self.log(partition).believe(self._latest_ms)
        env = LogEnv(self.fs, self.clock)
        engine = InlineEngine(self.fs, self.clock)
        options = ServiceOptions(MapMemory(1 << 20), self.pause_ms, clock_jump_max_ms=JUMP_MAX_MS)
        self.service = Service(self.owner, engine, env, self.path, options)

    def _believed(self) -> int | None:
        """The time to note by, as `lapse clean` asks for it."""
        clock = self.guard.look()
        self._latest_ms = clock.latest_ms
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
        self._require_rounds_to_be_worth_while()

    def _require_rounds_to_be_worth_while(self) -> None:
        """Nobody's reason for a round is one that the round leaves as it was."""
        reports = list(read_reports(self.path))
        for report in reports[self._rounds_seen :]:
            moved = report.first_dirty_after > report.first_dirty_before
            if report.segments_written or moved or report.kind == "trim":
                self._idle_rounds[report.log] = 0
            elif report.error is None:
                self._idle_rounds[report.log] += 1
            assert self._idle_rounds[report.log] <= IDLE_ROUNDS_MAX, report
        self._rounds_seen = len(reports)

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
