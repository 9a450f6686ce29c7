"""The ledger remembers what left, when and why; a torn frame is forgotten, nothing before it."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec
import numpy as np
import pytest
from pyroaring import BitMap

from lapse.base.errors import CorruptData
from lapse.base.fs import RealFs
from lapse.kernels.crc32c import crc32c
from lapse.lifecycle.round.ledger import (
    Departure,
    EntryHead,
    LedgerEntry,
    Removed,
    append,
    departures,
    ledger_path,
    read,
    read_heads,
    read_last,
)

FS = RealFs()


def removed(base: int, reason: str, *offsets: int) -> Removed:
    return Removed(base, reason, BitMap([o - base for o in offsets]).serialize())


def entry(round_id: str, *gone: Removed) -> LedgerEntry:
    return LedgerEntry(round_id, 0, 1000, 2000, 1500, 3, 900, 400, gone)


FIRST = entry("r1", removed(0, "superseded", 1, 3), removed(100, "superseded", 100))
SECOND = entry("r2", removed(0, "tombstone expired", 2), removed(1 << 40, "keyless", (1 << 40) + 7))


def test_nothing_where_there_is_no_ledger(tmp_path: Path) -> None:
    assert list(read(tmp_path)) == []
    assert list(departures(tmp_path, 5)) == []


def test_entries_come_back_in_order(tmp_path: Path) -> None:
    for each in (FIRST, SECOND):
        append(FS, tmp_path, each)
    assert list(read(tmp_path)) == [FIRST, SECOND]
    assert ledger_path(tmp_path) == tmp_path / ".lapse" / "ledger"


def test_the_last_entries_are_read_from_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No others, however many there are; also behind a torn tail."""
    assert read_last(tmp_path, 3) == []
    some = [entry(f"r{n}", removed(0, "superseded", n)) for n in range(50)]
    for each in some:
        append(FS, tmp_path, each)
    reads = list[int]()
    pread = os.pread
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", lambda fd, n, at: reads.append(at) or pread(fd, n, at))
        assert read_last(tmp_path, 3) == [some[49], some[48], some[47]]
    assert min(reads) > ledger_path(tmp_path).stat().st_size * 0.9
    assert read_last(tmp_path, 99) == some[::-1]
    path = ledger_path(tmp_path)
    path.write_bytes(path.read_bytes()[:-3])
    assert read_last(tmp_path, 2) == [some[48], some[47]]


@pytest.mark.parametrize(
    ("offset", "reason", "round_id"),
    [
        (0, None, None),
        (1, "superseded", "r1"),
        (2, "tombstone expired", "r2"),
        (3, "superseded", "r1"),
        (99, None, None),
        (100, "superseded", "r1"),
        ((1 << 40) + 7, "keyless", "r2"),
        ((1 << 40) - 1, None, None),
        ((1 << 40) + (1 << 32) + 7, None, None),
        ((1 << 40) + (1 << 33), None, None),  # far beyond what a bitmap's numbers reach
    ],
)
def test_departures(tmp_path: Path, offset: int, reason: str | None, round_id: str | None) -> None:
    for each in (FIRST, SECOND):
        append(FS, tmp_path, each)
    expected = [] if reason is None else [Departure(offset, reason, round_id, 1000, 1500)]
    assert list(departures(tmp_path, offset)) == expected


def test_every_torn_tail_is_forgotten_and_written_over(tmp_path: Path) -> None:
    append(FS, tmp_path, FIRST)
    path = ledger_path(tmp_path)
    whole_first = path.stat().st_size
    append(FS, tmp_path, SECOND)
    data = path.read_bytes()
    for end in range(whole_first, len(data)):
        path.write_bytes(data[:end])
        assert list(read(tmp_path)) == [FIRST], end
    for end in (whole_first, whole_first + 3, whole_first + 8, len(data) - 1):
        path.write_bytes(data[:end])
        append(FS, tmp_path, SECOND)
        assert path.read_bytes() == data


def test_a_garbled_or_zeroed_tail_is_forgotten(tmp_path: Path) -> None:
    append(FS, tmp_path, FIRST)
    path = ledger_path(tmp_path)
    good = path.read_bytes()
    for tail in (bytes(8), bytes(500), b"\xff" * 40, struct.pack(">II", 3, 0) + b"abc"):
        path.write_bytes(good + tail)
        assert list(read(tmp_path)) == [FIRST]
        append(FS, tmp_path, SECOND)
        assert list(read(tmp_path)) == [FIRST, SECOND]
    for at in range(len(good)):
        garbled = bytearray(good)
        garbled[at] ^= 0x10
        path.write_bytes(bytes(garbled))
        assert list(read(tmp_path)) == []


def old_frame(entry: LedgerEntry) -> bytes:
    """As the first format had it: one msgpack of all, no trailer."""
    payload = msgspec.msgpack.encode(entry)
    crc = crc32c(np.frombuffer(payload, np.uint8), 0, len(payload))
    return struct.pack(">II", len(payload), crc) + payload


