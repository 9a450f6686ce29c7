"""Rewriting a log's segments of format v0 and v1 as v2, one after the other, each by a swap (W-2).

Called by `lapse convert --to-v2`, with the log's directory locked. However it ends, each segment
is as it was or rewritten, and the next run goes on with those that are left. No record is removed:
keys, values, offsets and times are the same before and after.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData, StorageError
from lapse.base.fs import AppendFile, Fs
from lapse.log.export import copy_file
from lapse.log.headers import read_at, walk
from lapse.log.partition_log import PartitionLog
from lapse.log.scanned import scan_segment
from lapse.log.segment import LOG, SEGMENT_SUFFIXES, TXN_INDEX, Segment, segment_path
from lapse.log.summary import FOLDER
from lapse.log.swap import NewSegment, Replacement
from lapse.records.batch import runs
from lapse.records.upgrade import upgraded

ATTEMPT = "upgrade"  # as a round's folder of attempts, it is swept when a log is opened
_BLOCK_BYTES = 4 << 20
_SEGMENT_BYTES_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Upgraded:
    """The result of rewriting a log.

    Attributes:
        segments: rewritten.
        bytes_read, bytes_written: of these.
    """

    segments: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


def old_segments(log: PartitionLog) -> list[Segment]:
    """Segments that hold v0 or v1 messages; those without a count are looked through."""
    return [s for s in log.segments if _is_old(s)]


def _is_old(segment: Segment) -> bool:
    if not segment.summary.estimated:
        return segment.summary.old_format > 0
    files = segment.files()
    blocks = walk(files.fileno(), 0, segment.size, str(segment.path()))
    return any(bool((rows["magic"] < 2).any()) for rows in blocks)


def upgrade(
    log: PartitionLog,
    fs: Fs,
    now_ms: int,
    on_bytes: Callable[[int], None] = lambda _: None,
    *,
    segment_bytes_max: int = _SEGMENT_BYTES_MAX,
) -> Upgraded:
    """Rewrite what is of an old format; a log that has nothing is not touched.

    `on_bytes` hears of bytes read. Raises CorruptData where a segment does not read, and
    StorageError, also where one would have more than `segment_bytes_max` bytes: it stays as it is.
    What was rewritten before stays rewritten.
    """
    if old_segments(log) and _is_old(log.segments[-1]):
        log.roll(now_ms)
    done = Upgraded()
    for segment in old_segments(log):
        size = _upgrade_segment(log, segment, fs, segment_bytes_max)
        done = Upgraded(
            done.segments + 1, done.bytes_read + segment.size, done.bytes_written + size
        )
        on_bytes(segment.size)
    return done


def _upgrade_segment(log: PartitionLog, segment: Segment, fs: Fs, bytes_max: int) -> int:
    """Swap one segment for its rewritten self; returns the bytes of it."""
    base_offset = segment.base_offset
    attempt = log.dir / FOLDER / ATTEMPT / str(base_offset)
    fs.remove_tree(attempt)
    fs.make_dir(attempt)
    path = segment_path(attempt, base_offset, LOG)
    if not _write(segment, path, fs, bytes_max):
        fs.remove_tree(attempt)
        raise StorageError(
            f"{log.partition}: segment {base_offset} would have more than {bytes_max} bytes as "
            "v2, more than a segment may; it stays as it is"
        )
    if segment.path(TXN_INDEX).exists():
        copy_file(segment.path(TXN_INDEX), segment_path(attempt, base_offset, TXN_INDEX), fs)
    size = swap_in(log, segment, attempt, fs)
    fs.remove_tree(attempt)
    return size


def swap_in(
    log: PartitionLog, segment: Segment, attempt: Path, fs: Fs, next_base: int | None = None
) -> int:
    """Swap a segment for its rewritten self in a folder; returns the bytes of it.

    The log file is there, and the transaction index if it is to have one. Its offsets end before
    `next_base`. Raises CorruptData where what was written does not read, and StorageError.
    """
    base_offset, interval_bytes = segment.base_offset, log.config.index_interval_bytes
    scanned = scan_segment(attempt, base_offset, next_base, interval_bytes, check_crc=True)
    if scanned.bad is not None:
        path = segment_path(attempt, base_offset, LOG)
        raise CorruptData(str(path), scanned.summary.size, f"what was written: {scanned.bad}")
    for index in (scanned.offset_index, scanned.time_index):
        index.write_out(fs)
    paths = {suffix: segment_path(attempt, base_offset, suffix) for suffix in SEGMENT_SUFFIXES}
    files = {suffix: path for suffix, path in paths.items() if path.exists()}
    fs.sync_all(list(files.values()))
    known = segment.summary
    summary = replace(
        scanned.summary,
        append_first_ms=known.append_first_ms,
        append_last_ms=known.append_last_ms,
        append_estimated=known.append_estimated,
    )
    new = NewSegment(base_offset, files, mtime_ns=segment.mtime_ms * 1_000_000)
    log.replace_segments(Replacement((new,), (base_offset,), (summary,)), log.generation)
    return summary.size


def _write(segment: Segment, path: Path, fs: Fs, bytes_max: int) -> bool:
    """False, with nothing beyond `bytes_max` written, where it is more than that.

    Checked while writing: an index cannot hold positions beyond 2 GiB.
    """
    where, fd = str(segment.path()), segment.files().fileno()
    with closing(fs.open_append(path)) as out:
        for rows in walk(fd, 0, segment.size, where, check_crc=True, block_bytes=_BLOCK_BYTES):
            for run in runs(rows, rows["magic"] < 2):
                if run["magic"][0] < 2:
                    fits = _write_upgraded(out, fd, run, where, bytes_max)
                else:
                    fits = _copy_run(out, fd, run, bytes_max)
                if not fits:
                    return False
    return True


def _copy_run(out: AppendFile, fd: int, rows: NDArray[np.void], bytes_max: int) -> bool:
    """Batches of v2, side by side."""
    start, length = _stretch(rows)
    fits = out.size + length <= bytes_max
    if fits:
        out.copy_from(fd, start, length)
    return fits


def _write_upgraded(
    out: AppendFile, fd: int, rows: NDArray[np.void], where: str, bytes_max: int
) -> bool:
    """Messages of an old format, side by side."""
    start, length = _stretch(rows)
    here = rows.copy()
    here["position"] -= start
    for batch in upgraded(read_at(fd, start, length), here, where):
        if out.size + len(batch) > bytes_max:
            return False
        out.write(batch)
    return True


def _stretch(rows: NDArray[np.void]) -> tuple[int, int]:
    """Where they begin in the file, and how many bytes they have."""
    start = int(rows["position"][0])
    return start, int(rows["position"][-1] + rows["size"][-1]) - start
