"""Looking at partition directories without owning them (ADR-10).

Never writes, locks or rebuilds anything, and works as a read-only user on a directory that a live
Kafka is writing: what vanishes between listing and reading is listed again, a torn end of the
active segment is where the log ends for now, indexes padded with zeros count their real entries.

Facts from here are an estimate where an owner would know: the high watermark is taken to be the
log end, and `generation` is 0, which no owner's log ever has.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

import numpy as np

from lapse.base.clock import Clock, SystemClock
from lapse.base.errors import CorruptData, LapseError, StorageError, os_error, unreadable
from lapse.base.ids import TopicPartition
from lapse.log import checkpoints
from lapse.log.bad import read_bad
from lapse.log.facts import LogFacts, SegmentFacts
from lapse.log.folders import list_partitions
from lapse.log.look import SegmentFile, look, sealed_summary
from lapse.log.offset_index import OffsetIndex
from lapse.log.others import read_others
from lapse.log.replay import LogPart, aborted_in, producers_at_end
from lapse.log.segment import INDEX, LOG, TIME_INDEX, TXN_INDEX, offsets_in, segment_path
from lapse.log.start import read_start, taken_up
from lapse.log.summary import Summary, read_summary, summary_path
from lapse.log.swap import SWAP
from lapse.log.time_index import TimeIndex
from lapse.log.txn_index import AbortedTxn, TxnIndex, contradiction, may_lack

_LISTINGS_MAX = 50
_ANY_OFFSET = (1 << 63) - 1
_PAUSE_SECONDS = 0.01  # a swap takes a millisecond or two

_T = TypeVar("_T")


class DirectoryView:
    """A log directory, looked at: its partitions and what its checkpoints say."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        """Raises StorageError where there is no such directory, or it cannot be listed."""
        self.path = path
        self._clock = clock or SystemClock()
        self._partitions = list_partitions(path)
        self._checkpoints: tuple[Mapping[TopicPartition, int], ...] = ()
        self._bad_checkpoint: LapseError | None = None
        try:
            self._checkpoints = tuple(
                checkpoints.read_offsets(path / name)
                for name in (checkpoints.LOG_START, checkpoints.CLEANER)
            )
        except (CorruptData, StorageError) as e:
            self._bad_checkpoint = e

    def partitions(self) -> list[TopicPartition]:
        return self._partitions

    def facts(self, partition: TopicPartition) -> LogFacts:
        """Facts of one partition, as of now.

        Raises StorageError where a file cannot be read, be it a checkpoint of all logs, and
        CorruptData on a bad one.
        """
        if self._bad_checkpoint is not None:
            raise self._bad_checkpoint
        log_starts, cleaner = self._checkpoints
        return read_facts(
            self.path / str(partition),
            partition,
            log_start_offset=log_starts.get(partition, 0),
            cleaner_checkpoint=cleaner.get(partition),
            clock=self._clock,
        )


def read_facts(
    partition_dir: Path,
    partition: TopicPartition,
    *,
    log_start_offset: int = 0,
    cleaner_checkpoint: int | None = None,
    clock: Clock | None = None,
) -> LogFacts:
    """Facts of the log in a directory; summaries it lacks are worked out in memory.

    Raises StorageError where the files keep changing, were left in the middle of a swap, or may not
    be read, those of records included: a round of the log has to be able to rely on the facts.
    """
    clock = clock or SystemClock()
    bare = _settled(
        partition_dir,
        lambda bases: _read_once(
            partition_dir, partition, bases, log_start_offset, cleaner_checkpoint
        ),
        clock,
    )
    return _with_start(bare, partition_dir, clock.now_ms())


def _with_start(facts: LogFacts, partition_dir: Path, now_ms: int) -> LogFacts:
    """With what an owner keeps beside the log: its start (L11) and what rounds cannot read (L10).

    Read last: an owner moves the log start first and drops segments afterwards.
    """
    kept, bad = read_start(partition_dir), read_bad(partition_dir)
    others = read_others(partition_dir).replicas
    bases = [segment.base_offset for segment in facts.segments]
    is_empty = len(bases) == 1 and not facts.segments[0].size
    end = facts.log_end_offset  # a start past it was moved since, or is one of D-16
    start = min(max(facts.log_start_offset, kept.offset), end)
    if bad is not None and bad.segment_base not in bases[:-1]:
        bad = None
    high_watermark = facts.high_watermark
    if others:  # what is not committed may go again, and what it supersedes must be there then
        known = checkpoints.read_offsets(partition_dir.parent / checkpoints.HIGH_WATERMARK)
        high_watermark = min(known.get(facts.partition, 0), end)
    stable = min(facts.last_stable_offset, high_watermark)
    return replace(
        facts,
        log_start_offset=start,
        high_watermark=high_watermark,
        last_stable_offset=max(stable, start),  # D-6
        replicas=others,
        start_moves=taken_up(kept, start, bases, now_ms, is_empty=is_empty).unserved(bases[0]),
        bad=bad,
    )


def aborted_transactions(
    partition_dir: Path, start_offset: int, upper_offset: int, clock: Clock | None = None
) -> list[AbortedTxn]:
    """As `LogState.aborted_transactions`, of a log that is only looked at.

    The active segment's are made from its batches, since its owner may not have written them out,
    and so are those of an index that cannot be right.
    Raises StorageError as `read_facts` does, and CorruptData.
    """
    return _settled(
        partition_dir,
        lambda bases: _aborted_once(partition_dir, bases, start_offset, upper_offset),
        clock,
    )


def _settled(partition_dir: Path, read: Callable[[list[int]], _T], clock: Clock | None) -> _T:
    """What `read` finds, given the base offsets, once the files hold still for it."""
    problem: Exception | None = None
    for _ in range(_LISTINGS_MAX):
        try:
            bases = _list(partition_dir)
            if not bases:
                raise StorageError("no segment")
            found = read(bases)
            if _list(partition_dir)[: len(bases)] == bases:
                return found
            raise _InSwap("its segments changed while they were read")
        except (FileNotFoundError, _InSwap, StorageError) as e:
            if isinstance(os_error(e), PermissionError):
                raise  # the next listing finds the same
            problem = e
            (clock or SystemClock()).sleep(_PAUSE_SECONDS)
        except OSError as e:
            raise unreadable(e) from e
    raise StorageError(f"{partition_dir}: {problem}; gave up after {_LISTINGS_MAX} listings")


class _InSwap(Exception):
    """Segments are being replaced at this moment."""


def _read_once(
    partition_dir: Path, partition: TopicPartition, bases: list[int], log_start: int,
    cleaner_checkpoint: int | None,
) -> LogFacts:  # fmt: skip
    segments = [
        _segment(partition_dir, base_offset, next_base)
        for base_offset, next_base in zip_longest(bases, bases[1:])
    ]
    summaries = [s.summary for s in segments if s.summary is not None]
    parts = [LogPart(s.base_offset, s.end_offset, s.size) for s in summaries]
    end_offset = parts[-1].end_offset
    producers = producers_at_end(partition_dir, parts)
    unstable = producers.first_unstable_offset
    return LogFacts(
        partition=partition,
        dir=str(partition_dir),
        generation=0,
        log_start_offset=max(log_start, bases[0]),
        log_end_offset=end_offset,
        high_watermark=end_offset,
        last_stable_offset=end_offset if unstable is None else unstable,
        cleaner_checkpoint=cleaner_checkpoint,
        segments=tuple(segments),
        producers=producers.last_batches(),
    )


def _aborted_once(
    partition_dir: Path, bases: list[int], start_offset: int, upper_offset: int
) -> list[AbortedTxn]:
    found: list[AbortedTxn] = []
    for n in range(max(bisect_right(bases, start_offset) - 1, 0), len(bases)):
        index = _txn_index(partition_dir, bases, n)
        reaching, all_found = index.overlapping(start_offset, upper_offset)
        found += reaching
        if all_found:
            break
    return found


def _txn_index(partition_dir: Path, bases: Sequence[int], n: int) -> TxnIndex:
    """A sealed segment's own; where that cannot be right, one made from batches, and not kept."""
    path = segment_path(partition_dir, bases[n], TXN_INDEX)
    index = TxnIndex(path, bases[n])
    if n + 1 < len(bases) and _is_sound(index, partition_dir, bases[n], bases[n + 1]):
        return index
    parts = []
    for base_offset, next_base in zip(bases, [*bases[1:], _ANY_OFFSET], strict=True):
        size = segment_path(partition_dir, base_offset, LOG).stat().st_size
        parts.append(LogPart(base_offset, next_base, size))
    return TxnIndex(path, bases[n], aborted_in(partition_dir, parts, bases[n]))


