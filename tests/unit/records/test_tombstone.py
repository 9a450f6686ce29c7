"""KIP-87's bits, and taking values away from those who would take them for live ones."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.records.batch import decode_rows, headers_of, records_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch, varint
from lapse.records.layout import Codec
from lapse.records.tombstone import bits_agree, holds_valued_tombstones, without_values
from tests.property.strategies import new_records, specs
from tests.reference.crc32c import crc32c


@given(st.data())
def test_only_flagged_records_lose_their_value_and_nothing_else_changes(
    choose: st.DataObject,
) -> None:
    drawn = choose.draw(new_records())
    records = [
        NewRecord(
            r.key, r.value, r.timestamp, r.headers, r.offset_delta, choose.draw(st.booleans())
        )
        for r in drawn
    ]
    spec = choose.draw(specs(records, 50))
    data = build_batch(records, spec)
    (row,) = scan_batches(data, "t")
    assert bits_agree(row, decode_rows(data, row, "t")[1])
    assert holds_valued_tombstones(row) == any(r.tombstone for r in records)
    nulled = bytes(without_values(b"x" * 7 + data, moved(row, 7), "t"))
    expected = [
        NewRecord(r.key, None if r.tombstone else r.value, r.timestamp, r.headers, r.offset_delta)
        for r in records
    ]
    assert nulled == build_batch(expected, spec) or records_differ_only_in_codec(nulled, expected)
    (after,) = headers_of(scan_batches(nulled, "t"))
    (before,) = headers_of(scan_batches(data, "t"))
    changed = {"size", "crc", "attributes"}
    for name in set(before._fields) - changed:
        assert getattr(after, name) == getattr(before, name), name
    assert after.attributes == before.attributes & ~0x4000


def moved(row, by: int):
    row = row.copy()
    row["position"] += by
    return row


def records_differ_only_in_codec(data: bytes, expected: list[NewRecord]) -> bool:
    (row,) = scan_batches(data, "t")
    found = [(r.key, r.value, r.headers) for r in records_of(data, row, "t")]
    return found == [(r.key, r.value, r.headers) for r in expected]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_numbers_longer_than_they_need_be(codec: Codec) -> None:
    """Some encoders pad; where fields are must not be worked out from their values."""
    padded = b"\x84\x80\x00"  # a length of 2 in three bytes
    body = b"\x20\x00\x00" + varint(1) + b"k" + padded + b"vv" + b"\x00"
    plain = bytes([0x80 | len(body) << 1 & 0x7E, 0x80 | len(body) >> 6, 0]) + body
    made = build_batch([NewRecord(b"k", b"vv", 5, tombstone=True)], BatchSpec())
    data = bytearray(made[:61] + plain)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    (row,) = scan_batches(bytes(data), "t")
    assert next(iter(records_of(bytes(data), row, "t"))).flagged
    nulled = bytes(without_values(bytes(data), row, "t"))
    assert nulled == build_batch([NewRecord(b"k", None, 5)], BatchSpec())
