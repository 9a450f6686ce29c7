"""The ledger remembers what left, when and why; a torn frame is forgotten, nothing before it."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from pyroaring import BitMap

from lapse.base.fs import RealFs
from lapse.lifecycle.round.ledger import (
    Departure,
    LedgerEntry,
    Removed,
    append,
    departures,
    ledger_path,
    read,
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


def test_two_bytes_a_removed_record_at_most(tmp_path: Path) -> None:
    """DESIGN §1; for offsets as scattered as they come."""
    offsets = np.flatnonzero(np.random.default_rng(1).random(500_000) < 0.3)
    bitmap = BitMap(offsets)
    append(FS, tmp_path, entry("r", Removed(0, "superseded", bitmap.serialize())))
    assert ledger_path(tmp_path).stat().st_size <= 2 * len(offsets)


def test_no_key_and_no_value_is_in_it() -> None:
    assert set(LedgerEntry.__slots__) == {
        "round_id", "base_offset", "now_ms", "horizon_ms", "committed_ms", "stamped",
        "bytes_before", "bytes_after", "removed",
    }  # fmt: skip
    assert set(Removed.__slots__) == {"segment_base", "reason", "bitmap"}
