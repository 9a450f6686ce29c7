"""Real logs for tests: batches, open logs, a stand-in for a cleaning round, and checks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lapse.base.clock import Clock
from lapse.base.config import TopicConfig, topic_config
from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.fs import Fs, RealFs
from lapse.base.ids import TopicPartition
from lapse.kernels import keep
from lapse.log.append_times import encode, joined, thinned
from lapse.log.env import LogEnv
from lapse.log.headers import read_at, walk
from lapse.log.manifest import NO_ERA
from lapse.log.partition_log import Appended, PartitionLog
from lapse.log.segment import INDEX, LOG, TIME_INDEX, Segment, empty_indexes
from lapse.log.summary import Summary, SummaryBuilder
from lapse.log.swap import NewSegment, Replacement
from lapse.records.batch import Header, headers_of, scan_prefix
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.validate import check_produced
from lapse.testing.clock import ManualClock

TP = TopicPartition("orders", 3)
NOW = 1_700_000_000_000


def config(**settings: object) -> TopicConfig:
    """Tiny segments and dense indexes unless told otherwise; `_` for `.` in names."""
    names = {
        "internal.segment.bytes": "2000",
        "index.interval.bytes": "200",
        "cleanup.policy": "compact",
    }
    names.update({name.replace("_", "."): str(value) for name, value in settings.items()})
    return topic_config(names)


def env(fs: Fs | None = None) -> LogEnv:
    return LogEnv(fs or RealFs(), ManualClock(NOW))


def open_log(
    path: Path,
    topic: TopicConfig | None = None,
    *,
    fs: Fs | None = None,
    clean_shutdown: bool = False,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    believed_ms: int | None = None,
    clock: Clock | None = None,
    heals_txn_indexes: bool = True,
    jump_max_ms: int = 3_600_000,
    era: str = NO_ERA,
    high_watermark: int | None = None,
) -> PartitionLog:
    path.mkdir(parents=True, exist_ok=True)
    given = env(fs) if clock is None else LogEnv(fs or RealFs(), clock)
    return PartitionLog.open(
        path,
        TP,
        topic or config(),
        replace(given, clock_jump_max_ms=jump_max_ms),
        clean_shutdown=clean_shutdown,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        believed_ms=believed_ms,
        heals_txn_indexes=heals_txn_indexes,
        era=era,
        high_watermark=high_watermark,
    )


def batch(
    *, records: int = 3, timestamp: int = NOW, size: int = 20, name: str = "k", **spec: object
) -> bytes:
    """A batch with keys; its timestamps ascend by 1 from `timestamp`."""
    value = b"v" * size
    new = [NewRecord(f"{name}{n}".encode(), value, timestamp + n) for n in range(records)]
    return build_batch(new, BatchSpec(**spec))  # type: ignore[arg-type]


def append(log: PartitionLog, data: bytes, *, now_ms: int = NOW, epoch: int = 0) -> Appended:
    """As the broker does it."""
    checked = check_produced(data, log.config, now_ms, str(log.partition))
    return log.append(checked, leader_epoch=epoch, now_ms=now_ms)


def data(log: PartitionLog, producer: int, sequence: int, *, epoch: int = 0, **more: object) -> int:
    """Append two transactional records; returns their first offset."""
    spec = {"records": 2, "transactional": True, **more}
    made = batch(producer_id=producer, producer_epoch=epoch, base_sequence=sequence, **spec)  # type: ignore[arg-type]
    return append(log, made).base_offset


def end(
    log: PartitionLog, producer: int, *, commit: bool, epoch: int = 0, coordinator: int = 0
) -> Appended:
    """End a producer's transaction, as a coordinator does."""
    return log.append_marker(producer, epoch, commit, coordinator, leader_epoch=0, now_ms=NOW)


def refusal(act: Callable[[], object]) -> ErrorCode:
    """The code it is refused with; the text names the log."""
    with pytest.raises(KafkaError, match=str(TP)) as error:
        act()
    return error.value.code


def rows_of(segment: Segment) -> list[Header]:
    """Headers in a segment, read from the file."""
    files = segment.files()
    blocks = list(walk(files.fileno(), 0, segment.size, "test", check_crc=True))
    return [row for block in blocks for row in headers_of(block)]


def batches_of(log: PartitionLog) -> dict[int, bytes]:
    """All batches of a log by base offset."""
    found = {}
    for segment in log.segments:
        files = segment.files()
        for row in rows_of(segment):
            found[row.base_offset] = read_at(files.fileno(), row.position, row.size)
    return found


def bytes_between(log: PartitionLog, offset: int, end_offset: int) -> bytes:
    """Its batches from one offset to another, or to where it ends, as readers get them."""
    parts = []
    while offset < min(end_offset, log.log_end_offset):
        data = log.read(offset, 1 << 20, end_offset).read()
        if not data:
            break
        parts.append(data)
        rows, _, _ = scan_prefix(data)
        offset = int(rows["last_offset"][-1]) + 1
    return b"".join(parts)


@dataclass(frozen=True)
class Rewritten:
    """A stand-in for a round's result: the group without the dropped batches."""

    replacement: Replacement
    kept: dict[int, bytes]


