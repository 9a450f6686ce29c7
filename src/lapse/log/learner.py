"""What becomes known of a log's segments while it is open, without a change of their records.

A summary that a task made; an append clock that was ahead; a transaction index that lacks aborts.
"""

from __future__ import annotations

from contextlib import nullcontext

from lapse.base.errors import StorageError
from lapse.log.append_clock import seen_by
from lapse.log.core import LogCore
from lapse.log.loader import settle_txn_index
from lapse.log.look import SegmentFile, look
from lapse.log.segment import Segment
from lapse.log.summary import Summary, read_keys, summary_path, write_summary
from lapse.log.txn_index import TxnIndex


class Learner:
    """Keeps what is learnt of the segments of one open log.

    Args:
        heals_txn_indexes: aborts that an index has lost are put back into it.
    """

    def __init__(self, log: LogCore, *, heals_txn_indexes: bool) -> None:
        self._log = log
        self._heals_txn_indexes = heals_txn_indexes
        self._seen_set = -1  # `LogState.segments_set` when no append clock was ahead

    def adopt_summary(self, summary: Summary, keys: str, generation: int) -> str | None:
        """Adopt a task's summary of a sealed segment; returns the reason where that is refused.

        `keys` is the sketch of its keys, "" for none. The log's append clock is kept. Raises
        StorageError, and then the log is as it was.
        """
        log = self._log
        with log.files_lock:
            with log.append_lock:
                found = self._to_adopt(summary, generation)
            if isinstance(found, str):
                return found
            adopted = found.with_summary(summary)
            # The file in place may be the only copy of the append clock, unless that is a guess.
            keep_clock = not adopted.summary.append_estimated
            write_summary(log.env.fs, log.dir, adopted.summary, keys, sync=keep_clock)
            log.renew(found, adopted)
            if (
                adopted.summary.aborts > 0 and self._heals_txn_indexes
            ):  # now it is known whether their index is missing
                settle_txn_index(log.env.fs, adopted, log.state.segments)
            return None

    def _to_adopt(self, summary: Summary, generation: int) -> Segment | str:
        log = self._log
        if not log.takes_changes:
            return "the log is closed or offline"
        if generation != log.generation:
            return f"its files changed meanwhile (generation {log.generation})"
        summarised = (summary.base_offset, summary.size)
        there = (s for s in log.state.segments[:-1] if (s.base_offset, s.size) == summarised)
        return next(
            there, f"segment {summary.base_offset} of {summary.size} bytes is no longer there"
        )

    def see(self, now_ms: int) -> None:
        """The owner believes its clock, which is at `now_ms`: no sealed segment is from after that.

        Append clocks that are far ahead are taken back to it, for good (`append_clock.seen_by`).
        Raises StorageError, and then the remaining segments are as they were.
        """
        log = self._log
        if self._seen_set == log.state.segments_set or not log.takes_changes:
            return
        with log.files_lock:
            state = log.state
            seen_set = state.segments_set
            for segment in state.segments[:-1]:
                summary = seen_by(segment.summary, now_ms, log.env.clock_jump_max_ms)
                if summary is not segment.summary:
                    path = summary_path(log.dir, segment.base_offset)
                    keys = read_keys(path, segment.size) or ""
                    write_summary(log.env.fs, log.dir, summary, keys, sync=True)
                    log.renew(segment, segment.with_clock(summary))
                    seen_set += 1
            self._seen_set = seen_set

    def txn_index(self, segment: Segment) -> TxnIndex:
        """A segment's transaction index, once it is known to be right.

        While a segment's summary is an estimate its markers are unread, and opening the log
        could not tell whether the index lacks any. So they are read before the first reader may be
        handed aborted records. Raises StorageError where an index made anew cannot be written.
        """
        files, log = segment.files(), self._log
        if not segment.may_lack_aborts or not self._heals_txn_indexes:
            return files.txn_index
        with log.files_lock, log.append_lock if segment.active else nullcontext():
            looked_at = SegmentFile(
                segment.path(), segment.base_offset, segment.size, segment.end_offset
            )
            summary = look(looked_at, records=False).summary
            if summary.size == segment.size:  # else rounds and readers end where it is damaged
                try:
                    settle_txn_index(log.env.fs, segment, log.state.segments, summary=summary)
                except StorageError:  # the file is as it was, and so must be what is read from it
                    if not segment.active:
                        files.txn_index = TxnIndex(files.txn_index.path, segment.base_offset)
                    raise
            segment.txn_index_checked = True
        return files.txn_index
