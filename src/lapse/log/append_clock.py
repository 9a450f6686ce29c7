"""What the append clock says now: the owner's time, which never goes back within a log (L16).

The wall clock may be set back while all that removes records goes on by the believed time (ADR-11,
`lifecycle.clock_guard`). An append noted by such a clock would be old at once, and gone before its
min lag and its retention (L9). So the append clock goes on from the last append, which the
summaries keep over rolls and restarts, and from the believed time that the owner passes.

Neither may it be far ahead, further than lapse.clock.jump.max.ms. A wall clock that is so far ahead
of the believed time is not believed: appends, and commits of rounds, are noted with the time that
must have been reached. If the wall clock was right after all, an operator's confirmation makes a
`Step` of the difference, and times noted before count as that much later. A last append so far
ahead was made without a believed time, and is not followed, else no segment would be rolled by time
until that moment comes. Once the owner believes its clock again, the append clock of such a segment
is taken back to that moment (`seen_by`): an append is made before it is seen, so no record of it
counts as older than it is, and its lags count from there and not from a year ahead.

Called by `appender`, under its lock; `believe` by the owner.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from lapse.base.clock import Clock
from lapse.base.times import after_ms
from lapse.log.summary import (
    AppendClock,
    Summary,
    read_summary,
    summary_path,
    with_clock_of,
)


class LogClock:
    """The append clock of one open log.

    Args:
        believed_ms: the time its owner notes by, None where it is not known.
        jump_max_ms: lapse.clock.jump.max.ms.
    """

    def __init__(
        self,
        clock: Clock,
        summaries: Iterable[Summary],
        believed_ms: int | None,
        jump_max_ms: int,
    ) -> None:
        self._clock = clock
        self._jump_max_ms = jump_max_ms
        # A guess from mtime is no append's time: it may be from any clock.
        known = (s.append_last_ms for s in summaries if not s.append_estimated)
        self._last_ms = max(known, default=-1)
        self._believed: tuple[int, float] | None = None
        # A time of the wall clock between the last one and this is noted as it is: so it was found
        # at a tick, and both only grow until another time is believed.
        self._as_it_is_until_ms = -1
        if believed_ms is not None:
            self.believe(believed_ms)

    def believe(self, believed_ms: int) -> None:
        """Set the time to note by (`ClockGuard.latest_ms`); the owner calls this at each look.

        Until the next call, and while it passes the same time, the time counts on.
        """
        if self._believed is None or self._believed[0] != believed_ms:
            self._believed = believed_ms, self._clock.boot_seconds()
            self._as_it_is_until_ms = -1

    def reached_ms(self, now_ms: int) -> int:
        """The wall clock, or what must have been reached since the owner believed it."""
        if self._believed is None or now_ms >= self._believed[0]:
            return now_ms
        return self._counted_ms(*self._believed)

    def noted_ms(self, now_ms: int) -> int:
        """The same, but for a wall clock so far ahead that the owner will not believe it."""
        if self._believed is None:
            return now_ms
        counted_ms = self._counted_ms(*self._believed)
        is_too_far = now_ms > after_ms(counted_ms, self._jump_max_ms)
        return counted_ms if is_too_far else self.reached_ms(now_ms)

    def _counted_ms(self, believed_ms: int, since_s: float) -> int:
        return believed_ms + int((self._clock.boot_seconds() - since_s) * 1000)

    def tick(self, now_ms: int) -> int:
        """The time to note for an append at `now_ms`."""
        if self._last_ms <= now_ms <= self._as_it_is_until_ms:
            self._last_ms = now_ms
            return now_ms
        if self._believed is not None:
            counted_ms = self._counted_ms(*self._believed)
            self._as_it_is_until_ms = after_ms(counted_ms, self._jump_max_ms)
        time_ms = self.noted_ms(now_ms)
        if self._believed is None or self._last_ms - time_ms <= self._jump_max_ms:
            time_ms = max(time_ms, self._last_ms)
        self._last_ms = time_ms
        return time_ms

    def followed(self, latest_ms: int, now_ms: int) -> int:
        """The time to note for what a leader has appended by `latest_ms`, and is fetched now."""
        bound_ms = self.noted_ms(now_ms)
        time_ms = min(latest_ms, bound_ms)
        if self._believed is None or self._last_ms - bound_ms <= self._jump_max_ms:
            time_ms = max(time_ms, self._last_ms)
        self._last_ms = time_ms
        return time_ms


def seen_by(summary: Summary, seen_ms: int, jump_max_ms: int) -> Summary:
    """The summary of a segment that was there at `seen_ms`, by a clock that is believed.

    Its append clock is taken back to that where it is further ahead than a clock may jump.
    """
    if summary.append_last_ms <= after_ms(seen_ms, jump_max_ms) or summary.estimated:
        return summary  # an estimate gives way to a summary, which is checked then
    first_ms = min(summary.append_first_ms, seen_ms)
    return replace(summary, append_first_ms=first_ms, append_last_ms=seen_ms)


def with_create_times(summary: Summary, kept: Summary | None) -> Summary:
    """The summary of the last segment of a log, which has grown since `kept` was written.

    No cleaner touches the last segment: its create times are as they were.
    """
    if kept is None:
        return summary
    return replace(summary, create_times_kept=kept.create_times_kept)


def with_last_append(
    partition_dir: Path, summary: Summary, opened_ms: int, *, is_last: bool
) -> Summary:
    """The summary of a segment that recovery has read, with its last append as late as it can be.

    What was appended after its summary was written came before this opening, at the latest. The
    mtime may say less: the wall clock may have been set back.
    """
    kept = read_summary(summary_path(partition_dir, summary.base_offset))
    if kept is not None and (is_last or kept.size == summary.size):
        summary = with_create_times(summary, kept)
    if kept is None or kept.append_estimated or not summary.size:
        return summary
    if kept.size == summary.size:
        return replace(summary, append_last_ms=kept.append_last_ms)
    return replace(summary, append_last_ms=max(summary.append_last_ms, opened_ms))


def with_estimated_clock(
    summary: Summary, mtime_ms: int, known: AppendClock | Summary | None
) -> Summary:
    """The summary of a segment whose kept one was lost, with a clock from `estimated_clock`."""
    if not summary.size:
        return summary
    clock = estimated_clock(summary.first_batch_max_timestamp, mtime_ms, known)
    return with_clock_of(summary, clock)


def estimated_clock(
    first_timestamp: int, mtime_ms: int, known: AppendClock | Summary | None
) -> AppendClock:
    """The append clock of a segment that is not empty: kept where `known`, else guessed.

    The last append cannot be after the file's mtime. The first is taken for the first batch's
    time if that is plausible; a record time ahead of the mtime says nothing.
    """
    if known is not None and known.append_first_ms >= 0:
        last_ms = max(mtime_ms, known.append_last_ms, known.append_first_ms)
        return AppendClock(known.append_first_ms, last_ms, known.append_estimated)
    first_ms = first_timestamp if 0 <= first_timestamp <= mtime_ms else mtime_ms
    return AppendClock(first_ms, mtime_ms, append_estimated=True)
