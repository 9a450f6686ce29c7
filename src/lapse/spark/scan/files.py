"""Segment files as the data source finds them: in a directory that others write to (ADR-10).

Nothing is locked, written or rebuilt. A listing counts once two in a row agree and no swap is under
way; an index counts as far as its entries ascend, since Kafka pads the active segment's with zeros
and a crash leaves anything. Where an index says nothing, a walk begins at the segment's start.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lapse.base.clock import Clock
from lapse.base.errors import LapseError, StorageError, unreadable
from lapse.base.times import FOREVER_MS
from lapse.kernels.layout import LENGTH, LOG_OVERHEAD
from lapse.log.append_times import read_append_times, resumed
from lapse.log.headers import read_at
from lapse.log.segment import INDEX, LOG, OFFSET_MAX, TIME_INDEX, offsets_in, segment_path
from lapse.log.summary import read_summary, summary_path
from lapse.log.swap import SWAP
from lapse.records.append_times import NOTHING, AppendTimes
from lapse.records.batch import scan_prefix

TRIES_MAX = 50
PAUSE_SECONDS = 0.01  # a swap takes a millisecond or two

_OFFSET_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])


class DataLost(LapseError):
    """Requested offsets are not in the log any more, or are not in it yet.

    Attributes:
        goes_on_at: the log start, if it was requested and lies beyond the missing offsets.
    """

    def __init__(self, message: str, goes_on_at: int | None = None) -> None:
        super().__init__(message)
        self.goes_on_at = goes_on_at


@dataclass(frozen=True, slots=True)
class OpenedSegment:
    """The segment that holds an offset, open for reading; it stays readable if it is replaced.

    Attributes:
        next_base: where the next segment begins; None for the last one.
        bases_before: base offsets of the segments before it, ascending.
    """

    path: Path
    base_offset: int
    next_base: int | None
    bases_before: Sequence[int]
    _fd: int

    def fileno(self) -> int:
        return self._fd

    def create_times_kept(self) -> bool:
        """Whether its summary, if it has one that is of this very file, says so (`log.summary`).

        The last segment's summary is written when it begins: no cleaner has touched it since.
        """
        summary = read_summary(summary_path(self.path.parent, self.base_offset))
        if summary is None or not _is_still(self.path, self._fd):
            return False
        current = self.next_base is None or summary.size == os.fstat(self._fd).st_size
        return current and summary.create_times_kept

    def append_times(self) -> AppendTimes:
        """What is known of this very file; of the last segment what was written out."""
        if not _is_still(self.path, self._fd):
            return NOTHING
        size = os.fstat(self._fd).st_size
        known = read_append_times(self.path.parent, self.base_offset, size)
        return known if self.next_base is not None else resumed(known, OFFSET_MAX, FOREVER_MS)

    def close(self) -> None:
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class Index:
    """Entries of an index file that make sense, with absolute offsets."""

    keys: NDArray[np.int64]
    values: NDArray[np.int64]

    def before(self, key: int) -> int | None:
        """The value of the last entry whose key is at most `key`."""
        n = int(np.searchsorted(self.keys, key, "right")) - 1
        return int(self.values[n]) if n >= 0 else None


def list_segments(partition_dir: Path, clock: Clock) -> list[int]:
    """Base offsets, ascending; raises DataLost where there is no such log (any more).

    Raises StorageError where a swap does not come to its end.
    """
    for _ in range(TRIES_MAX):
        names, again = _names_in(partition_dir), _names_in(partition_dir)
        bases = _bases_of(names)
        if bases is not None and (names == again or bases == _bases_of(again)):
            if not bases:
                raise DataLost(f"{partition_dir}: there is no segment in it")
            return bases
        clock.sleep(PAUSE_SECONDS)
    raise StorageError(
        f"{partition_dir}: its segments keep changing, or a crash left a swap unfinished"
    )


def open_segment(partition_dir: Path, offset: int, clock: Clock) -> OpenedSegment:
    """The segment that holds `offset`, or would; the first one if the offset is below it.

    What was opened is the segment of that listing: a swap may put other offsets behind a name.
    Raises DataLost and StorageError as `list_segments` does.
    """
    for _ in range(TRIES_MAX):
        bases = list_segments(partition_dir, clock)
        n = max(bisect_right(bases, offset) - 1, 0)
        path = segment_path(partition_dir, bases[n], LOG)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # replaced or deleted after it was listed
        except OSError as e:
            raise StorageError(f"opening {path}: {e.strerror or e}") from e
        if _is_still(path, fd) and list_segments(partition_dir, clock)[: len(bases)] == bases:
            next_base = bases[n + 1] if n + 1 < len(bases) else None
            return OpenedSegment(path, bases[n], next_base, bases[:n], fd)
        os.close(fd)
    raise StorageError(f"{partition_dir}: its segments keep changing")


def position_near(segment: OpenedSegment, offset: int) -> int:
    """A batch boundary from which a walk meets every batch that reaches `offset`.

    What the index says is believed where a sound batch begins there that is not above `offset`.
    """
    hint = offset_index(segment.path.parent, segment.base_offset).before(offset)
    if hint is None or not _begins_batch(segment.fileno(), hint, segment.base_offset, offset):
        return 0
    return hint


def _begins_batch(fd: int, position: int, offset_least: int, offset_most: int) -> bool:
    head = read_at(fd, position, LOG_OVERHEAD)
    size = LOG_OVERHEAD + int.from_bytes(head[LENGTH:LOG_OVERHEAD], "big", signed=True)
    if len(head) < LOG_OVERHEAD or not 0 < size <= os.fstat(fd).st_size - position:
        return False
    rows, covered, _ = scan_prefix(read_at(fd, position, size))
    return covered == size and offset_least <= int(rows["base_offset"][0]) <= offset_most


def _names_in(partition_dir: Path) -> list[str]:
    try:
        return os.listdir(partition_dir)
    except FileNotFoundError:
        raise DataLost(f"{partition_dir}: there is no such log") from None
    except OSError as e:
        raise StorageError(f"listing {partition_dir}: {e.strerror or e}") from e


def _bases_of(names: list[str]) -> list[int] | None:
    """None while segments are being swapped."""
    swapped = LOG + SWAP
    if any(name.endswith(swapped) for name in names):
        return None
    return offsets_in(names, LOG)


def _is_still(path: Path, fd: int) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(fd))


def offset_index(partition_dir: Path, base_offset: int) -> Index:
    """Last offset of a batch → where the batch begins."""
    entries = _entries(segment_path(partition_dir, base_offset, INDEX), _OFFSET_ENTRY)
    offsets, positions = entries["offset"].astype(np.int64), entries["position"].astype(np.int64)
    sound = _ascending(offsets, positions, (-1, 0))
    return Index(base_offset + offsets[:sound], positions[:sound])


def time_index(partition_dir: Path, base_offset: int) -> Index:
    """Greatest timestamp so far → offset of the record that has it."""
    entries = _entries(segment_path(partition_dir, base_offset, TIME_INDEX), _TIME_ENTRY)
    times, offsets = entries["timestamp"].astype(np.int64), entries["offset"].astype(np.int64)
    sound = _ascending(times, offsets, (-1, -1))
    return Index(times[:sound], base_offset + offsets[:sound])


def _entries(path: Path, kind: np.dtype[np.void]) -> NDArray[np.void]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return np.empty(0, kind)
    except OSError as e:
        raise unreadable(e, path) from e
    return np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind)


def _ascending(keys: NDArray[np.int64], values: NDArray[np.int64], above: tuple[int, int]) -> int:
    """How many entries come before the first that does not lie above the one before it."""
    # Offsets of a time index may stay where they are, positions may not.
    least = 1 if above[1] == 0 else 0
    if not len(keys) or keys[0] <= above[0] or values[0] < above[1] + least:
        return 0
    wrong = (keys[1:] <= keys[:-1]) | (values[1:] < values[:-1] + least)
    return int(wrong.argmax()) + 1 if wrong.any() else len(keys)