def _is_sound(index: TxnIndex, partition_dir: Path, base_offset: int, next_base: int) -> bool:
    """Check the index as opening a log does; without a summary only by the index's content."""
    size = segment_path(partition_dir, base_offset, LOG).stat().st_size
    summary = _kept_summary(partition_dir, base_offset, size)
    try:
        if index.check(next_base) is not None:
            return False
        entries = index.entries()
    except CorruptData:
        return False
    return summary is None or not (contradiction(entries, summary) or may_lack(entries, summary))


def _list(partition_dir: Path) -> list[int]:
    names = os.listdir(partition_dir)
    if any(name.endswith(LOG + SWAP) for name in names):
        raise _InSwap("a swap of segments is under way, or was interrupted by a crash")
    return offsets_in(names, LOG)


def _segment(partition_dir: Path, base_offset: int, next_base: int | None) -> SegmentFacts:
    with segment_path(partition_dir, base_offset, LOG).open("rb") as file:
        stat = os.fstat(file.fileno())
    summary = _kept_summary(partition_dir, base_offset, stat.st_size)
    if summary is None:
        summary = _worked_out(partition_dir, base_offset, next_base, stat.st_size)
    return SegmentFacts(
        base_offset=base_offset,
        size=summary.size,
        mtime_ms=stat.st_mtime_ns // 1_000_000,
        index_bytes=_index_bytes(partition_dir, base_offset, OffsetIndex, INDEX),
        time_index_bytes=_index_bytes(partition_dir, base_offset, TimeIndex, TIME_INDEX),
        largest_timestamp=summary.max_timestamp,
        summary=summary,
        active=next_base is None,
    )


