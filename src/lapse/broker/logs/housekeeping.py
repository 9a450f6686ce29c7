"""A broker's background work on its logs: rolls, retention, syncs, sweeps, checkpoints.

After a jump of the wall clock nothing goes by age, and no producer is forgotten, until the clock is
confirmed (ADR-11): `guard` judges it. Rolls go on, since they remove nothing, and so does what does
not depend on the clock: retention by size, and deletions that DeleteRecords requested by offset.

Runs in a thread of its own, every `lapse.housekeeping.interval.ms`; the decisions are
`lifecycle.decide`, the effects `PartitionLog`. Compaction is not among them: that is the lifecycle
service's, and without it all this goes on (ADR-9).

One log that fails a chore keeps neither the other chores nor the other logs from being done; it is
tried again next time, logged when it begins to fail and when it stops, and counted throughout.
Where its disk failed, its log directory goes offline, and nothing more is done there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from lapse.base.clock import Clock
from lapse.base.config import BrokerConfig
from lapse.base.errors import LapseError
from lapse.broker.logs.counters import Counters
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.partitions import Partitions
from lapse.lifecycle.decide.clock import ClockRecord, ClockVerdict
from lapse.lifecycle.decide.retention import segments_to_delete
from lapse.lifecycle.decide.roll import ActiveSegment, roll_due, trim_roll_due
from lapse.log.partition_log import PartitionLog
from lapse.log.reserve import set_aside
from lapse.log.roll import jitter_of

logger = logging.getLogger(__name__)

Chore = Callable[[PartitionLog, int], object]
Guard = Callable[[int], ClockVerdict]  # on the wall clock's time


def believing(now_ms: int) -> ClockVerdict:
    """The guard who never doubts."""
    return ClockVerdict(now_ms, 0, 0, ClockRecord(now_ms), latest_ms=now_ms)


class Housekeeping:
    """The chores and when each was last done."""

    def __init__(
        self,
        partitions: Partitions,
        clock: Clock,
        config: BrokerConfig,
        counters: Counters,
        thread: DiskThreads,
        guard: Guard = believing,
        keep_time: Callable[[], None] = lambda: None,
    ) -> None:
        """`keep_time` makes durable what `guard` said last (ADR-11)."""
        self._partitions, self._guard, self._keep_time = partitions, guard, keep_time
        self._clock, self._counters = clock, counters
        self._pause_s = config.housekeeping_interval_ms / 1000
        self._retention = _Every(config.log_retention_check_interval_ms)
        self._points = _Every(config.log_flush_offset_checkpoint_interval_ms)
        self._starts = _Every(config.log_flush_start_offset_checkpoint_interval_ms)
        self._failing: dict[tuple[str, str], str] = {}
        self._logs_of: dict[tuple[str, str], PartitionLog] = {}  # of those that are a log's
        self._thread, self._take_break = thread, thread.breaks(clock)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; the first chores are done after one interval."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Let the chore under way finish, and do no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        await self._thread.close()

    def troubles(self) -> list[str]:
        """What of it fails, for people."""
        failing = tuple(self._failing.items())
        return [f"{chore} of {what} fails: {why}" for (chore, what), why in failing]

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s)
            await self._thread.run(self.tick, self._clock.now_ms())

    def tick(self, now_ms: int) -> None:
        """Do everything that is due."""
        verdict = self._guard(now_ms)
        self._partitions.believe(verdict)
        removes = self._retention.is_due(now_ms)
        if removes:
            self._keep_time()  # before anything goes by it
        chores = chores_at(now_ms, verdict, removes=removes)
        for log in self._partitions.all():
            for name, chore, time_ms in chores:
                if self._partitions.is_online(log.partition):
                    self._look_after(name, chore, log, time_ms)
            self._take_break()  # many that were rolled at once are synced one by one
        self._try("unlink", "deleted topics", partial(self._partitions.sweep, now_ms))
        self._try("room", "log directories", self._partitions.look_for_room)
        if self._starts.is_due(now_ms):
            self._try("checkpoint", "log starts", self._partitions.checkpoint_starts)
        if self._points.is_due(now_ms):
            self._try("checkpoint", "log directories", self._partitions.checkpoint_points)
            for directory in self._partitions.directories:
                keep_room = partial(set_aside, self._partitions.env, directory.path)
                self._try("reserve", str(directory.path), keep_room)
        self._forget_gone()

    def _forget_gone(self) -> None:
        """What failed of a log that is here no more will never work again, nor be tried."""
        for key, log in tuple(self._logs_of.items()):
            if not self._partitions.hosts(log) or key not in self._failing:
                self._failing.pop(key, None)
                del self._logs_of[key]

    def _look_after(self, name: str, chore: Chore, log: PartitionLog, now: int) -> None:
        def do() -> None:
            try:
                chore(log, now)
            except (LapseError, OSError) as e:
                if not self._partitions.report(log.partition, e):
                    raise

        self._try(name, str(log.partition), do)
        if (name, str(log.partition)) in self._failing:
            self._logs_of[name, str(log.partition)] = log

    def _try(self, chore: str, what: str, do: Callable[[], object]) -> None:
        try:
            do()
        except Exception as e:
            self._counters.housekeeping_failures[chore] += 1
            if self._failing.get((chore, what)) != str(e):
                expected = isinstance(e, LapseError)
                logger.warning("%s of %s failed: %s", chore, what, e, exc_info=not expected)
            self._failing[chore, what] = str(e)
        else:
            if self._failing.pop((chore, what), None) is not None:
                logger.info("%s of %s works again", chore, what)


def chores_at(
    now_ms: int, clock: ClockVerdict, *, removes: bool = True
) -> list[tuple[str, Chore, int]]:
    """What to do for each log, and the time to do it by; `removes` is whether it is time to."""
    chores: list[tuple[str, Chore, int]] = [
        ("roll", roll_if_due, now_ms if clock.held else clock.now_ms),
        ("log start", drop_deleted, now_ms),
        ("sync", sync_sealed, now_ms),
        # Those of the active segment outlive the process, but for those of the last moment.
        ("append times", lambda log, _: log.keep_append_times(), now_ms),
        ("unlink", lambda log, ms: log.sweep_deleted(ms), now_ms),
    ]
    if not clock.held:
        chores.append(("append clock", lambda log, ms: log.see(ms), clock.latest_ms))
        chores.append(("aside", lambda log, ms: log.sweep_aside(ms), clock.now_ms))
    if removes:
        chores.append(("retention", partial(apply_retention, clock=clock), now_ms))
    if removes and not clock.held:
        chores.append(("expiry", PartitionLog.expire_producers, clock.now_ms))
    return chores


class _Every:
    """Whether an interval has passed since the last time it had; not due at first."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._last_ms: int | None = None

    def is_due(self, now_ms: int) -> bool:
        if self._last_ms is None:
            self._last_ms = now_ms
        # A clock that was set back must not stop a chore until it has caught up.
        due = now_ms - self._last_ms >= self._interval_ms or now_ms < self._last_ms
        if due:
            self._last_ms = now_ms
        return due


