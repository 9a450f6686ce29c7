"""One file looked through: what is found in which kind of place, and what is called opaque."""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.kernels.crc32c import crc32c
from lapse.lifecycle.erase import audit as audit_module
from lapse.lifecycle.erase.audit import UNREAD, audit
from lapse.lifecycle.erase.findings import (
    BATCHES,
    RAW,
    REGIONS_MAX,
    AuditUnit,
    Region,
    joined,
)
from lapse.lifecycle.erase.proof import NOT_PROVEN, PROVEN, judge
from lapse.lifecycle.erase.search import make_search, spec_of
from lapse.lifecycle.erase.table import table_of
from lapse.log.aside import keep_tail
from lapse.records.batch import as_array
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.compression import deflate
from lapse.records.layout import Codec
from lapse.records.legacy import Message, MessageSpec, build_messages
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.erase.replica import (
    FIRST,
    KEY,
    NOW,
    batch,
    counted,
    damaged,
    found_in,
    looked,
    others,
    with_tail,
    written,
)

CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


@pytest.mark.parametrize("codec", list(Codec))
def test_a_record_is_found_in_a_batch_of_any_codec(codec: Codec, tmp_path: Path) -> None:
    before = others(0, codec=codec)
    path = written(tmp_path / FIRST, before, batch(5, b"other", KEY, codec=codec), others(7))
    found = found_in(path)
    assert counted(found) == (1, 0, 0, 0)
    assert [(s.offset, s.position, s.damaged) for s in found.spots] == [(6, len(before), False)]
    assert (found.batches, found.records, found.kind, found.regions) == (3, 12, BATCHES, ())
    assert found.pieces[0].sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert found.end == path.stat().st_size


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4])
def test_a_record_is_found_in_old_formats(magic: int, codec: Codec, tmp_path: Path) -> None:
    messages = [
        Message(10, 5, b"other", b"v"),
        Message(11, 5, KEY, b"v"),
        Message(12, 5, KEY, None),
    ]
    path = written(tmp_path / FIRST, build_messages(messages, MessageSpec(magic, codec)))
    found = found_in(path)
    assert counted(found) == (1, 1, 0, 0)
    assert [(s.offset, s.tombstone) for s in found.spots] == [(11, False), (12, True)]
    assert found.records == 3


def test_a_key_is_told_apart_from_longer_and_shorter_ones_and_from_values(tmp_path: Path) -> None:
    path = written(
        tmp_path / FIRST,
        batch(0, KEY + b"0", KEY[:-1], b"x" + KEY, b"", None),
        batch(9, b"other", value=KEY),
    )
    assert found_in(path).counts == ()


def test_tombstones_and_what_lies_at_the_bound_are_counted_apart(tmp_path: Path) -> None:
    path = written(tmp_path / FIRST, batch(0, KEY, KEY, value=None), batch(2, KEY, KEY))
    assert counted(found_in(path)) == (2, 2, 0, 0)
    assert counted(found_in(path, make_search([KEY], below_offset=3))) == (1, 2, 1, 0)


def test_the_last_ones_are_told_of_but_not_what_a_transaction_may_take_back(tmp_path: Path) -> None:
    """Nor what is damaged, which no consumer is given."""
    open_one = build_batch([NewRecord(KEY, None)], BatchSpec(9, producer_id=1, transactional=True))
    path = written(
        tmp_path / FIRST, batch(3, KEY, codec=Codec.ZSTD), batch(5, KEY, value=None), open_one,
        damaged(batch(11, KEY, value=None), at=20), others(20),
    )  # fmt: skip
    [count] = found_in(path, make_search([KEY], below_offset=4)).counts
    assert (count.last_value, count.last_tombstone, count.beyond) == (3, 5, 3)
    [count] = found_in(path, below=3).counts
    assert (count.records, count.tombstones, count.beyond) == (0, 3, 1)
    assert (count.last_value, count.last_tombstone) == (3, 5)


def test_a_tombstone_with_a_value_is_a_record(tmp_path: Path) -> None:
    path = written(tmp_path / FIRST, build_batch([NewRecord(KEY, b"why", tombstone=True)]))
    assert counted(found_in(path)) == (1, 0, 0, 0)


