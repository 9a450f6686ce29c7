"""What readers see of a log, in one glance: segments and bounds that belong together.

A state never changes. Whoever changes the log puts another one in its place (`core.LogCore.state`),
with an end offset below which all can be read. So lookups take no lock, and what one of them says
fits to what the next one says of the same state. Only the active segment grows meanwhile.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lapse.base.errors import CorruptData, ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.log.headers import Pread, read_at, walk
from lapse.log.lookup import (
    FoundRecord,
    batch_reaching,
    first_appended,
    first_at,
    first_not_older,
    greatest_timestamp,
)
from lapse.log.segment import Segment, SegmentFiles
from lapse.log.txn_index import AbortedTxn, TxnIndex
from lapse.records.append_times import NOTHING, AppendTimes
from lapse.records.layout import NO_TIMESTAMP
from lapse.records.tombstone import valued_rows


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Bytes of one segment; they stay readable while this is held, also if the log is deleted.

    Attributes:
        files: None when there is nothing to read.
        segment: the segment, and `offset` the base offset of its first batch; None: not known.
    """

    files: SegmentFiles | None
    position: int
    size: int
    segment: Segment | None = None
    offset: int = 0

    @property
    def create_times_kept(self) -> bool:
        """Whether the segment keeps create times (`log.summary`)."""
        return self.segment is not None and self.segment.create_times_kept

    def append_times(self) -> AppendTimes:
        """Append times of the batches in it, and maybe of a few more."""
        if self.segment is None or self.files is None:
            return NOTHING
        beyond = self.files.offset_index.offset_from(self.position + self.size)
        until = self.segment.end_offset if beyond is None else beyond
        return self.segment.append_times(self.offset, until)

    def fileno(self) -> int:
        """For sendfile; only where `size` is not 0."""
        assert self.files is not None
        return self.files.fileno()

    def read(self, pread: Pread = os.pread) -> bytes:
        """All of it. With `pread_cached` BlockingIOError where that takes a disk."""
        return read_at(self.fileno(), self.position, self.size, pread) if self.size else b""


_NOTHING = LogSlice(None, 0, 0)


@dataclass(frozen=True, slots=True)
class Unstable:
    """Transactions that hold back the last stable offset; replaced as one, never changed.

    Attributes:
        open_first: where the oldest open one began; None if none is open.
        completed: (first offset, offset of the marker) of those that ended, as far as their
            markers may not be below the high watermark.
    """

    open_first: int | None = None
    completed: tuple[tuple[int, int], ...] = ()

    def first(self, high_watermark: int) -> int | None:
        """First offset of a transaction that is open or has its marker not below the watermark."""
        if not self.completed:
            return self.open_first
        firsts = [first for first, marker in self.completed if marker >= high_watermark]
        if self.open_first is not None:
            firsts.append(self.open_first)
        return min(firsts, default=None)


_STABLE = Unstable()


# Of a LogState: what decides whether there is something to read at an offset, for whom. Without the
# segments: who keeps them keeps their files.
BOUNDS = slice(2, 6)


