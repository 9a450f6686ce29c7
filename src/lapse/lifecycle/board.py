"""The service's voice: its reports, its progress and its queue, in files and in the log.

A disk that does not take them stops no round.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from lapse.base.errors import StorageError
from lapse.lifecycle import reports
from lapse.lifecycle.reports import Queue, RoundReport, ServiceProgress
from lapse.log.env import LogEnv

logger = logging.getLogger(__name__)

_PROGRESS_SECONDS = 0.2
LOGS_TOLD_MAX = 100  # the queue has them all


class Board:
    """What a service writes for others, `data_dir` being the first log directory."""

    def __init__(self, env: LogEnv, data_dir: Path) -> None:
        self._fs, self._clock = env.fs, env.clock
        self._data_dir = data_dir
        self._told: tuple[str, float] = ("", 0.0)
        self._queue: Queue | None = None

    def report(self, told: Sequence[RoundReport]) -> None:
        """Rounds as they went."""
        for report in told:
            if report.error is None:
                logger.info("%s", describe(report))
        try:
            reports.append_reports(self._fs, self._data_dir, told)
        except StorageError as e:
            logger.warning("rounds are not reported: %s", e)

    def tell(
        self, state: str, detail: str, *, started_ms: int = 0, logs: tuple[str, ...] = (),
        bytes_done: int = 0, bytes_total: int = 0, next_look_ms: int = 0, clock_ahead_ms: int = 0,
    ) -> None:  # fmt: skip
        """At most some times a second, but each change of state and the end of a run."""
        now = self._clock.monotonic()
        recent = self._told[0] == state and now - self._told[1] < _PROGRESS_SECONDS
        if recent and bytes_done < bytes_total:
            return
        self._told = (state, now)
        progress = ServiceProgress(
            state, detail, os.getpid(), self._clock.now_ms(), started_ms, logs[:LOGS_TOLD_MAX],
            bytes_done, bytes_total, next_look_ms, clock_ahead_ms,
        )  # fmt: skip
        try:
            reports.write_progress(self._fs, self._data_dir, progress)
        except StorageError as e:
            logger.warning("progress is not told: %s", e)

    def queue(self, queue: Queue) -> None:
        """Who waits; written where that is news."""
        if queue == self._queue:
            return
        try:
            reports.write_queue(self._fs, self._data_dir, queue)
        except StorageError as e:
            logger.warning("the queue is not told: %s", e)
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


def some(names: Sequence[str]) -> str:
    """The first of them, and how many more."""
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")