def test_offsets_are_found_whatever_the_key(tmp_path: Path) -> None:
    gaps = [NewRecord(None, b"v", offset_delta=d) for d in (0, 3, 7)]
    old = build_messages([Message(20, 5, b"k", b"v"), Message(22, 5, b"k", b"v")],
                         MessageSpec(1, Codec.GZIP))  # fmt: skip
    path = written(tmp_path / FIRST, build_batch(gaps, BatchSpec(10)), old)
    found = found_in(path, make_search([KEY], [11, 13, 17, 20, 21]))
    assert [(c.target, c.records) for c in found.counts] == [(2, 1), (3, 1), (4, 1)]


def test_control_records_are_apart(tmp_path: Path) -> None:
    spec = BatchSpec(5, transactional=True, control=True, producer_id=1, producer_epoch=0)
    marker = build_batch([NewRecord(struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 0))], spec)
    path = written(tmp_path / FIRST, others(0), marker)
    found = found_in(path, make_search([struct.pack(">hh", 0, 1)]))
    assert (found.counts, found.control, found.regions) == ((), 1, ())


# --- damage ---------------------------------------------------------------------------------------


def test_a_damaged_batch_is_read_as_far_as_it_goes_and_searched(tmp_path: Path) -> None:
    front, bad = others(0), damaged(batch(5, KEY, b"other"))
    path = written(tmp_path / FIRST, front, bad, others(7))
    found = found_in(path)
    assert counted(found) == (1, 0, 0, 1)
    assert [(s.offset, s.damaged) for s in found.spots] == [(5, True)]
    end = len(front) + len(bad)
    assert found.regions == (Region(len(front), end, "checksum does not match"),)
    assert (found.batches, found.records) == (2, 12)  # what came behind it was read


def test_the_key_is_found_where_its_length_is_damaged(tmp_path: Path) -> None:
    raw = batch(0, KEY, b"other")
    path = written(tmp_path / FIRST, damaged(raw, raw.index(KEY) - 1), others(2))
    found = found_in(path)
    assert counted(found) == (0, 0, 0, 1)
    assert found.raw_spots[0].position == raw.index(KEY)


def test_a_control_bit_of_a_damaged_batch_is_not_believed(tmp_path: Path) -> None:
    raw = bytearray(batch(0, KEY))
    raw[22] |= 0x20
    found = found_in(written(tmp_path / FIRST, bytes(raw)))
    assert counted(found)[0] == 1


@pytest.mark.parametrize("size", [3, 20, 61, 70, -1])
def test_a_half_written_tail_is_searched(size: int, tmp_path: Path) -> None:
    front, tail = others(0), batch(5, b"other", KEY)
    path = written(tmp_path / FIRST, front, tail[: size if size > 0 else len(tail) - 1])
    found = found_in(path)
    records, _, _, raw = counted(found)
    assert (records, raw) == ((0, 1) if size < 0 else (0, 0))  # its last record is cut off
    [region] = found.regions
    assert (region.start, region.end) == (len(front), path.stat().st_size)
    assert not region.opaque  # of a header alone, or of a batch that is not compressed


@pytest.mark.parametrize("codec", CODECS)
def test_a_damaged_compressed_batch_is_opaque(codec: Codec, tmp_path: Path) -> None:
    raw = batch(5, *[KEY] * 50, codec=codec)
    bad = raw[:70] + bytes(len(raw) - 70)
    found = found_in(written(tmp_path / FIRST, others(0), bad, others(60)))
    [region] = found.regions
    assert region.opaque
    assert found.batches == 2


@pytest.mark.parametrize("codec", CODECS)
def test_a_compressed_tail_that_is_cut_off_is_opaque(codec: Codec, tmp_path: Path) -> None:
    raw = batch(5, *[b"other%d" % n for n in range(50)], codec=codec)
    [region] = found_in(written(tmp_path / FIRST, others(0), raw[:-2])).regions
    assert region.opaque


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_with_a_right_checksum_that_does_not_inflate_is_opaque(
    codec: Codec, tmp_path: Path
) -> None:
    raw = bytearray(others(0, 50, codec))
    raw[61:] = bytes(255 - n % 200 for n in range(len(raw) - 61))
    path = written(tmp_path / FIRST, with_crc(raw), others(60))
    [region] = found_in(path).regions
    assert (region.start, region.end, region.opaque) == (0, len(raw), True)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_whose_records_do_not_parse_is_searched_inflated(
    codec: Codec, tmp_path: Path
) -> None:
    raw = bytearray(batch(0, b"other", KEY, codec=codec))
    struct.pack_into(">i", raw, 57, 1)  # it says that there is one record: bytes are left over
    found = found_in(written(tmp_path / FIRST, with_crc(raw)))
    assert counted(found)[3] > 0
    assert [region.opaque for region in found.regions] == [True]