class LogState(NamedTuple):
    """The segments and bounds of a log at one moment, and what can be looked up in them.

    Attributes:
        segments: by base offset; the last one is active.
        known_high_watermark: as replication has set it; None: there is no other replica.
        segments_set: how often segments were replaced, or more became known of them.
    """

    partition: TopicPartition
    segments: tuple[Segment, ...]
    log_start_offset: int
    log_end_offset: int
    unstable: Unstable = _STABLE
    known_high_watermark: int | None = None
    segments_set: int = 0

    def grown_to(self, end_offset: int, unstable: Unstable) -> LogState:
        """After an append."""
        return LogState(  # `_replace` takes twice as long
            self.partition, self.segments, self.log_start_offset, end_offset, unstable,
            self.known_high_watermark, self.segments_set,
        )  # fmt: skip

    def with_segments(self, segments: tuple[Segment, ...]) -> LogState:
        """With other segments, or the same of which more is known."""
        return self._replace(segments=segments, segments_set=self.segments_set + 1)

    @property
    def is_empty(self) -> bool:
        """Whether no file has a batch."""
        return len(self.segments) == 1 and not self.segments[0].size

    @property
    def high_watermark(self) -> int:
        """The end, unless replication has set another; never below the log start (D-6)."""
        known = self.known_high_watermark
        if known is None:
            return self.log_end_offset
        return min(max(known, self.log_start_offset), self.log_end_offset)

    @property
    def last_stable_offset(self) -> int:
        """The end of what a read_committed consumer may see: all below is decided.

        The first offset of the oldest transaction that is open, or whose marker is not below the
        high watermark; the high watermark if there is none. Never below the log start.
        """
        high_watermark = self.high_watermark
        first = self.unstable.first(high_watermark)
        if first is None:
            return high_watermark
        return min(max(first, self.log_start_offset), high_watermark)

    def holds_valued_tombstones(self) -> bool:
        """Whether some batch is one with flagged tombstones (KIP-87); reads unread headers.

        A segment that cannot be read counts as one that holds some. Raises StorageError.
        """
        return any(map(_holds_valued, self.segments))

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def read(
        self,
        offset: int,
        bytes_max: int,
        upper_offset: int | None = None,
        *,
        one_at_least: bool = True,
        pread: Pread = os.pread,
    ) -> LogSlice:
        """Bytes from the first batch that reaches `offset`, of one segment (Y-1).

        At most `bytes_max`, which may cut the last batch, unless that would cut the first one and
        `one_at_least` is set. No batch that reaches `upper_offset` (a high watermark or last
        stable offset; None: the end) is in it. Raises KafkaError OFFSET_OUT_OF_RANGE.
        """
        end = self.log_end_offset
        if not self.log_start_offset <= offset <= end:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.partition}: offset {offset} is not in [{self.log_start_offset}, {end}]",
            )
        upper = end if upper_offset is None else min(upper_offset, end)
        if offset >= upper:
            return _NOTHING
        for segment in self.segments_from(offset):
            if segment.base_offset >= upper:
                break
            size, reaches = segment.size, segment.end_offset
            files = segment.files()
            found = batch_reaching(files, offset, size, pread)
            if found is None:
                continue
            stop = size
            if upper < reaches:
                beyond = batch_reaching(files, upper, size, pread)
                stop = beyond.position if beyond is not None else size
            size_max = max(bytes_max, found.size) if one_at_least else bytes_max
            length = min(size_max, stop - found.position)
            if length <= 0:
                return _NOTHING
            return LogSlice(files, found.position, length, segment, found.base_offset)
        return _NOTHING

    def is_recent(self, offset: int) -> bool:
        """Whether it is in the active segment: its files are open, its indexes are in memory."""
        active = self.segments[-1]
        return offset >= active.base_offset and not active.may_lack_aborts

    def aborted_transactions(
        self, start_offset: int, upper_offset: int, txn_index: Callable[[Segment], TxnIndex]
    ) -> list[AbortedTxn]:
        """Aborted transactions with something in [start_offset, upper_offset) (X-1, Y-3).

        By their markers' offsets. `upper_offset` is a last stable offset, or below one: an abort
        further up may be missing. `txn_index` returns the transaction index of a segment. Raises
        CorruptData where an index does not parse.
        """
        found = []
        for segment in self.segments_from(start_offset):
            if segment.may_have_aborts:
                reaching, all_found = txn_index(segment).overlapping(start_offset, upper_offset)
                found += reaching
                if all_found:
                    break
        return found

    def segments_from(self, offset: int) -> tuple[Segment, ...]:
        """The segments that may hold an offset or a later one."""
        first = bisect_right(self.segments, offset, key=lambda s: s.base_offset) - 1
        return self.segments[max(first, 0) :]

    def offset_for_time(self, timestamp: int) -> FoundRecord | None:
        """The first record with this timestamp or a later one; never one below the log start.

        Unlike Kafka (T-18) it goes on in later segments where one that looked right has none (L8).
        """
        start = self.log_start_offset
        late = (s for s in self.segments_from(start) if s.max_timestamp >= timestamp)
        found = (first_at(segment, timestamp, start) for segment in late)
        return next(filter(None, found), None)

    def first_not_older(self, cutoff_ms: int) -> FoundRecord | None:
        """The first record that may not be older than a time; one without a time by its append.

        All below it is older for certain. Its timestamp is -1 where it has none. Records
        appended after this state may be missed.
        """
        start = self.log_start_offset
        found = (first_not_older(s, cutoff_ms, start) for s in self.segments_from(start))
        return next(filter(None, found), None)

    def offsets_before(self, timestamp: int, count_max: int, now_ms: int) -> tuple[int, ...]:
        """Starts of segments without appends after `timestamp`, newest first, up to `count_max`.

        The end of the log comes first if `now_ms` is not after that time either. Kafka found
        offsets this way before the time index (KIP-79): only as fine as segments are. Kafka went by
        files' modification times, which a copy or a round changes; this goes by the append clock.
        """
        start, end = self.log_start_offset, self.high_watermark
        segments = self.segments_from(start)
        marks: list[tuple[int, int]] = []
        latest_ms = NO_TIMESTAMP
        for segment in segments:
            latest_ms = max(latest_ms, segment.append_last_ms)
            marks.append((max(segment.base_offset, start), latest_ms))
        if segments[-1].size:
            marks.append((self.log_end_offset, now_ms))
        found = [min(offset, end) for offset, ms in reversed(marks) if ms <= timestamp]
        return tuple(dict.fromkeys(found))[:count_max]

    def first_appended(self, cutoff_ms: int) -> FoundRecord | None:
        """The first offset that may not have been appended before a time; ignores record times.

        All below it was for certain; it may be up to a second early, or lie where no record is any
        more. Records appended after this state may be missed.
        """
        start = self.log_start_offset
        for segment in self.segments_from(start):
            offset = first_appended(segment, cutoff_ms)
            if offset is not None:
                return FoundRecord(max(offset, start), NO_TIMESTAMP)
        return None

    def append_time_from(self, offset: int) -> int | None:
        """When the first batch that reaches an offset was appended, up to a second early.

        None where that is not known, or nothing is there.
        """
        offset = max(offset, self.log_start_offset)
        for segment in self.segments_from(offset):
            found = batch_reaching(segment.files(), offset, segment.size)
            if found is not None:
                at = max(offset, found.base_offset)
                (known,) = segment.append_times(at, at + 1).shown(np.array([at]))
                return int(known) if known >= 0 else None
        return None

    def greatest_timestamp(self) -> FoundRecord | None:
        """The first record with the greatest timestamp (T-19, without its two wrong answers)."""
        start = self.log_start_offset
        best: FoundRecord | None = None
        for segment in self.segments_from(start):
            if segment.max_timestamp > (best.timestamp if best is not None else NO_TIMESTAMP):
                found = greatest_timestamp(segment, start)
                if found is not None and (best is None or found.timestamp > best.timestamp):
                    best = found
        return best


def _holds_valued(segment: Segment) -> bool:
    if not segment.may_hold_valued_tombstones or segment.summary.valued_tombstones:
        return segment.may_hold_valued_tombstones
    where = str(segment.path())
    try:
        files = segment.files()
        found = (valued_rows(rows).any() for rows in walk(files.fileno(), 0, segment.size, where))
        return any(found)
    except (CorruptData, OSError):
        return True
