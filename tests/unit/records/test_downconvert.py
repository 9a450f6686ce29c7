"""What an old client is given: every record it can be told of, and nothing that would stop it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.base.errors import CorruptData
from lapse.records.batch import Record, records_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.convert import CannotSay
from lapse.records.downconvert import EVERYTHING, Converted, Reads, convert_for, reads_all
from lapse.records.layout import Codec
from lapse.records.legacy import Message, MessageSpec, build_messages
from tests.property.strategies import OLD_CODECS, new_records

V0, V1, UNAWARE = Reads(0), Reads(1), Reads(2, tombstone_values=False)
T = 1_700_000_000_000


def batch(
    offset: int, *values: bytes | None, tombstone: bool = False, codec: Codec = Codec.NONE
) -> bytes:
    records = [NewRecord(b"k%d" % n, v, T + n, tombstone=tombstone) for n, v in enumerate(values)]
    return build_batch(records, BatchSpec(base_offset=offset, codec=codec))


def messages(offset: int, *values: bytes, magic: int = 1, codec: Codec = Codec.NONE) -> bytes:
    found = [Message(offset + n, T + n if magic else -1, b"k", v) for n, v in enumerate(values)]
    return build_messages(found, MessageSpec(magic, codec))


def convert(data: bytes, reads: Reads, offset: int = 0) -> Converted:
    return convert_for(data, scan_batches(data, "t"), reads, offset, "t")


def read(data: bytes) -> list[Record]:
    return [r for row in scan_batches(data, "t") for r in records_of(data, row, "t")]


def magics(data: bytes) -> set[int]:
    return {int(row["magic"]) for row in scan_batches(data, "t")}


@pytest.mark.parametrize(
    ("data", "reads", "right"),
    [
        (batch(0, b"a"), EVERYTHING, True),
        (batch(0, b"a", tombstone=True), EVERYTHING, True),
        (batch(0, b"a"), UNAWARE, True),
        (batch(0, None), UNAWARE, True),
        (batch(0, b"a") + batch(1, b"b", tombstone=True), UNAWARE, False),
        (messages(0, b"a") + batch(1, b"b"), V1, False),
        (messages(0, b"a"), V1, True),
        (messages(0, b"a"), V0, False),
        (messages(0, b"a", magic=0), V0, True),
    ],
)
def test_most_is_read_as_it_is(data: bytes, reads: Reads, right: bool) -> None:
    assert reads_all(scan_batches(data, "t"), reads) == right


@given(
    st.lists(st.tuples(new_records(), st.sampled_from(OLD_CODECS)), min_size=1, max_size=3),
    st.integers(0, 12), st.sampled_from([0, 1]),
)  # fmt: skip
def test_old_clients_get_every_record_from_their_offset_on(
    batches: list[tuple[Sequence[NewRecord], Codec]], offset: int, magic: int
) -> None:
    data, end = b"", 0
    for records, codec in batches:
        data += build_batch(records, BatchSpec(base_offset=end, codec=codec))
        end = max(end, int(scan_batches(data, "t")[-1]["last_offset"]) + 1)
    stored = [r for r in read(data) if r.offset >= offset]
    got = convert(data, Reads(magic), offset)
    found = read(got.data)
    assert [(r.offset, r.key, r.value) for r in found] == [
        (r.offset, r.key, r.value) for r in stored
    ]
    assert [r.timestamp for r in found] == [r.timestamp if magic else -1 for r in stored]
    assert magics(got.data) <= {magic}
    assert got.next_offset == max(end, offset)


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_a_batch_keeps_its_codec(codec: Codec) -> None:
    rows = scan_batches(convert(batch(5, b"a" * 100, b"b" * 100, codec=codec), V1).data, "t")
    assert {int(row["attributes"]) for row in rows} == {codec}
    assert len(rows) == (2 if codec is Codec.NONE else 1)
    assert int(rows[-1]["last_offset"]) == 6


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_v1_becomes_v0(codec: Codec) -> None:
    stored = messages(7, b"a", b"b", codec=codec)
    got = convert(stored, V0, 7)
    assert magics(got.data) == {0}
    assert [(r.offset, r.value) for r in read(got.data)] == [(7, b"a"), (8, b"b")]


def test_what_can_be_read_stays_byte_for_byte() -> None:
    old, new = messages(0, b"a"), batch(1, b"b")
    got = convert(old + new, V1)
    assert got.data.startswith(old)
    assert got.first_size == len(old)
    assert [r.value for r in read(got.data)] == [b"a", b"b"]


def test_control_and_emptied_batches_are_passed_over() -> None:
    control = build_batch(
        [NewRecord(b"\0\0\0\1", b"\0\0\0\0\0\0")],
        BatchSpec(3, producer_id=1, producer_epoch=0, transactional=True, control=True),
    )
    assert convert(control, V0, 3) == Converted(b"", 0, 4)
    got = convert(control + batch(4, b"a"), V0, 3)
    assert [r.offset for r in read(got.data)] == [4]
    assert got.first_size == len(got.data)


def test_a_batch_with_nothing_left_at_the_offset_lets_the_client_go_on() -> None:
    """Compacted: the batch reaches 3, its last record is 1. Kafka gives the wrapper for ever."""
    records = [NewRecord(b"a", b"1", offset_delta=0), NewRecord(b"b", b"2", offset_delta=1)]
    for codec in OLD_CODECS:
        spec = BatchSpec(0, codec=codec, last_offset_delta=3)
        data = build_batch(records, spec) + batch(4, b"c")
        assert [r.offset for r in read(convert(data, V1, 2).data)] == [4]


def test_zstd_ends_it_and_alone_is_refused() -> None:
    zstd = batch(1, b"b", codec=Codec.ZSTD)
    got = convert(batch(0, b"a") + zstd + batch(2, b"c"), V1)
    assert [r.offset for r in read(got.data)] == [0]
    assert got.next_offset == 1
    with pytest.raises(CannotSay, match="zstd"):
        convert(zstd, V1, 1)


def test_damage_ends_it_and_alone_is_told() -> None:
    bad = bytearray(batch(1, b"b" * 20, codec=Codec.GZIP))
    bad[70] ^= 0xFF
    data = batch(0, b"a") + bytes(bad)
    rows = scan_batches(data, "t", check_crc=False)
    assert convert_for(data, rows, V1, 0, "t").next_offset == 1
    with pytest.raises(CorruptData):
        convert_for(data, rows[1:], V1, 1, "t")


@pytest.mark.parametrize("reads", [V0, V1], ids=["v0", "v1"])
def test_a_valued_tombstone_is_null_in_old_formats(reads: Reads) -> None:
    data = batch(0, b"why", b"gone", tombstone=True)
    unaware = Reads(reads.magic_max, tombstone_values=False)
    assert [r.value for r in read(convert(data, unaware).data)] == [None, None]
    assert [r.value for r in read(convert(data, reads).data)] == [b"why", b"gone"]


@pytest.mark.parametrize("codec", Codec)
def test_only_batches_with_valued_tombstones_are_nulled(codec: Codec) -> None:
    plain, flagged = batch(0, b"a", codec=codec), batch(1, b"why", tombstone=True, codec=codec)
    got = convert(plain + flagged + batch(2, b"b"), UNAWARE)
    assert got.data.startswith(plain)
    assert got.data.endswith(batch(2, b"b"))
    assert [(r.offset, r.value, r.flagged) for r in read(got.data)] == [
        (0, b"a", False), (1, None, False), (2, b"b", False),
    ]  # fmt: skip