# --- bytes that no reader reads, in a batch that can be read --------------------------------------

HIDDEN = b"...." + KEY + b"...."


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
def test_a_key_behind_what_is_compressed_is_not_gone(codec: Codec, tmp_path: Path) -> None:
    """Kafka accepts such a batch, and no consumer is given those bytes."""
    front, raw = others(0), with_tail(others(5, codec=codec), HIDDEN)
    found = found_in(written(tmp_path / FIRST, front, raw, others(10)))
    end = len(front) + len(raw)
    assert found.regions == (Region(end - len(HIDDEN), end, UNREAD, opaque=True),)
    assert (counted(found), found.records) == ((0, 0, 0, 1), 15)
    assert [spot.position for spot in found.raw_spots] == [end - len(HIDDEN) + 4]


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_hidden_in_a_compressed_batch_is_never_called_gone(
    codec: Codec, tmp_path: Path
) -> None:
    """Compressed once more there, no search can find the key; zeros hide nothing."""
    hidden = bytes(deflate(Codec.GZIP, as_array(KEY * 20)))
    hidden = struct.pack("<II", 0x184D2A50, len(hidden)) + hidden  # zstd skips such a frame
    path = written(tmp_path / FIRST, with_tail(others(0, codec=codec), hidden))
    assert [region.opaque for region in found_in(path).regions] == [True]
    if codec in {Codec.GZIP, Codec.LZ4}:
        path = written(tmp_path / FIRST, with_tail(others(0, codec=codec), bytes(30)))
        assert [(r.opaque, r.zeros) for r in found_in(path).regions] == [(False, True)]


def test_what_is_hidden_in_a_batch_that_does_not_parse_counts_once(tmp_path: Path) -> None:
    raw = bytearray(others(0, codec=Codec.GZIP))
    struct.pack_into(">i", raw, 57, 1)  # records are left over
    found = found_in(written(tmp_path / FIRST, with_tail(bytes(raw), HIDDEN)))
    assert (counted(found)[3], len(found.regions)) == (1, 1)


def test_records_in_further_members_of_a_gzip_are_found(tmp_path: Path) -> None:
    """Java's reader gives them to consumers."""
    raw = batch(0, b"other", KEY)
    first = len(batch(0, b"other")) - 61
    parts = [raw[61 : 61 + first], raw[61 + first :]]
    head = bytearray(raw[:61])
    head[22] |= Codec.GZIP
    packed = b"".join(bytes(deflate(Codec.GZIP, as_array(part))) for part in parts)
    found = found_in(written(tmp_path / FIRST, with_tail(bytes(head), packed)))
    assert (counted(found), found.records, found.regions) == ((1, 0, 0, 0), 2, ())


def test_bytes_behind_the_last_record_are_searched_and_opaque(tmp_path: Path) -> None:
    """Kafka refuses them when they are produced; in a file there may be anything."""
    raw = with_tail(others(0), HIDDEN)
    found = found_in(written(tmp_path / FIRST, raw))
    assert (counted(found)[3], found.regions) == (
        1, (Region(0, len(raw), "records do not parse", opaque=True),)
    )  # fmt: skip


def test_a_damaged_batch_with_bytes_that_nobody_reads_is_opaque(tmp_path: Path) -> None:
    raw = with_tail(others(0, codec=Codec.GZIP), b"x" * 30)
    for bad in (damaged(raw), damaged(others(0, codec=Codec.GZIP), at=18)):
        [region] = found_in(written(tmp_path / FIRST, bad, others(9))).regions
        assert region.opaque == (len(bad) == len(raw))


def test_a_damaged_codec_makes_no_uncompressed_batch(tmp_path: Path) -> None:
    """One bit more, and a batch says of itself that it is not compressed."""
    raw = bytearray(batch(0, *[KEY] * 50, codec=Codec.GZIP))
    raw[22] = 0
    [region] = found_in(written(tmp_path / FIRST, bytes(raw), others(60))).regions
    assert (region.start, region.end, region.opaque) == (0, len(raw), True)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
