"""The ledger: the durable history of which records left a log, when, and by which rule.

One append-only file per partition, `.lapse/ledger`. An entry covers one rewritten group: per old
segment and reason a roaring bitmap of the offsets removed, at most two bytes a record. It never
holds a key or a value.

A frame is `length u32 | 2^31 · CRC-32C u32 · head's CRC-32C u32 · head's length u32 · head ·
bitmaps · length u32 | 2^31` (big-endian; head and bitmaps msgpack; length and CRC are of both
together), so that heads are read without bitmaps and the last frame is found from the end. Frames
without that bit are older: `length · CRC-32C · entry`. A crash may leave a torn last frame; it is
ignored, and recovery writes it again.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from pyroaring import BitMap

from lapse.base.decoding import from_msgpack
from lapse.base.errors import CorruptData, StorageError
from lapse.base.fs import Fs
from lapse.kernels.crc32c import crc32c
from lapse.log.summary import FOLDER

LEDGER_FILE = "ledger"
_FRONT = struct.Struct(">IIII")
_OLD_FRONT = struct.Struct(">II")
_WORD = struct.Struct(">I")
_FRAMED = 1 << 31

_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True)
class Removed:
    """Offsets that one old segment lost for one reason, as serialized bitmap of offset - base."""

    segment_base: int
    reason: str
    bitmap: bytes

    def offsets(self) -> BitMap:
        """The bitmap; raises ValueError if the bytes are not a valid one."""
        return BitMap.deserialize(self.bitmap)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One group of one round, as committed.

    Attributes:
        now_ms: the round's clock reading; horizons were judged by it.
        horizon_ms: the delete horizon that the round stamped, if `stamped` > 0.
        end_offset: the map covered everything below it; -1 in older entries, which lack it.
        committed_ms: when the new segment was in place and durable.
        bytes_before, bytes_after: size of the group's log files.
    """

    round_id: str
    base_offset: int
    now_ms: int
    horizon_ms: int
    committed_ms: int
    stamped: int
    bytes_before: int
    bytes_after: int
    removed: tuple[Removed, ...]
    end_offset: int = -1


@dataclass(frozen=True, slots=True)
class EntryHead:
    """An entry without its bitmaps, for callers that need rounds and not offsets."""

    round_id: str
    base_offset: int
    now_ms: int
    horizon_ms: int
    committed_ms: int
    stamped: int
    end_offset: int = -1


@dataclass(frozen=True, slots=True)
class Departure:
    """When and why one offset left the log."""

    offset: int
    reason: str
    round_id: str
    now_ms: int
    committed_ms: int


def ledger_path(log_dir: Path) -> Path:
    """The path of a partition's ledger."""
    return log_dir / FOLDER / LEDGER_FILE


def append(fs: Fs, log_dir: Path, entry: LedgerEntry) -> None:
    """Append an entry; of the existing ledger only the last frame is read.

    The caller syncs the file: once for many entries.
    """
    path = ledger_path(log_dir)
    fs.make_dir(path.parent)
    with _opened(path) as fd:
        end, size = _valid_end(fd)
    if size > end:
        fs.truncate(path, end)
    head = msgspec.msgpack.encode(replace(entry, removed=()))
    body = msgspec.msgpack.encode(entry.removed)
    length = _FRAMED | (len(head) + len(body))
    with contextlib.closing(fs.open_append(path)) as file:
        own = _crc(_WORD.pack(len(head)) + head)
        front = _FRONT.pack(length, _crc(head + body), own, len(head))
        file.write(front, head, body, _WORD.pack(length))


def write_anew(fs: Fs, log_dir: Path) -> None:
    """Copy the ledger to a new file, durably.

    After a failed sync, data that can be read may never reach the disk, and the next sync reports
    no error for it.
    """
    path = ledger_path(log_dir)
    if path.exists():
        with _opened(path) as fd:
            end, _ = _valid_end(fd)
        fs.replace_file(path, path.read_bytes()[:end])


def read(log_dir: Path) -> Iterator[LedgerEntry]:
    """All entries, oldest first; none where there is no ledger. Raises CorruptData."""
    path = ledger_path(log_dir)
    with _opened(path) as fd:
        for frame in _frames(fd):
            yield _entry(path, fd, frame)


def read_last(log_dir: Path, count: int) -> list[LedgerEntry]:
    """The last entries, newest first; no others are read, however long the ledger is.

    Entries of the first format are not found from the end, and are left out. Raises CorruptData.
    """
    path = ledger_path(log_dir)
    with _opened(path) as fd:
        end, _ = _valid_end(fd)
        return [_entry(path, fd, one) for one in islice(_frames_back(fd, 0, end), count)]


def _entry(path: Path, fd: int, frame: _Frame) -> LedgerEntry:
    data = _whole(fd, frame)
    if _crc(data) != frame.crc:
        raise CorruptData(str(path), frame.at, "checksum does not match")
    entry = _decoded(path, frame, data[: frame.head_length], LedgerEntry)
    if frame.is_old:
        return entry
    removed = _decoded(path, frame, data[frame.head_length :], tuple[Removed, ...])
    return replace(entry, removed=removed)


def read_heads(log_dir: Path) -> Iterator[EntryHead]:
    """As `read`, without the bitmaps, which are not read from the disk either."""
    path = ledger_path(log_dir)
    with _opened(path) as fd:
        for frame in _frames(fd):
            head = os.pread(fd, frame.head_length, frame.payload_at)
            yield _decoded(path, frame, head, EntryHead)


