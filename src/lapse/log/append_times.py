"""`.lapse/<base>.appended`: when the records of a segment were appended, about (ADR-5).

Entries of 12 bytes, big-endian: time (int64), offset - base + 1 (uint32; what a crash has left half
in zeros has none, and is no entry). What lies from an entry's offset on, up to the next entry, was
appended within `RESOLUTION_MS` from its time on. An entry is added at most once in that time, or
where the append clock has gone back. A time below 0 stands for less: "not after -time"; `UNKNOWN`
for nothing at all. Nothing is known below the first entry.

The entries of a segment end with one that is `UNKNOWN`, at the end of what its writer has appended:
batches that another owner (a Kafka on the same directory) adds behind it are not covered. The file
of the active segment has none. It is written now and then (`PartitionLog.keep_append_times`), and
synced with the segment; what a crash may have lost gets an entry that says how late it may have
been appended (`resumed`).

A round leaves out entries that nothing is left of. Before its file stands an entry of the smallest
number there is and the size of the log file that it was made for: beside any other one (a power cut
may have taken back the renames of one folder and not of another) it is worth nothing.

A follower has its leader's entries (`followed_entries`): records are as old on each replica, and
stay so when they are fetched anew (KIP-32).

Where a record's age is checked, only the latest possible time counts; clients are shown the
earliest, which is up to a second early.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lapse.base.fs import Fs
from lapse.base.times import FOREVER_MS
from lapse.log.summary import FOLDER
from lapse.records.append_times import NOTHING, RESOLUTION_MS, UNKNOWN, AppendTimes

SUFFIX = ".appended"
_MADE_FOR = -FOREVER_MS - 1
_NOT_KNOWN = -1
_PLACE_MAX = (1 << 32) - 1  # the end of a segment may be at 2^31; beyond lies only damage
_ENTRY = struct.Struct(">qI")
ENTRY_BYTES = _ENTRY.size
_TABLE = np.dtype([("time", ">i8"), ("place", ">u4")])


def append_times_path(partition_dir: Path, base_offset: int) -> Path:
    """Where the file of a segment lies."""
    return partition_dir / FOLDER / f"{base_offset:020d}{SUFFIX}"


class ActiveAppendTimes:
    """Append times of the active segment: written under the log's lock, read by any thread."""

    __slots__ = ("_base_offset", "_data", "_has_end", "_last_ms", "_path", "_written")

    def __init__(self, path: Path, base_offset: int, known: AppendTimes = NOTHING) -> None:
        self._path, self._base_offset = path, base_offset
        self._data = bytearray(encode(known, base_offset))
        self._last_ms = int(known.times[-1]) if len(known.times) else UNKNOWN
        self._written = _NOT_KNOWN  # bytes of the file, without its end
        self._has_end = False

    def note(self, now_ms: int, first_offset: int) -> None:
        """Note an append at `now_ms` from `first_offset` on; nearly always the entry is there."""
        if not 0 <= now_ms - self._last_ms < RESOLUTION_MS:
            self._data += _ENTRY.pack(max(now_ms, 1), self._place(first_offset))
            self._last_ms = now_ms

    def take_over(self, entry_ms: int, first_offset: int) -> None:
        """Note what a leader has noted of what follows `first_offset`, as it is in its file."""
        if entry_ms != self._last_ms:
            self._data += _ENTRY.pack(entry_ms, self._place(first_offset))
            self._last_ms = entry_ms

    def _place(self, offset: int) -> int:
        return min(offset - self._base_offset + 1, _PLACE_MAX)

    def between(self, offset_from: int, offset_until: int) -> AppendTimes:
        """`AppendTimes.between` of the entries so far."""
        first = max(self._before(offset_from + 1) - 1, 0)
        after = self._before(offset_until)
        # What is in memory needs none of `parse`'s doubts, and this is asked for in each Fetch.
        table = np.frombuffer(bytes(self._data[first * _ENTRY.size : after * _ENTRY.size]), _TABLE)
        offsets = table["place"].astype(np.int64) + (self._base_offset - 1)
        return AppendTimes(offsets, table["time"].astype(np.int64))

    def _before(self, offset: int) -> int:
        """How many entries begin below an offset."""
        place, data = offset - self._base_offset + 1, self._data
        count = range(len(data) // _ENTRY.size)
        unpack = _ENTRY.unpack_from
        return bisect_left(count, place, key=lambda n: unpack(data, n * _ENTRY.size)[1])

    def write_out(self, fs: Fs, end_offset: int | None = None) -> None:
        """Make the file hold the entries; with `end_offset` as those of a sealed segment."""
        size, written = len(self._data), self._written
        if not size or (written == size and end_offset is None):
            return
        end = b"" if end_offset is None else _ENTRY.pack(UNKNOWN, self._place(end_offset))
        self._written = _NOT_KNOWN  # until it succeeds
        if written > 0 and not self._has_end:
            with closing(fs.open_append(self._path)) as file:
                file.write(bytes(self._data[written:size]) + end)
        else:
            if not self._path.parent.exists():
                fs.make_dir(self._path.parent)
            fs.write_file(self._path, bytes(self._data[:size]) + end)
        self._written, self._has_end = size, end_offset is not None


def read_append_times(partition_dir: Path, base_offset: int, log_size: int) -> AppendTimes:
    """The file's entries, as far as they are valid; none where it is of another log file."""
    try:
        data = append_times_path(partition_dir, base_offset).read_bytes()
    except OSError:
        return NOTHING
    size = made_for(data)
    if size is None:
        return parse(data, base_offset)
    return parse(data[ENTRY_BYTES:], base_offset) if size == log_size else NOTHING


def made_for(data: bytes) -> int | None:
    """The size of the one log file that these bytes are of; None: any size."""
    if len(data) < ENTRY_BYTES:
        return None
    time, size = _ENTRY.unpack_from(data)
    return int(size) if time == _MADE_FOR else None


def parse(data: bytes, base_offset: int) -> AppendTimes:
    """The entries before the first that makes no sense: a crash may leave zeros, or anything."""
    table = np.frombuffer(data[: len(data) // _ENTRY.size * _ENTRY.size], _TABLE)
    offsets, times = table["place"].astype(np.int64) - 1, table["time"].astype(np.int64)
    wrong = (np.diff(offsets, prepend=-1) <= 0) | (times == 0) | (times < UNKNOWN)
    sound = int(wrong.argmax()) if wrong.any() else len(table)
    return AppendTimes(base_offset + offsets[:sound], times[:sound])


def is_append_times(data: bytes) -> bool:
    """Whether the bytes are such a file, and nothing else."""
    if made_for(data) is not None:
        data = data[ENTRY_BYTES:]
    return len(data) % _ENTRY.size == 0 and len(parse(data, 0).offsets) == len(data) // _ENTRY.size


def encode(known: AppendTimes, base_offset: int, made_for: int | None = None) -> bytes:
    """The file's bytes; `made_for` is the size of the one log file that they are of."""
    table = np.empty(len(known.offsets), _TABLE)
    table["time"] = known.times
    table["place"] = np.minimum(known.offsets - base_offset + 1, _PLACE_MAX)
    head = b"" if made_for is None else _ENTRY.pack(_MADE_FOR, made_for)
    return head + table.tobytes()


def followed_entries(known: AppendTimes, firsts: Sequence[int], now_ms: int) -> list[int]:
    """A follower's entries of batches that begin at some offsets, by its leader's entries.

    Where that one knows nothing it is "not after now", in whole seconds for not too many of them.
    """
    latest = -max((now_ms // RESOLUTION_MS + 1) * RESOLUTION_MS, 1)
    held = known.held(np.array(firsts, np.int64))
    entries: list[int] = np.where((held <= UNKNOWN) | (held == 0), latest, held).tolist()
    return entries


def latest_of(entry_ms: int) -> int:
    """The latest time that an entry allows; as `AppendTimes.latest`."""
    return min(entry_ms, FOREVER_MS) + RESOLUTION_MS - 1 if entry_ms >= 0 else -entry_ms


def resumed(known: AppendTimes, end_offset: int, latest_ms: int) -> AppendTimes:
    """The entries to go on from, of a segment that was opened again.

    Where the file does not end in order at `end_offset`, it may lack its last entries: only the
    very first offset of the last one is certain, and what follows may have been appended at
    `latest_ms`, which bounds all appends so far.
    """
    below = known.between(-1, end_offset)
    if len(known.offsets) and (known.offsets[-1], known.times[-1]) == (end_offset, UNKNOWN):
        return below
    if not len(below.offsets):
        return NOTHING  # what comes before the first entry is unknown
    doubtful = int(below.offsets[-1]) + 1
    if doubtful >= end_offset:
        return below
    return AppendTimes(
        np.append(below.offsets, doubtful), np.append(below.times, -max(latest_ms, 1))
    )


def closed(known: AppendTimes, end_offset: int) -> AppendTimes:
    """Append times as a sealed segment has them, whose writer ended at `end_offset`."""
    if not len(known.offsets):
        return known
    below = known.between(-1, end_offset)
    return AppendTimes(np.append(below.offsets, end_offset), np.append(below.times, UNKNOWN))


def joined(parts: Iterable[AppendTimes]) -> AppendTimes:
    """Append times of segments that become one, ascending; each must have its end."""
    some = [part for part in parts if len(part.offsets)]
    if not some:
        return NOTHING
    offsets = np.concatenate([part.offsets for part in some])
    times = np.concatenate([part.times for part in some])
    last = np.append(offsets[1:] > offsets[:-1], True)  # where one ends the next may begin
    return AppendTimes(offsets[last], times[last])


def thinned(known: AppendTimes, used: NDArray[np.bool_], end_offset: int) -> AppendTimes:
    """Only entries that hold for something, up to where that ends; nothing if no time is known."""
    left = AppendTimes(known.offsets[used], known.times[used])
    return closed(left, end_offset) if (left.times > UNKNOWN).any() else NOTHING