def test_of_a_wrapper_its_own_key_and_its_tail_are_searched(
    magic: int, codec: Codec, tmp_path: Path
) -> None:
    messages = [Message(10, 5, b"other", b"v"), Message(11, 5, b"other", b"v")]
    raw = build_messages(messages, MessageSpec(magic, codec))
    key_at = 26 if magic else 18
    value = raw[key_at + 8 :]
    for own, tail in ((KEY, b""), (None, HIDDEN), (KEY, HIDDEN), (None, b"")):
        fields = struct.pack(">i", -1) if own is None else struct.pack(">i", len(own)) + own
        fields += struct.pack(">i", len(value + tail)) + value + tail
        covered = raw[16:key_at] + fields
        head = raw[:8] + struct.pack(">iI", len(covered) + 4, zlib.crc32(covered))
        found = found_in(written(tmp_path / FIRST, head + covered))
        hidden = (own is not None) + bool(tail)
        assert (counted(found), found.records) == ((0, 0, 0, hidden), 2)
        assert [region.opaque for region in found.regions] == [True] * hidden


def with_crc(raw: bytearray) -> bytes:
    struct.pack_into(">I", raw, 17, crc32c(as_array(bytes(raw)), 21, len(raw)))
    return bytes(raw)


def test_reading_goes_on_behind_a_damaged_length(tmp_path: Path) -> None:
    raw = bytearray(others(0))
    struct.pack_into(">i", raw, 8, 1 << 20)
    path = written(tmp_path / FIRST, bytes(raw), batch(5, KEY, codec=Codec.ZSTD), others(6))
    found = found_in(path)
    assert counted(found) == (1, 0, 0, 0)
    [region] = found.regions
    assert (region.start, region.end, region.opaque) == (0, len(raw), False)


def test_a_damaged_header_of_whatever_batch_is_opaque(tmp_path: Path) -> None:
    raw = batch(0, KEY, codec=Codec.GZIP)
    path = written(tmp_path / FIRST, damaged(raw, 16), others(5))
    assert [region.opaque for region in found_in(path).regions] == [True]


def test_what_follows_a_damaged_batch_without_being_one_is_opaque(tmp_path: Path) -> None:
    plain, packed = damaged(others(0)), damaged(batch(5, KEY, codec=Codec.GZIP), 16)
    [region] = found_in(written(tmp_path / FIRST, plain, packed, others(6))).regions
    assert (region.start, region.end, region.opaque) == (0, len(plain) + len(packed), True)


def test_batches_are_found_in_any_file_behind_anything(tmp_path: Path) -> None:
    for junk in (b"", b"\0" * 5000, bytes(range(256)) * 40, b"\2" * 999):
        path = written(tmp_path / "anything", junk, batch(0, KEY, codec=Codec.LZ4), junk)
        found = found_in(path)
        assert (counted(found)[0], found.kind) == (1, BATCHES), junk[:9]


def test_a_file_without_batches_is_searched_raw(tmp_path: Path) -> None:
    found = found_in(written(tmp_path / "notes.txt", b"see " + KEY + b"\n"))
    assert (found.kind, counted(found)) == (RAW, (0, 0, 0, 1))
    assert [(r.start, r.opaque) for r in found.regions] == [(0, False)]


def test_zeros_are_no_key(tmp_path: Path) -> None:
    path = written(tmp_path / FIRST, others(0), bytes(3000))
    found = found_in(path, make_search([bytes(8)]))
    assert found.counts == ()
    assert [(r.zeros, r.opaque) for r in found.regions] == [(True, False)]


def test_a_batch_larger_than_the_window_is_read(tmp_path: Path) -> None:
    large = batch(5, b"other", KEY, value=os.urandom(3 << 20))
    found = found_in(written(tmp_path / FIRST, others(0), large, others(7)))
    assert (counted(found), found.batches, found.regions) == ((1, 0, 0, 0), 3, ())


def test_what_says_that_it_is_huge_costs_no_memory(tmp_path: Path) -> None:
    raw = bytearray(others(0))
    struct.pack_into(">i", raw, 8, (1 << 31) - 1)
    found = found_in(written(tmp_path / FIRST, bytes(raw), batch(5, KEY)))
    assert counted(found)[0] == 1


def looks_like_a_batch(size: int) -> bytes:
    """The header of one that says it has so many bytes; its checksum is of nothing."""
    head = bytearray(others(0)[:61])
    struct.pack_into(">i", head, 8, size - 12)
    return bytes(head)