def _kept_summary(partition_dir: Path, base_offset: int, size: int) -> Summary | None:
    """The summary on disk, if decisions may rest on it."""
    summary = read_summary(summary_path(partition_dir, base_offset))
    return summary if summary and summary.size == size and summary.is_complete else None


def _worked_out(partition_dir: Path, base_offset: int, next_base: int | None, size: int) -> Summary:
    """A summary that a task would make for an owner, made here and kept nowhere."""
    path = segment_path(partition_dir, base_offset, LOG)
    segment = SegmentFile(path, base_offset, size, next_base)
    looked = look(segment, records=False)
    return looked.summary if next_base is None else sealed_summary(segment, looked)


def without_summary(facts: LogFacts) -> tuple[int, ...]:
    """Base offsets of sealed segments that a task would have to look through before a round."""
    return tuple(
        s.base_offset
        for s in facts.segments[:-1]
        if _kept_summary(Path(facts.dir), s.base_offset, s.size) is None
    )


def _index_bytes(
    partition_dir: Path, base_offset: int, kind: type[OffsetIndex] | type[TimeIndex], suffix: str
) -> int:
    """Bytes of real entries: Kafka pads the active segment's indexes with zeros."""
    try:
        data = segment_path(partition_dir, base_offset, suffix).read_bytes()
    except FileNotFoundError:
        return 0  # the owner would make it again
    width = kind.ENTRY.size
    entries = np.frombuffer(data[: len(data) // width * width], np.uint8).reshape(-1, width)
    used = np.flatnonzero(entries.any(axis=1))
    return (int(used[-1]) + 1) * width if len(used) else 0