def test_the_first_format_is_read_and_written_on_to(tmp_path: Path) -> None:
    path = ledger_path(tmp_path)
    path.parent.mkdir()
    for tail in (b"", b"\x00" * 9, old_frame(SECOND)[:-1]):
        path.write_bytes(old_frame(FIRST) + tail)
        assert list(read(tmp_path)) == [FIRST]
        append(FS, tmp_path, SECOND)
        assert list(read(tmp_path)) == [FIRST, SECOND]
        assert [head.round_id for head in read_heads(tmp_path)] == ["r1", "r2"]


def test_heads_say_the_same_without_bitmaps(tmp_path: Path) -> None:
    for each in (FIRST, SECOND):
        append(FS, tmp_path, each)
    assert list(read_heads(tmp_path)) == [
        EntryHead(e.round_id, e.base_offset, e.now_ms, e.horizon_ms, e.committed_ms, e.stamped)
        for e in (FIRST, SECOND)
    ]


class CountingRead:
    """`os.pread` that counts the bytes asked for."""

    def __init__(self) -> None:
        self.bytes = 0
        self._pread = os.pread

    def __call__(self, fd: int, length: int, at: int) -> bytes:
        data = self._pread(fd, length, at)
        self.bytes += len(data)
        return data


def test_neither_appending_nor_heads_read_the_bitmaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = entry("r", Removed(0, "superseded", BitMap(range(0, 200_000, 3)).serialize()))
    for _ in range(20):
        append(FS, tmp_path, large)
    append(FS, tmp_path, FIRST)
    counting = CountingRead()
    monkeypatch.setattr(os, "pread", counting)
    append(FS, tmp_path, SECOND)
    assert counting.bytes < 1000 < ledger_path(tmp_path).stat().st_size // 100
    counting.bytes = 0
    assert len(list(read_heads(tmp_path))) == 22
    assert counting.bytes < 22 * 400


def test_what_comes_after_a_bad_entry_is_still_known(tmp_path: Path) -> None:
    path = ledger_path(tmp_path)
    for each in (FIRST, SECOND, FIRST):
        append(FS, tmp_path, each)
    whole = path.read_bytes()
    size = len(whole) // 3  # FIRST and SECOND differ by some bytes only
    garbled = bytearray(whole)
    garbled[size + 30] ^= 1
    path.write_bytes(bytes(garbled))
    assert list(read(tmp_path)) == [FIRST, FIRST]
    append(FS, tmp_path, SECOND)
    assert list(read(tmp_path)) == [FIRST, FIRST, SECOND]
    assert path.read_bytes()[: len(whole)] == bytes(garbled)


def test_a_torn_tail_behind_a_bad_entry_takes_no_good_one_with_it(tmp_path: Path) -> None:
    """Neither for who reads nor for the next append, which cuts off what is torn."""
    path, ends = ledger_path(tmp_path), []
    for n in range(6):
        append(FS, tmp_path, entry(f"r{n}", removed(0, "superseded", n)))
        ends.append(path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[ends[0] + 25] ^= 0xFF
    path.write_bytes(data + data[:20])
    left = ["r0", "r2", "r3", "r4", "r5"]
    assert [one.round_id for one in read_heads(tmp_path)] == left
    append(FS, tmp_path, entry("r9"))
    assert [one.round_id for one in read_heads(tmp_path)] == [*left, "r9"]
    assert path.stat().st_size > ends[-1]


def test_a_bitmap_that_has_changed_is_not_believed(tmp_path: Path) -> None:
    """Its head is sound, so whoever asks about rounds is answered all the same."""
    append(FS, tmp_path, FIRST)
    path = ledger_path(tmp_path)
    in_bitmap = path.stat().st_size - 5  # the last byte before the length that ends a frame
    append(FS, tmp_path, SECOND)
    data = bytearray(path.read_bytes())
    data[in_bitmap] ^= 1
    path.write_bytes(data)
    assert [head.round_id for head in read_heads(tmp_path)] == ["r1", "r2"]
    with pytest.raises(CorruptData, match="checksum does not match at byte 0"):
        list(read(tmp_path))


def test_two_bytes_a_removed_record_at_most(tmp_path: Path) -> None:
    """At most two bytes a record, for offsets as scattered as they come."""
    offsets = np.flatnonzero(np.random.default_rng(1).random(500_000) < 0.3)
    bitmap = BitMap(offsets)
    append(FS, tmp_path, entry("r", Removed(0, "superseded", bitmap.serialize())))
    assert ledger_path(tmp_path).stat().st_size <= 2 * len(offsets)


def test_no_key_and_no_value_is_in_it() -> None:
    assert set(LedgerEntry.__slots__) == {
        "round_id", "base_offset", "now_ms", "horizon_ms", "committed_ms", "stamped",
        "bytes_before", "bytes_after", "removed", "end_offset",
    }  # fmt: skip
    assert set(Removed.__slots__) == {"segment_base", "reason", "bitmap"}