def test_what_only_looks_like_batches_is_given_up_on_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / FIRST, others(0), looks_like_a_batch(9000) * 200, batch(5, KEY))
    assert counted(found_in(path))[0] == 1
    monkeypatch.setattr(audit_module, "_TRIED_ALWAYS", 100_000)
    monkeypatch.setattr(audit_module, "_TRIED_RATIO", 0)
    found = found_in(path)
    [region] = found.regions
    assert (region.end, region.opaque, counted(found)) == (found.end, True, (0, 0, 0, 1))
    assert found.pieces[0].sha256 == hashlib.sha256(path.read_bytes()[: found.end]).hexdigest()


def test_of_very_many_places_those_that_hide_something_are_told(tmp_path: Path) -> None:
    plain = b"".join(damaged(others(n)) + others(n + 5) for n in range(REGIONS_MAX + 3))
    path = written(tmp_path / FIRST, plain, damaged(batch(9, KEY, codec=Codec.GZIP), 16))
    found = found_in(path)
    assert (len(found.regions), found.regions_more) == (REGIONS_MAX, 4)
    assert found.regions[-1].opaque


# --- files that change, and parts of files --------------------------------------------------------


class Writing(ManualClock):
    """A clock: while a caller sleeps by it, the rest of a batch is written."""

    def __init__(self, path: Path, rest: bytes) -> None:
        super().__init__(path.stat().st_mtime_ns // 1_000_000)
        self.path, self.rest = path, rest

    def sleep(self, seconds: float) -> None:  # noqa: ARG002
        with self.path.open("ab") as file:
            file.write(self.rest)
        self.rest = b""


def test_a_batch_that_is_just_being_written_is_waited_for(tmp_path: Path) -> None:
    raw = batch(5, KEY, codec=Codec.ZSTD)
    path = written(tmp_path / FIRST, others(0), raw[:65])
    search = make_search([KEY])
    clock = Writing(path, raw[65:])
    unit = AuditUnit(str(tmp_path), FIRST)
    found = audit(unit, search, table_of(search), clock, lambda _: None)
    assert (counted(found), found.regions) == ((1, 0, 0, 0), ())
    assert found.end == path.stat().st_size


def test_parts_of_a_file_come_to_the_same_as_the_whole(tmp_path: Path) -> None:
    parts = [others(0), batch(5, KEY, KEY), damaged(batch(7, KEY)), batch(8, KEY, value=None)]
    path = written(tmp_path / FIRST, *parts)
    cut = len(parts[0]) + len(parts[1])
    whole, first, second = found_in(path), found_in(path, end=cut), found_in(path, start=cut)
    both = joined(first, second)
    assert both == replace(whole, pieces=first.pieces + second.pieces)
    assert [(p.start, p.end) for p in both.pieces] == [(0, cut), (cut, path.stat().st_size)]


def test_a_file_that_is_away_or_no_file_is_a_finding(tmp_path: Path) -> None:
    assert found_in(tmp_path / FIRST).vanished
    (tmp_path / "folder").mkdir()
    assert "cannot be read" in (found_in(tmp_path / "folder").problem or "")


def test_it_is_told_how_much_was_looked_through(tmp_path: Path) -> None:
    path = written(tmp_path / FIRST, others(0), damaged(batch(5, KEY)), others(6), b"cut")
    reported: list[int] = []
    search = make_search([KEY])
    audit(
        AuditUnit(str(tmp_path), FIRST), search, table_of(search), ManualClock(NOW), reported.append
    )
    assert sum(reported) == path.stat().st_size


@pytest.mark.parametrize("codec", CODECS)
def test_what_recovery_keeps_of_a_torn_batch_is_as_doubtful_as_before(
    tmp_path: Path, codec: Codec
) -> None:
    """A file of that alone has no sound batch, and its bytes are compressed all the same."""
    torn = batch(5, *(b"other%04d" % n for n in range(50)), KEY, codec=codec)[:-40]
    path = written(tmp_path / "t-0" / FIRST, others(0), torn)
    spec = spec_of(make_search([KEY]), "5a")
    assert judge([looked(tmp_path)], spec, "t").state == NOT_PROVEN
    kept = keep_tail(RealFs(), path.parent, 0, len(others(0)))
    path.write_bytes(others(0))
    assert judge([looked(tmp_path)], spec, "t").state == NOT_PROVEN
    assert kept is not None
    kept.unlink()
    assert judge([looked(tmp_path)], spec, "t").state == PROVEN