def roll_if_due(log: PartitionLog, now_ms: int) -> None:
    """L5, L16: close the active segment when its time has come, written to or not; L11 too."""
    segment = log.segments[-1]
    jitter = jitter_of(log.partition, segment.base_offset)
    active = ActiveSegment(log.active_append_first_ms, segment.size, jitter)
    moves = log.start_moves
    if roll_due(active, log.config, now_ms, log.clock_jump_max_ms) or (
        moves and trim_roll_due(segment.base_offset, moves, log.config, now_ms)
    ):
        log.roll(now_ms)


def drop_deleted(log: PartitionLog, _now_ms: int) -> None:
    """D-7: a segment that is wholly below the log start by now, perhaps since it was rolled.

    DeleteRecords drops its own; what a crash or a full disk kept it from is dropped here.
    """
    if log.log_start_offset > log.segments[0].base_offset:
        log.delete_below_log_start()


def sync_sealed(log: PartitionLog, _now_ms: int) -> None:
    """What was rolled is made durable; the active segment is left to the system."""
    if log.offline_reason is None and log.recovery_point < log.segments[-1].base_offset:
        log.flush_sealed()


def apply_retention(log: PartitionLog, _now_ms: int, clock: ClockVerdict) -> None:
    """T-23 … T-25: leading segments that are too old, too much, or below the log start."""
    facts = log.facts()
    trusted_ms = None if clock.held else clock.now_ms
    gone = segments_to_delete(facts, log.config, trusted_ms, clock.record.steps)
    size = log.delete_segments(gone, facts.log_end_offset, facts.generation) if gone else 0
    if size:  # not where its files are others by now, and are looked at again
        what = {"event": "retention", "segments": len(gone), "bytes": size}
        text = "%s: retention took %d segments, %d bytes"
        logger.info(text, log.partition, len(gone), size, extra=what)
