"""The ledger: the durable history of what left a log, when, and by which rule.

One append-only file a partition, `.lapse/ledger`, of frames `length u32 · CRC-32C u32 · entry`
(big-endian; msgpack). An entry speaks of one rewritten group: per old segment and reason a roaring
bitmap of the offsets removed, at most two bytes a record. Never a key, never a value (DESIGN §1).
A torn last frame is what a crash leaves; it is ignored, and written again by recovery.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from pyroaring import BitMap

from lapse.base.errors import CorruptData
from lapse.base.fs import Fs
from lapse.kernels.crc32c import crc32c
from lapse.log.summary import FOLDER

LEDGER_FILE = "ledger"
_FRAME = struct.Struct(">II")

_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True)
class Removed:
    """Offsets one old segment lost for one reason, as serialized bitmap of offset - base."""

    segment_base: int
    reason: str
    bitmap: bytes

    def offsets(self) -> BitMap:
        """Raises ValueError where that is no bitmap."""
        return BitMap.deserialize(self.bitmap)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One group of one round, as committed.

    Attributes:
        now_ms: the round's clock reading; horizons were judged by it.
        horizon_ms: what the round stamped, if `stamped` > 0.
        committed_ms: when the new segment was in place and durable.
        bytes_before, bytes_after: of the group's log files.
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


@dataclass(frozen=True, slots=True)
class EntryHead:
    """An entry without its bitmaps, for whoever asks about rounds and not about offsets."""

    round_id: str
    base_offset: int
    now_ms: int
    horizon_ms: int
    committed_ms: int
    stamped: int


@dataclass(frozen=True, slots=True)
class Departure:
    """When and why one offset left the log."""

    offset: int
    reason: str
    round_id: str
    now_ms: int
    committed_ms: int


def ledger_path(log_dir: Path) -> Path:
    """Where a partition's ledger lies."""
    return log_dir / FOLDER / LEDGER_FILE


def append(fs: Fs, log_dir: Path, entry: LedgerEntry) -> None:
    """Add an entry, durably."""
    payload = msgspec.msgpack.encode(entry)
    crc = crc32c(np.frombuffer(payload, np.uint8), 0, len(payload))
    path = ledger_path(log_dir)
    fs.make_dir(path.parent)
    end = _valid_end(path)
    if path.exists() and path.stat().st_size > end:
        fs.truncate(path, end)
    file = fs.open_append(path)
    try:
        file.write(_FRAME.pack(len(payload), crc), payload)
        file.fsync()
    finally:
        file.close()


def read(log_dir: Path) -> Iterator[LedgerEntry]:
    """All entries, oldest first; none where there is no ledger. Raises CorruptData."""
    return _entries(ledger_path(log_dir), LedgerEntry)


def read_heads(log_dir: Path) -> Iterator[EntryHead]:
    """As `read`, without making bitmaps of what is only passed over."""
    return _entries(ledger_path(log_dir), EntryHead)


def _entries(path: Path, kind: type[_Entry]) -> Iterator[_Entry]:
    for end, payload in _frames(path):
        try:
            yield msgspec.msgpack.decode(payload, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as e:
            raise CorruptData(str(path), end - len(payload), f"not a ledger's entry: {e}") from e


def _frames(path: Path) -> Iterator[tuple[int, bytes]]:
    """(position after the frame, payload) of each whole frame."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    at = 0
    while at + _FRAME.size <= len(data):
        length, crc = _FRAME.unpack_from(data, at)
        payload = data[at + _FRAME.size : at + _FRAME.size + length]
        # A tail that a power cut left as zeros would pass for empty frames.
        if (
            length == 0
            or len(payload) < length
            or crc32c(np.frombuffer(payload, np.uint8), 0, length) != crc
        ):
            return
        at += _FRAME.size + length
        yield at, payload


def _valid_end(path: Path) -> int:
    return max((at for at, _ in _frames(path)), default=0)


def departures(log_dir: Path, offset: int) -> Iterator[Departure]:
    """What the ledger knows of one offset's end; at most one answer. Raises CorruptData."""
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
