"""One segment: a log file, its indexes and its summary; sealed, or the active one.

What Kafka calls LogSegment.

A sealed segment never changes; a round replaces it by another object. Readers take no lock: bytes
are in the file before `size` and `end_offset` include them. A segment's files are opened on first
use and stay usable for every reader that holds them, also after the segment was replaced or
deleted: `pin` opens them before their names go away.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lapse.base.config import TopicConfig
from lapse.base.errors import CorruptData, StorageError
from lapse.base.fs import AppendFile, Buffer, storage_errors
from lapse.kernels.layout import CONTROL
from lapse.log.append_times import ActiveAppendTimes, append_times_path, read_append_times
from lapse.log.env import LogEnv
from lapse.log.markers import EndMarker, kind_of
from lapse.log.offset_index import OffsetIndex, read_entries
from lapse.log.roll import full_bytes, jitter_of
from lapse.log.summary import Summary, SummaryBuilder, with_clock_of, write_summary
from lapse.log.time_index import TimeIndex
from lapse.log.txn_index import TxnIndex
from lapse.records.append_times import NOTHING, AppendTimes
from lapse.records.batch import Header

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
SEGMENT_SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)  # of a segment; a snapshot is of an offset
RELATIVE_OFFSET_MAX = (1 << 31) - 1
OFFSET_MAX = (1 << 63) - 1
_DIGITS = 20

_opening = threading.Lock()


def file_name(base_offset: int, suffix: str) -> str:
    """Kafka's: the offset in twenty digits, and what the file is."""
    return f"{base_offset:0{_DIGITS}d}{suffix}"


def segment_path(partition_dir: Path, base_offset: int, suffix: str) -> Path:
    """Where a segment's file of one kind is."""
    return partition_dir / file_name(base_offset, suffix)


def base_offset_of(name: str) -> int | None:
    """The offset a file name begins with; None for files that are not an offset's."""
    digits = name.partition(".")[0]
    if len(digits) != _DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    offset = int(digits)
    return offset if offset <= OFFSET_MAX else None


def offsets_in(names: Iterable[str], suffix: str) -> list[int]:
    """Offsets whose file of this kind is among the names, ascending."""
    cut = -len(suffix)
    digits = [name[:cut] for name in names if name.endswith(suffix)]
    found = [int(one) for one in digits if len(one) == _DIGITS and one.isascii() and one.isdigit()]
    return sorted([offset for offset in found if offset <= OFFSET_MAX])


def mtime_ms_of(path: Path) -> int:
    """Modification time of a file."""
    with storage_errors(path, "looking at"):
        return path.stat().st_mtime_ns // 1_000_000


