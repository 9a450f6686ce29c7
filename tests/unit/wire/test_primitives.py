"""Varints, tags and arrays, by examples and at their edges."""

from __future__ import annotations

import struct
import uuid

import pytest

from lapse.wire.primitives import (
    COMPACT,
    Lie,
    compact,
    fixed_array,
    read_uvarint,
    skip_tags,
    uuid_of,
    uvarint,
)

# KIP-482's encoding: seven bits a byte, lowest first.
VARINTS = {
    0: "00",
    1: "01",
    0x7F: "7f",
    0x80: "8001",
    300: "ac02",
    0x3FFF: "ff7f",
    0x4000: "808001",
    2**31 - 1: "ffffffff07",
    2**32 - 1: "ffffffff0f",
}


@pytest.mark.parametrize("value", VARINTS)
def test_uvarint_both_ways(value: int) -> None:
    data = bytes.fromhex(VARINTS[value])
    assert uvarint(value) == data
    assert read_uvarint(memoryview(b"?" + data + b"?"), 1) == (value, 1 + len(data))


def test_a_varint_has_at_most_five_bytes() -> None:
    with pytest.raises(Lie, match="5 bytes"):
        read_uvarint(memoryview(b"\x80" * 20), 0)
    with pytest.raises(IndexError):
        read_uvarint(memoryview(b"\x80" * 4), 0)


def test_the_table_of_compact_lengths_is_what_compact_computes() -> None:
    assert list(COMPACT) == [compact(n) for n in range(127)]
    assert {len(data) for data in COMPACT} == {1}
    assert len(compact(127)) == 2


def test_tags_may_not_reach_past_the_end() -> None:
    assert skip_tags(memoryview(b"\5\2ab\7\0!"), 0, 2) == 6
    with pytest.raises(Lie, match="tagged field 5: 2 bytes, 1 left"):
        skip_tags(memoryview(b"\5\2a"), 0, 1)
    with pytest.raises(IndexError):
        skip_tags(memoryview(b"\5\2ab"), 0, 2)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 126, 127, 1000])
@pytest.mark.parametrize("flexible", [False, True])
def test_int_arrays(count: int, flexible: bool) -> None:
    values = range(count)
    head = uvarint(count + 1) if flexible else struct.pack(">i", count)
    body = b"".join(struct.pack(">i", value) for value in values)
    assert fixed_array("i", flexible=flexible)(values) == head + body


def test_uuids_are_cached() -> None:
    raw = bytes(range(16))
    assert uuid_of(raw) == uuid.UUID(bytes=raw)
    assert uuid_of(bytes(bytearray(raw))) is uuid_of(raw)
