"""The service's voice: its reports, its progress and its queue, in files and in the log.

A disk that does not take them stops no round.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lapse.base.clock import time_text
from lapse.base.errors import StorageError
from lapse.lifecycle.round.progress import NO_PROGRESS, Progress
from lapse.lifecycle.status import reports
from lapse.lifecycle.status.backoff import Held
from lapse.lifecycle.status.reports import (
    NO_ENGINE,
    EngineReport,
    Queue,
    RoundReport,
    ServiceProgress,
)
from lapse.log.env import LogEnv

logger = logging.getLogger(__name__)

_PROGRESS_SECONDS = 0.2
LOGS_LISTED_MAX = 100  # the queue has them all


@dataclass(frozen=True, slots=True)
class RunProgress:
    """What goes with a state, where it has such a thing; as in `ServiceProgress`.

    Attributes:
        begun_s: when the run began, by the monotonic clock.
    """

    started_ms: int = 0
    begun_s: float = 0.0
    logs: tuple[str, ...] = ()
    progress: Progress = NO_PROGRESS
    next_look_ms: int = 0
    clock_ahead_ms: int = 0


NOTHING_MORE = RunProgress()


class Board:
    """What a service writes for others, `data_dir` being the first log directory.

    Attributes:
        engine: what is said of it along with everything else.
        is_silent: nothing is written: another service is at work there, and writes these files.
    """

    def __init__(self, env: LogEnv, data_dir: Path, engine: EngineReport = NO_ENGINE) -> None:
        self._fs, self._clock = env.fs, env.clock
        self._data_dir, self.engine = data_dir, engine
        self.is_silent = False
        self._told: tuple[str, float] = ("", 0.0)
        self._queue: Queue | None = None

    def report(self, rounds: Sequence[RoundReport]) -> None:
        """Rounds as they went."""
        for report in rounds:
            if report.error is None:
                which = {"event": "round", "partition": report.log, "round_id": report.round_id}
                logger.info("%s", describe(report), extra=which)
        if self.is_silent:
            return
        try:
            reports.append_reports(self._fs, self._data_dir, rounds)
        except StorageError as e:
            logger.warning("rounds are not reported: %s", e)

    def tell(self, state: str, detail: str, more: RunProgress = NOTHING_MORE) -> None:
        """At most some times a second, but each change of state and the end of a run."""
        now_s, now_ms = self._clock.monotonic(), self._clock.now_ms()
        recent = self._told[0] == state and now_s - self._told[1] < _PROGRESS_SECONDS
        run = more.progress
        if self.is_silent or (recent and run.bytes_done < run.bytes_total):
            return
        self._told = (state, now_s)
        left_ms = run.left_ms(now_s - more.begun_s)
        progress = ServiceProgress(
            state, detail, os.getpid(), now_ms, more.started_ms, more.logs[:LOGS_LISTED_MAX],
            run.bytes_done, run.bytes_total, more.next_look_ms, more.clock_ahead_ms,
            0 if left_ms is None else now_ms + left_ms, run.under_way[:LOGS_LISTED_MAX],
            self.engine,
        )  # fmt: skip
        try:
            reports.write_progress(self._fs, self._data_dir, progress)
        except StorageError as e:
            logger.warning("progress is not written: %s", e)

    def queue(self, queue: Queue) -> None:
        """Who waits; written where that is news."""
        if self.is_silent or queue == self._queue:
            return
        try:
            reports.write_queue(self._fs, self._data_dir, queue)
        except StorageError as e:
            logger.warning("the queue is not written: %s", e)
        else:
            self._queue = queue


def describe(report: RoundReport) -> str:
    """A round in one line."""
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(report.removed.items()))
    jobs = f", Spark job {', '.join(map(str, report.job_ids))}" if report.job_ids else ""
    cost = report.io_per_dirty_byte
    return (
        f"round {report.round_id} of {report.log} ({', '.join(report.due)}{jobs}): "
        f"removed {why or 'nothing'}; read {report.bytes_read} bytes, wrote "
        f"{report.bytes_written} in {report.segments_written} segments"
        + (f", {cost:.1f} a dirty byte" if cost is not None else "")
    )


def at_rest(due: Iterable[str], held: Iterable[Held]) -> tuple[str, str]:
    """State and words where no round may begin: nothing is due, or what is was set back."""
    by_log = {one.log: one for one in held}
    waiting = [by_log[name] for name in due if name in by_log]
    if not waiting:
        return "idle", "nothing is due"
    first = min(waiting, key=lambda one: one.until_ms)
    words = f"due and set back: {some([one.log for one in waiting])}; {first.log} again "
    words += f"{time_text(first.until_ms)}: {first.reason}"
    return "failing" if any(one.count for one in waiting) else "idle", words


def some(names: Sequence[str]) -> str:
    """The first of them, and how many more."""
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")
