"""Batches in a buffer, their records, and the builder that made them."""

from __future__ import annotations

import struct
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.base.errors import CorruptData
from lapse.kernels.layout import BATCH, CODEC_MASK
from lapse.records import batch
from lapse.records.batch import (
    Buffer,
    Record,
    as_array,
    decode_rows,
    records_of,
    scan_batches,
    scan_prefix,
)
from lapse.records.builder import BatchSpec, NewRecord, build_batch, varint
from lapse.records.control import control_type, coordinator_epoch
from lapse.records.layout import Codec, TimestampType, horizon_of, timestamp_type_of
from tests.property.strategies import new_records, specs
from tests.reference import batches as twin
from tests.reference import varint as varint_twin
from tests.reference.crc32c import crc32c

ONE = build_batch([NewRecord(b"k", b"v", 7)], BatchSpec(base_offset=5))


def read(data: Buffer) -> list[Record]:
    return [r for row in scan_batches(data, "t-0") for r in records_of(data, row, "t-0")]


@given(st.data())
def test_what_was_built_is_read(choose: st.DataObject) -> None:
    records = choose.draw(new_records())
    spec = choose.draw(specs(records, choose.draw(st.integers(0, 1 << 60))))
    data = build_batch(records, spec)
    batch = twin.Batch(0, data, *twin.HEADER.unpack_from(data))
    assert crc32c(data[21:]) == batch.crc
    assert batch.length == len(data) - 12
    (row,) = scan_batches(data, "t-0")
    assert int(row["attributes"]) & CODEC_MASK == spec.codec
    assert timestamp_type_of(row) is spec.timestamp_type
    assert horizon_of(row) == spec.horizon_ms
    append_time = spec.timestamp_type is TimestampType.LOG_APPEND_TIME
    got = list(records_of(data, row, "t-0"))
    assert [(r.offset, r.key, r.value, r.headers) for r in got] == [
        (spec.base_offset + (r.offset_delta or 0), r.key, r.value, r.headers) for r in records
    ]
    assert [r.create_time for r in got] == [r.timestamp for r in records]
    assert [r.timestamp for r in got] == [
        spec.append_time if append_time else r.timestamp for r in records
    ]
    assert [r.is_tombstone for r in got] == [r.value is None for r in records]
    assert all(r.attributes == 0 for r in got)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_the_builders_varint(value: int) -> None:
    assert varint(value) == varint_twin.write(value)


@pytest.mark.parametrize(
    "kind", [bytes, bytearray, memoryview, lambda b: np.frombuffer(b, np.uint8)]
)
def test_any_buffer_is_read_where_it_lies(kind: type) -> None:
    buffer = kind(ONE)
    array = as_array(buffer)
    assert not array.flags.writeable
    assert np.shares_memory(array, np.frombuffer(buffer, np.uint8))
    assert [r.key for r in read(buffer)] == [b"k"]


def test_a_writable_buffer_stays_writable() -> None:
    buffer = np.frombuffer(bytearray(ONE), np.uint8)
    as_array(buffer)
    assert buffer.flags.writeable


def test_nothing_is_no_batches() -> None:
    assert len(scan_batches(b"", "t-0")) == 0
    assert scan_prefix(b"")[1:] == (0, None)


def test_more_batches_than_the_first_table_has_rows() -> None:
    rows = scan_batches(ONE * 1000, "t-0")
    assert len(rows) == 1000
    assert rows["position"].tolist() == [n * len(ONE) for n in range(1000)]
    assert rows.dtype == BATCH