class SegmentFiles:
    """A segment's log file open for reading, and its indexes; closed when no reader holds it."""

    __slots__ = (
        "__weakref__", "_fd", "append_times", "offset_index", "time_index", "txn_index",
    )  # fmt: skip

    def __init__(
        self, path: Path, offset_index: OffsetIndex, time_index: TimeIndex, txn_index: TxnIndex
    ) -> None:
        self._fd = -1
        with storage_errors(path, "opening"):
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.offset_index = offset_index
        self.time_index = time_index
        self.txn_index = txn_index
        self.append_times: AppendTimes | None = None  # until they are first read

    def fileno(self) -> int:
        return self._fd

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class Segment:
    """A segment that may be read.

    Attributes:
        size: bytes of the log file that count.
        end_offset: one past its last offset; its base offset while it is empty.
        max_timestamp: greatest of its batches; -1 if none has a timestamp.
        summary: as of its sealing (for the active segment see `ActiveSegment.summary`).
        txn_index_checked: its transaction index was held against its markers since.
    """

    active = False

    def __init__(
        self,
        partition_dir: Path,
        env: LogEnv,
        summary: Summary,
        *,
        mtime_ms: int,
        index_bytes: int,
        time_index_bytes: int,
    ) -> None:
        self.dir = partition_dir
        self.env = env
        self.base_offset = summary.base_offset
        self.size = summary.size
        self.end_offset = summary.end_offset
        self.max_timestamp = summary.max_timestamp
        self.mtime_ms = mtime_ms
        self._summary = summary
        self._index_bytes = index_bytes
        self._time_index_bytes = time_index_bytes
        self._files: weakref.ref[SegmentFiles] | None = None
        self._pinned: SegmentFiles | None = None
        self.txn_index_checked = False

    def path(self, suffix: str = LOG) -> Path:
        """Where one of its files lies while it is part of the log."""
        return segment_path(self.dir, self.base_offset, suffix)

    @property
    def summary(self) -> Summary:
        return self._summary

    @property
    def create_times_kept(self) -> bool:
        """The flag of its summary, without making one."""
        return self._summary.create_times_kept

    @property
    def index_bytes(self) -> int:
        return self._index_bytes

    @property
    def time_index_bytes(self) -> int:
        return self._time_index_bytes

    @property
    def append_last_ms(self) -> int:
        """When its last batch was appended; -1 while it is empty."""
        return self._summary.append_last_ms

    @property
    def may_have_aborts(self) -> bool:
        """Whether a look into its transaction index may find something."""
        return self._summary.aborts != 0

    @property
    def may_lack_aborts(self) -> bool:
        """Whether its transaction index may be wrong: it was not compared with its markers."""
        return not (self.txn_index_checked or self._summary.is_complete)

    @property
    def may_hold_valued_tombstones(self) -> bool:
        """Whether a batch's header says so (KIP-87), or its headers were not read yet."""
        return self._summary.valued_tombstones or self._summary.estimated

    def files(self) -> SegmentFiles:
        """Its files, open; keep the result for as long as they are used."""
        held = self._held()
        if held is None:
            with _opening:
                held = self._held()
                if held is None:
                    held = self._open()
                    self._files = weakref.ref(held)
            self.env.files.keep(held)
            if self._pinned is not None:
                self.env.files.let_go(held)
        return held

    def append_times(self, offset_from: int, offset_until: int) -> AppendTimes:
        """When the records of a range of offsets were appended, as far as that is known."""
        files = self.files()
        if files.append_times is None:
            files.append_times = read_append_times(self.dir, self.base_offset, self.size)
        return files.append_times.between(offset_from, offset_until)

    def with_summary(self, summary: Summary) -> Segment:
        """The same sealed segment, about which more is known now; readers keep the files they have.

        Its append clock stays: reading the segment cannot give a better one.
        """
        return self.with_clock(with_clock_of(summary, self._summary))

    def with_clock(self, summary: Summary) -> Segment:
        """The same, its append clock as in `summary`: the owner knows a better one now."""
        assert not self.active
        assert summary.size == self.size
        updated = Segment(
            self.dir, self.env, summary, mtime_ms=self.mtime_ms,
            index_bytes=self._index_bytes, time_index_bytes=self._time_index_bytes,
        )  # fmt: skip
        updated._files = self._files
        return updated

    def pin(self) -> None:
        """Open its files for good, since their names are about to go.

        They stay open while this segment is referenced, and no longer: the system frees the
        blocks of a removed file when its last descriptor is closed. A file that is missing, or an
        index that was cut short, must not keep the segment from going: its reader gets the error.
        """
        try:
            pinned = self.files()
        except (CorruptData, StorageError):
            return
        if self.may_have_aborts:
            with contextlib.suppress(CorruptData):  # its reader gets the error
                pinned.txn_index.load()
        if pinned.append_times is None:  # what comes to lie there is not of this file
            pinned.append_times = read_append_times(self.dir, self.base_offset, self.size)
        self._pinned = pinned
        self.env.files.let_go(pinned)

    def _held(self) -> SegmentFiles | None:
        if self._pinned is not None:
            return self._pinned
        return self._files() if self._files is not None else None

    def _open(self) -> SegmentFiles:
        offset_index, time_index = load_indexes(self.dir, self.base_offset)
        txn_index = TxnIndex(self.path(TXN_INDEX), self.base_offset)
        return SegmentFiles(self.path(), offset_index, time_index, txn_index)


def load_indexes(partition_dir: Path, base_offset: int) -> tuple[OffsetIndex, TimeIndex]:
    """Both indexes from their files; CorruptData where one is missing or has half an entry."""
    index, time_index = (
        segment_path(partition_dir, base_offset, suffix) for suffix in (INDEX, TIME_INDEX)
    )
    offsets = read_entries(index, OffsetIndex.ENTRY.size)
    times = read_entries(time_index, TimeIndex.ENTRY.size)
    return (
        OffsetIndex(index, base_offset, offsets, from_file=True),
        TimeIndex(time_index, base_offset, times, from_file=True),
    )


@dataclass(frozen=True, slots=True)
class OfLeader:
    """What a follower learns from its leader of batches that it appends.

    Attributes:
        entry_ms: when the leader appended them, as an entry of `append_times`.
        create_times_kept: as in `Summary`, of the leader's segment.
    """

    entry_ms: int
    create_times_kept: bool = True