def rewrite(
    log: PartitionLog,
    segments: list[Segment],
    keep_batch: Callable[[Header], bool],
    attempt: Path,
    pieces: int = 1,
) -> Rewritten:
    """Write what a round would: new segments in an attempt directory, synced."""
    attempt.mkdir(parents=True)
    batches = []
    for segment in segments:
        files = segment.files()
        for row in rows_of(segment):
            if keep_batch(row):
                data = read_at(files.fileno(), row.position, row.size)
                batches.append((row, data))
    per_piece = max(1, -(-len(batches) // pieces))
    new, summaries, first = [], [], segments[0].base_offset
    for n in range(0, max(len(batches), 1), per_piece):
        piece = batches[n : n + per_piece]
        base = first if n == 0 else piece[0][0].base_offset
        new_segment, summary = _new_segment(attempt, base, piece, log.config.index_interval_bytes)
        clock = segments[-1].summary
        summaries.append(
            replace(
                summary,
                append_first_ms=segments[0].summary.append_first_ms,
                append_last_ms=clock.append_last_ms,
            )
        )
        new.append(replace(new_segment, mtime_ns=segments[-1].mtime_ms * 1_000_000))
    if pieces == 1:
        bases = np.array([row.base_offset for row, _ in batches], np.int64)
        times = _append_times(attempt, segments, bases, summaries[0].size)
        new[0] = replace(new[0], append_times=times)
    old = tuple(segment.base_offset for segment in segments)
    kept = {row.base_offset: data for row, data in batches}
    return Rewritten(Replacement(tuple(new), old, tuple(summaries)), kept)


def _append_times(
    attempt: Path, segments: list[Segment], bases: NDArray[np.int64], size: int
) -> Path | None:
    known = joined(
        segment.append_times(segment.base_offset, segment.end_offset + 1) for segment in segments
    )
    used = np.isin(
        np.arange(len(known.offsets)), np.searchsorted(known.offsets, bases, side="right") - 1
    )
    left = thinned(known, used, segments[-1].end_offset)
    if not len(left.offsets):
        return None
    path = attempt / "appended"
    path.write_bytes(encode(left, segments[0].base_offset, size))
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return path


def _new_segment(
    attempt: Path, base: int, piece: list[tuple[Header, bytes]], interval: int
) -> tuple[NewSegment, Summary]:
    data = b"".join(data for _, data in piece)
    builder = SummaryBuilder(base)
    for row, _ in piece:
        builder.add(row, 0)
    offsets, times = empty_indexes(attempt, base)
    paths: Mapping[str, Path] = {
        suffix: attempt / f"{base}-new{suffix[1:]}" for suffix in (LOG, INDEX, TIME_INDEX)
    }
    state = np.array([0, -1, base], np.int64)
    paths[LOG].write_bytes(data)
    with paths[LOG].open("rb") as file:
        for rows in walk(file.fileno(), 0, len(data), "test"):
            entries = np.empty((len(rows), 4), np.int64)
            n = keep.index_entries(rows, interval, entries, state)
            for offset, at, timestamp, timestamp_offset in entries[:n].tolist():
                offsets.append(offset, at)
                times.append_if_later(timestamp, timestamp_offset)
    if state[1] >= 0:
        times.append_if_later(int(state[1]), int(state[2]))
    for index, suffix in ((offsets, INDEX), (times, TIME_INDEX)):
        entries_bytes = b"".join(index.ENTRY.pack(*index.entry(n)) for n in range(index.count))
        paths[suffix].write_bytes(entries_bytes)
    for path in paths.values():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    return NewSegment(base, paths), builder.build()


def check_sound(log: PartitionLog) -> None:
    """Offsets ascend, and indexes and summaries agree with the log files."""
    end = -1
    for segment in log.segments:
        rows = rows_of(segment)
        assert segment.base_offset > end or not rows
        for row in rows:
            assert row.base_offset > end, (segment.base_offset, row)
            end = row.last_offset
        _check_indexes(segment, rows)
        summary = segment.summary
        assert summary.size == segment.size
        assert summary.estimated or summary.batches == len(rows)
        assert summary.max_timestamp == max((r.max_timestamp for r in rows), default=-1)
        assert not rows or summary.append_first_ms > 0
    assert log.log_end_offset == max(end + 1, log.segments[-1].base_offset)


def _check_indexes(segment: Segment, rows: list[Header]) -> None:
    files = segment.files()
    places = {row.last_offset: row.position for row in rows}
    for n in range(files.offset_index.count):
        relative, position = files.offset_index.entry(n)
        assert places[segment.base_offset + relative] == position
    for n in range(files.time_index.count):
        timestamp, relative = files.time_index.entry(n)
        first = next(row for row in rows if row.max_timestamp >= timestamp)
        assert (timestamp, segment.base_offset + relative) == (
            first.max_timestamp,
            first.last_offset,
        )
    if not segment.active and segment.max_timestamp >= 0:
        assert files.time_index.last[0] == segment.max_timestamp


def while_it_is_committed(log: PartitionLog, done: Rewritten, act: Callable[[], None]) -> None:
    """Do something that begins before a round's commit ends, and waits for its lock."""
    generation, has_begun = log.generation, threading.Event()

    def commit() -> None:
        with log._core.files_lock:
            has_begun.set()
            acting.start()
            acting.join(0.2)  # it has looked, and waits
            assert log.replace_segments(done.replacement, generation)

    acting = threading.Thread(target=act)
    committing = threading.Thread(target=commit)
    committing.start()
    has_begun.wait()
    committing.join()
    acting.join()