def _decoded(path: Path, frame: _Frame, data: bytes, kind: type[_Entry]) -> _Entry:
    try:
        return from_msgpack(data, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise CorruptData(str(path), frame.at, f"not a ledger's entry: {e}") from e


# --- frames --------------------------------------------------------------------------------------


class _Frame(NamedTuple):
    """The place of an entry. In the first format an entry has no separate head: it is all head."""

    at: int
    payload_at: int
    length: int
    crc: int
    head_length: int
    head_crc: int
    end: int

    @property
    def is_old(self) -> bool:
        return self.payload_at - self.at == _OLD_FRONT.size


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """The ledger's file; -1 where there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield -1
        return
    except OSError as e:
        raise StorageError(f"opening {path}: {e.strerror or e}") from e
    try:
        yield fd
    finally:
        os.close(fd)


def _frames(fd: int) -> Iterator[_Frame]:
    """The good frames: behind a bad one those that are found there, if the last is torn, too."""
    size = os.fstat(fd).st_size if fd >= 0 else 0
    at = 0
    while at < size:
        frame = _frame_at(fd, at, size)
        if frame is None or not _is_good(fd, frame, size):
            frame = _next_frame(fd, at + 1, size)
        if frame is None:
            return
        yield frame
        at = frame.end


def _next_frame(fd: int, start: int, size: int) -> _Frame | None:
    """The first good frame behind some bytes that are none; old ones have too little to tell."""
    data = os.pread(fd, size - start, start)
    for n in range(len(data) - _FRONT.size):
        length = _WORD.unpack_from(data, n)[0] ^ _FRAMED
        if 0 < length < len(data) - n:
            frame = _frame_at(fd, start + n, size)
            if frame is not None and not frame.is_old and _is_good(fd, frame, size):
                return frame
    return None


def _frames_back(fd: int, start: int, size: int) -> Iterator[_Frame]:
    end = size
    while end > start:
        frame = _frame_before(fd, end)
        if frame is None or frame.at < start:
            return
        yield frame
        end = frame.at


def _frame_at(fd: int, at: int, size: int) -> _Frame | None:
    """The frame at `at`, from its front, if one may begin there and end within the file."""
    front = os.pread(fd, _FRONT.size, at) if at + _OLD_FRONT.size <= size else b""
    if len(front) < _OLD_FRONT.size:
        return None
    length, crc = _OLD_FRONT.unpack_from(front)
    # A tail of zeros left by a power cut would otherwise pass for empty frames.
    if length == 0 or (length & _FRAMED and len(front) < _FRONT.size):
        return None
    if length & _FRAMED:
        length ^= _FRAMED
        _, _, head_crc, head_length = _FRONT.unpack(front)
        payload_at = at + _FRONT.size
        end = payload_at + length + _WORD.size
        frame = _Frame(at, payload_at, length, crc, head_length, head_crc, end)
    else:
        payload_at = at + _OLD_FRONT.size
        frame = _Frame(at, payload_at, length, crc, length, crc, payload_at + length)
    return frame if frame.end <= size and 0 < frame.head_length <= length else None


def _frame_before(fd: int, end: int) -> _Frame | None:
    """The frame that ends at `end`, if all of it is good."""
    word = os.pread(fd, _WORD.size, max(end - _WORD.size, 0))
    length = _WORD.unpack(word)[0] if len(word) == _WORD.size else 0
    at = end - _WORD.size - (length & ~_FRAMED) - _FRONT.size
    if not length & _FRAMED or at < 0:
        return None
    frame = _frame_at(fd, at, end)
    if frame is None or frame.is_old or frame.end != end or not _is_good(fd, frame, end):
        return None
    return frame


def _is_good(fd: int, frame: _Frame, size: int) -> bool:
    """Whether the head is right; of the last frame all is checked, as a crash may have torn it."""
    if frame.is_old:
        return _is_whole(fd, frame)
    word = os.pread(fd, _WORD.size, frame.end - _WORD.size)
    head = os.pread(fd, _WORD.size + frame.head_length, frame.payload_at - _WORD.size)
    return (
        word == _WORD.pack(_FRAMED | frame.length)
        and _crc(head) == frame.head_crc
        and (frame.end < size or _is_whole(fd, frame))
    )


def _is_whole(fd: int, frame: _Frame) -> bool:
    return _crc(_whole(fd, frame)) == frame.crc


def _whole(fd: int, frame: _Frame) -> bytes:
    return os.pread(fd, frame.length, frame.payload_at)


def _crc(data: bytes) -> int:
    return int(crc32c(np.frombuffer(data, np.uint8), 0, len(data)))


def _valid_end(fd: int) -> tuple[int, int]:
    """Where the good frames end, and the file."""
    size = os.fstat(fd).st_size if fd >= 0 else 0
    if size == 0 or _frame_before(fd, size) is not None:
        return size, size
    return max((frame.end for frame in _frames(fd)), default=0), size


def departures(log_dir: Path, offset: int) -> Iterator[Departure]:
    """The ledger's entries on the removal of one offset. Raises CorruptData.

    There is one at most, unless replaced files came back (a restored copy, or a disk that reported
    a sync it had not done).
    """
    for entry in read(log_dir):
        for removed in entry.removed:
            relative = offset - removed.segment_base
            try:
                is_removed = 0 <= relative < 1 << 32 and relative in removed.offsets()
            except ValueError as e:
                reason = f"round {entry.round_id}, segment {removed.segment_base}: {e}"
                raise CorruptData(str(ledger_path(log_dir)), 0, reason) from e
            if is_removed:
                yield Departure(
                    offset, removed.reason, entry.round_id, entry.now_ms, entry.committed_ms
                )