@pytest.mark.parametrize("piece", [1, 61, len(ONE), len(ONE) + 1, 1 << 20])
def test_a_scan_in_pieces_comes_to_the_same(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_PIECE_BYTES", piece)
    many = b"".join(build_batch([NewRecord(b"k", b"v" * n)]) for n in range(200))
    cut, broken = many[:-3], many[: 50 * len(ONE)] + b"\xff" * 300 + many
    for data in (b"", ONE, many, cut, broken):
        told: list[int] = []
        rows, position, why = scan_prefix(data, on_piece=partial(told.append, 1))
        whole, *rest = scan_prefix(data)
        assert ([position, why], rows.tolist()) == (rest, whole.tolist())
        assert len(told) >= position // piece - 1


def test_scan_stops_before_what_is_wrong_and_says_what() -> None:
    rows, valid, reason = scan_prefix(ONE * 70 + ONE[:-1])
    assert (len(rows), valid, reason) == (70, 70 * len(ONE), "batch cut off")
    bad = ONE + ONE[:-1] + b"\x07" + ONE
    with pytest.raises(CorruptData, match=rf"t-0: checksum does not match at byte {len(ONE)}") as e:
        scan_batches(bad, "t-0")
    assert (e.value.where, e.value.position) == ("t-0", len(ONE))
    assert len(scan_batches(bad, "t-0", check_crc=False)) == 3


def with_payload(payload: bytes, count: int, attributes: int = 0) -> bytes:
    """ONE with another payload, sound in its header."""
    head = bytearray(ONE[:61])
    struct.pack_into(">i", head, 8, 49 + len(payload))
    struct.pack_into(">h", head, 21, attributes)
    struct.pack_into(">i", head, 23, max(count - 1, 0))
    struct.pack_into(">i", head, 57, count)
    struct.pack_into(">I", head, 17, crc32c(bytes(head[21:]) + payload))
    return bytes(head) + payload


PAYLOAD = ONE[61:]


@pytest.mark.parametrize(
    ("payload", "count", "reason"),
    [
        (PAYLOAD, 2, "2 records in"),
        (PAYLOAD * 2, 1, "record 1 does not parse"),  # bytes left over
        (PAYLOAD[:-1], 1, "record 0 does not parse"),
        (PAYLOAD + bytes(7), 2, "record 1 does not parse"),
        (b"", 1, "1 records in 0 bytes"),
        (PAYLOAD, (1 << 31) - 1, "2147483647 records in"),  # refused before memory is asked for
    ],
)
def test_records_that_do_not_parse(payload: bytes, count: int, reason: str) -> None:
    data = ONE + with_payload(payload, count)
    row = scan_batches(data, "t-0")[1]
    with pytest.raises(CorruptData, match=rf"t-0: {reason}.* at byte {len(ONE)}"):
        decode_rows(data, row, "t-0")


def test_a_payload_that_does_not_inflate() -> None:
    data = with_payload(b"garbage garbage", 1, attributes=Codec.GZIP)
    with pytest.raises(CorruptData, match="t-0: gzip"):
        read(data)
    data = with_payload(PAYLOAD, 1, attributes=5)
    with pytest.raises(CorruptData, match="unknown codec 5"):
        read(data)


@pytest.mark.parametrize(
    "headers",
    [
        b"\x02",  # one header, none there
        b"\x00\x00",  # none, but a byte is left over
        b"\x01",  # minus one
        b"\x02\x01\x01",  # a name that is null
        b"\x02\x04a\x01",  # a name longer than what is left
        b"\x02\x02a\x04b",  # a value longer than what is left
        b"\x02\x02a\x03",  # a value of length -2
        b"\x80\x80\x80\x80\x10\x02",  # two hundred million
    ],
)
def test_headers_that_do_not_parse(headers: bytes) -> None:
    body = bytes(3) + b"\x01\x01" + headers
    with pytest.raises(CorruptData, match="record headers do not parse"):
        read(with_payload(varint(len(body)) + body, 1))


def test_headers_may_repeat_be_empty_and_null() -> None:
    headers = (("", b""), ("a", None), ("a", b"x"), ("ключ", b"\xff"))
    assert read(build_batch([NewRecord(None, None, 0, headers)]))[0].headers == headers


# --- header bits and control records --------------------------------------------------------------


def test_base_timestamp_is_the_horizon_only_where_bit_6_is_set() -> None:
    """H-1: and the records' times read the same all the same."""
    record = NewRecord(b"k", None, 1000)
    (row,) = scan_batches(build_batch([record], BatchSpec(horizon_ms=77)), "t-0")
    assert (row["base_timestamp"], horizon_of(row)) == (77, 77)
    assert read(build_batch([record], BatchSpec(horizon_ms=77)))[0].timestamp == 1000
    (row,) = scan_batches(build_batch([record]), "t-0")
    assert (row["base_timestamp"], horizon_of(row)) == (1000, None)


def test_bit_6_means_nothing_in_an_old_format() -> None:
    row = np.zeros(1, BATCH)[0]
    row["magic"], row["attributes"] = 1, 0x40
    assert horizon_of(row) is None


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (struct.pack(">hh", 0, 0), "ABORT"),
        (struct.pack(">hh", 0, 1), "COMMIT"),
        (struct.pack(">hh", 0, 2), "LEADER_CHANGE"),
        (struct.pack(">hh", 7, 6) + b"more", "KRAFT_VOTERS"),
        (struct.pack(">hh", 0, 99), "UNKNOWN"),
        (b"\0\0\0", "UNKNOWN"),
        (None, "UNKNOWN"),
    ],
)
def test_control_records(key: bytes | None, name: str) -> None:
    assert control_type(key) == name


def test_coordinator_epoch() -> None:
    assert coordinator_epoch(struct.pack(">hi", 0, 12)) == 12
    assert coordinator_epoch(b"\0\0\0\0\0") == -1
    assert coordinator_epoch(None) == -1