class ActiveSegment(Segment):
    """The segment that is being written: the last of its log.

    Only the log's lock holder calls what changes it.
    """

    active = True

    def __init__(
        self,
        partition_dir: Path,
        env: LogEnv,
        summary: Summary,
        offset_index: OffsetIndex,
        time_index: TimeIndex,
        max_timestamp_offset: int,
        txn_index: TxnIndex,
        append_times: AppendTimes = NOTHING,
    ) -> None:
        """On from what is there; the indexes must be ones that can grow."""
        super().__init__(
            partition_dir, env, summary, mtime_ms=summary.append_last_ms,
            index_bytes=0, time_index_bytes=0,
        )  # fmt: skip
        self.offset_index = offset_index
        self.time_index = time_index
        self.txn_index = txn_index
        self._max_timestamp_offset = max_timestamp_offset
        where = append_times_path(partition_dir, summary.base_offset)
        self._append_times = ActiveAppendTimes(where, summary.base_offset, append_times)
        last = offset_index.entry(offset_index.count - 1)[1] if offset_index.count else 0
        self._bytes_since_entry = summary.size - last
        self._builder = SummaryBuilder(summary.base_offset, summary)
        self._began_complete = summary.is_complete
        self._file: AppendFile | None = None
        self._jitter = jitter_of(partition_dir.name, summary.base_offset)
        self._sized_by: TopicConfig | None = None  # what `_full_bytes` is by
        self._full_bytes = 0

    @staticmethod
    def create(partition_dir: Path, env: LogEnv, base_offset: int) -> ActiveSegment:
        """A new, empty one; its three files are there when this returns (F-10: no fourth yet).

        What a failed attempt may have left under these names is emptied. Raises StorageError, and
        leaves no log file then, if it can: it would be taken for the log's end.
        """
        offset_index, time_index = empty_indexes(partition_dir, base_offset)
        summary = Summary(base_offset, 0, base_offset, create_times_kept=True)
        txn_index = TxnIndex(segment_path(partition_dir, base_offset, TXN_INDEX), base_offset, ())
        segment = ActiveSegment(
            partition_dir, env, summary, offset_index, time_index, base_offset, txn_index
        )
        offset_index.write_out(env.fs)
        time_index.write_out(env.fs)
        txn_index.write_out(env.fs)
        try:
            env.fs.write_file(segment.path(), b"")
            segment.mtime_ms = mtime_ms_of(segment.path())
        except (OSError, StorageError):
            with contextlib.suppress(StorageError):
                env.fs.unlink(segment.path())
            raise
        return segment

    @property
    def summary(self) -> Summary:
        return self._builder.build()

    @property
    def create_times_kept(self) -> bool:
        return self._builder.create_times_kept

    @property
    def append_first_ms(self) -> int:
        """When its first batch was appended; -1 while it is empty."""
        return self._builder.append_first_ms

    @property
    def append_last_ms(self) -> int:
        return self._builder.append_last_ms

    @property
    def first_batch_max_timestamp(self) -> int:
        """KIP-32's time of its first record; -1 where that has none."""
        return self._builder.first_batch_max_timestamp

    @property
    def index_bytes(self) -> int:
        return self.offset_index.size_bytes

    @property
    def time_index_bytes(self) -> int:
        return self.time_index.size_bytes

    def _open(self) -> SegmentFiles:
        return SegmentFiles(self.path(), self.offset_index, self.time_index, self.txn_index)

    @property
    def may_have_aborts(self) -> bool:
        return self.may_lack_aborts or bool(self.txn_index.entries())

    @property
    def may_lack_aborts(self) -> bool:
        return not (self.txn_index_checked or self._began_complete)

    @property
    def may_hold_valued_tombstones(self) -> bool:
        return self._builder.valued_tombstones or self._builder.estimated

    def append(
        self,
        batches: Sequence[Header],
        data: Buffer,
        *,
        now_ms: int,
        interval_bytes: int,
        tombstones: Sequence[int],
        markers: Mapping[int, EndMarker],
        of_leader: OfLeader | None = None,
    ) -> None:
        """Write `data`, which is `batches` one after the other, with one write.

        `markers` has what control batches say, by their offset; `of_leader` what a leader says of
        them all.
        Raises StorageError with the segment as it was; the file may have half a write at its end
        until `undo`.
        """
        if self._file is None:
            self._file = self.env.fs.open_append(self.path())
        builder = self._builder
        if of_leader is not None:
            builder.create_times_kept &= of_leader.create_times_kept
        if builder.append_first_ms < 0:
            # First, so that a crash right after the append does not lose the append clock.
            first = replace(builder.build(), append_first_ms=now_ms, append_last_ms=now_ms)
            write_summary(self.env.fs, self.dir, first)
        self._file.write(data)
        if of_leader is None:
            self._append_times.note(now_ms, self.end_offset)
        else:
            self._append_times.take_over(of_leader.entry_ms, self.end_offset)
        for batch, dead in zip(batches, tombstones, strict=True):
            self._index(batch, interval_bytes)
            marker = kind_of(markers.get(batch.base_offset)) if batch.attributes & CONTROL else None
            builder.add(batch, dead, marker)
        self._grown(now_ms)

    def append_one(
        self, batch: Header, data: Buffer, tombstones: int, now_ms: int, interval_bytes: int
    ) -> None:
        """`append` of one batch of a producer, to a segment that `is_begun`."""
        assert self._file is not None
        self._file.write(data)
        self._append_times.note(now_ms, self.end_offset)
        self._index(batch, interval_bytes)
        self._builder.add(batch, tombstones)
        self._grown(now_ms)

    def _index(self, batch: Header, interval_bytes: int) -> None:
        """Account for the next batch; an entry for it if the last one is far enough away."""
        if batch.max_timestamp > self.max_timestamp:
            self.max_timestamp = batch.max_timestamp
            self._max_timestamp_offset = batch.last_offset
        if self._bytes_since_entry > interval_bytes:
            self.offset_index.append(batch.last_offset, self._builder.size)
            self.time_index.append_if_later(self.max_timestamp, self._max_timestamp_offset)
            self._bytes_since_entry = batch.size
        else:
            self._bytes_since_entry += batch.size

    def _grown(self, now_ms: int) -> None:
        builder = self._builder
        builder.appended(now_ms)
        self.mtime_ms = now_ms
        # In this order, since readers take no lock: who sees the new size sees the new end, and so
        # that the last batch may be beyond what it is to read.
        self.end_offset = builder.end_offset
        self.size = builder.size

    @property
    def is_begun(self) -> bool:
        """Whether its file is open and its first summary written: an append is one write then."""
        return self._file is not None and self._builder.append_first_ms >= 0

    def append_times(self, offset_from: int, offset_until: int) -> AppendTimes:
        return self._append_times.between(offset_from, offset_until)

    def keep_append_times(self) -> None:
        """Write the known append times to their file."""
        self._append_times.write_out(self.env.fs)

    def undo(self) -> None:
        """Cut off what a failed append left; StorageError if that cannot be had.

        It cannot where some of its batches were counted already.
        """
        self.env.fs.truncate(self.path(), self.size)
        if self._builder.size != self.size:
            raise StorageError(f"{self.path()}: an append failed halfway; it must be opened again")
        if self._file is not None:
            self._file.size = self.size

    def must_roll(self, last_offset: int, size: int, topic: TopicConfig) -> bool:
        """T-20 without its clock: size (L19), full indexes, an offset too far from the base."""
        if last_offset - self.base_offset > RELATIVE_OFFSET_MAX:
            return True
        if self.size == 0:
            return False
        if topic is not self._sized_by:  # by identity, since every append comes by
            self._full_bytes = full_bytes(topic.segment_bytes, self._jitter)
            self._sized_by = topic
        index_bytes = topic.segment_index_bytes
        return (
            self.size > self._full_bytes - size
            or self.offset_index.count >= index_bytes // OffsetIndex.ENTRY.size
            or self.time_index.count >= index_bytes // TimeIndex.ENTRY.size - 1
        )

    def write_side_files(self, *, is_finished: bool = False) -> None:
        """Indexes and summary as they are now; the log file is always up to date."""
        self.offset_index.write_out(self.env.fs)
        self.time_index.write_out(self.env.fs)
        self.txn_index.write_out(self.env.fs)
        self._append_times.write_out(self.env.fs, self.end_offset if is_finished else None)
        if self.size:
            write_summary(self.env.fs, self.dir, self.summary)

    def finish(self) -> None:
        """Side files as Kafka leaves them at a roll and at closing: with a last time entry (T-14).

        May be called again after a StorageError, and appended to afterwards.
        """
        if self.max_timestamp >= 0:
            self.time_index.append_if_later(self.max_timestamp, self._max_timestamp_offset)
        self.write_side_files(is_finished=True)

    def seal(self) -> Segment:
        """The same segment, finished, never to change again."""
        self.finish()
        sealed = Segment(
            self.dir, self.env, self.summary, mtime_ms=mtime_ms_of(self.path()),
            index_bytes=self.index_bytes, time_index_bytes=self.time_index_bytes,
        )  # fmt: skip
        sealed._files = self._files  # readers go on with the files they have
        return sealed

    def close(self) -> None:
        """No more appends."""
        if self._file is not None:
            self._file.close()
            self._file = None


def empty_indexes(partition_dir: Path, base_offset: int) -> tuple[OffsetIndex, TimeIndex]:
    """Indexes of a segment to be written, in memory."""
    index, time_index = (
        segment_path(partition_dir, base_offset, suffix) for suffix in (INDEX, TIME_INDEX)
    )
    return (
        OffsetIndex(index, base_offset, bytearray(), from_file=False),
        TimeIndex(time_index, base_offset, bytearray(), from_file=False),
    )
