"""Formats v0 and v1 (T-10 to T-12): read whatever old clients and brokers left."""

from __future__ import annotations

import contextlib
import struct
import zlib

import lz4.frame
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.base.errors import CorruptData
from lapse.records.batch import Record, records_of, scan_batches
from lapse.records.layout import Codec, TimestampType, timestamp_type_of
from lapse.records.legacy import Message, MessageSpec, build_messages
from tests.property.strategies import message_sets

CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
THREE = [Message(40, 7, b"a", b"1"), Message(41, 9, None, b""), Message(45, 8, b"", None)]


def read(data: bytes) -> list[Record]:
    return [r for row in scan_batches(data, "t") for r in records_of(data, row, "t")]


def resealed(data: bytearray) -> bytes:
    """One message with its checksum made right again."""
    data[12:16] = zlib.crc32(data[16:]).to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS)
def test_there_and_back(magic: int, codec: Codec) -> None:
    found = read(build_messages(THREE, MessageSpec(magic, codec)))
    times = [m.timestamp if magic else -1 for m in THREE]
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in found] == [
        (m.offset, time, m.key, m.value, ()) for m, time in zip(THREE, times, strict=True)
    ]
    assert [r.is_tombstone for r in found] == [False, False, True]


def test_v0_has_no_timestamp_type_and_v1_has() -> None:
    for magic, kind in ((0, TimestampType.NO_TIMESTAMP_TYPE), (1, TimestampType.CREATE_TIME)):
        (row,) = scan_batches(build_messages(THREE[:1], MessageSpec(magic)), "t")
        assert timestamp_type_of(row) is kind


@pytest.mark.parametrize("codec", CODECS)
def test_t12_inside_a_log_append_time_wrapper_every_message_has_its_time(codec: Codec) -> None:
    spec = MessageSpec(1, codec, TimestampType.LOG_APPEND_TIME, 99)
    data = build_messages(THREE, spec)
    assert timestamp_type_of(scan_batches(data, "t")[0]) is TimestampType.LOG_APPEND_TIME
    assert [r.timestamp for r in read(data)] == [99, 99, 99]


def test_t12_a_wrapper_has_the_greatest_time_inside() -> None:
    (row,) = scan_batches(build_messages(THREE, MessageSpec(1, Codec.GZIP)), "t")
    assert (row["max_timestamp"], row["base_offset"], row["last_offset"]) == (9, 45, 45)


def test_t11_offsets_inside() -> None:
    """v0 counts from nothing, v1 from the wrapper; a wrapper at 0 begins there (old librdkafka)."""
    data = bytearray(build_messages(THREE, MessageSpec(1, Codec.GZIP)))
    assert [r.offset for r in read(bytes(data))] == [40, 41, 45]
    data[:8] = (145).to_bytes(8, "big")  # a broker moves only the wrapper
    assert [r.offset for r in read(bytes(data))] == [140, 141, 145]
    data[:8] = bytes(8)
    assert [r.offset for r in read(bytes(data))] == [0, 1, 5]
    data[:8] = (4).to_bytes(8, "big")
    with pytest.raises(CorruptData, match="a wrapper at offset 4 of 6 messages"):
        read(bytes(data))
    old = bytearray(build_messages(THREE, MessageSpec(0, Codec.GZIP)))
    old[:8] = (145).to_bytes(8, "big")
    assert [r.offset for r in read(bytes(old))] == [40, 41, 45]


FAR = Message(THREE[0].offset + (1 << 31), 0, None, b"far")


def wrapper(value: bytes, *, magic: int = 1, codec: int = Codec.GZIP, offset: int = 5) -> bytes:
    """A wrapper around any bytes."""
    plain = build_messages([Message(offset, 0, None, value)], MessageSpec(magic))
    data = bytearray(plain)
    data[17] |= codec
    return resealed(data)


@pytest.mark.parametrize(
    ("inside", "why"),
    [
        (b"", "without a whole number of messages"),
        (build_messages(THREE, MessageSpec(1))[:-1], "without a whole number of messages"),
        (build_messages(THREE, MessageSpec(0)), "does not parse"),  # another magic
        (build_messages(THREE, MessageSpec(1, Codec.GZIP)), "a wrapper inside a wrapper"),
        (build_messages([THREE[1], THREE[0]], MessageSpec(1)), "do not ascend"),
        (build_messages([THREE[0], FAR], MessageSpec(1)), "further apart"),
        (build_messages(THREE, MessageSpec(1))[:-1] + b"x", "checksum of a message inside"),
    ],
)
def test_what_may_not_be_inside(inside: bytes, why: str) -> None:
    with pytest.raises(CorruptData, match=why):
        read(wrapper(zlib.compress(inside, wbits=31), offset=50))


@pytest.mark.parametrize(
    ("codec", "why"),
    [(Codec.GZIP, "gzip"), (Codec.LZ4, "lz4"), (Codec.SNAPPY, "snappy"), (Codec.ZSTD, "codec 4")],
)
@pytest.mark.parametrize("magic", [0, 1])
def test_what_does_not_inflate(codec: int, why: str, magic: int) -> None:
    with pytest.raises(CorruptData, match=why):
        read(wrapper(b"not compressed at all", magic=magic, codec=codec))


@pytest.mark.parametrize("magic", [0, 1])
def test_a_length_that_does_not_fit(magic: int) -> None:
    good = build_messages([Message(5, 3, b"key", b"value")], MessageSpec(magic))
    key_at = 26 if magic else 18
    for at in (key_at, key_at + 7):
        for length in (-2, 4, 1 << 30, -(1 << 31)):
            data = bytearray(good)
            struct.pack_into(">i", data, at, length)
            with pytest.raises(CorruptData):
                read(resealed(data))
            data[17] |= Codec.GZIP  # the same in a wrapper's own fields
            with pytest.raises(CorruptData):
                read(resealed(data))


def test_a_message_too_short_for_its_format_is_no_message() -> None:
    v0 = bytearray(build_messages([Message(5, 3, None, None)], MessageSpec(0)))
    assert len(read(bytes(v0))) == 1
    v0[16] = 1  # v1 has eight bytes more
    with pytest.raises(CorruptData, match="impossible batch length"):
        read(resealed(v0))


@pytest.mark.parametrize("size", [5, 400, 70_000])
@pytest.mark.parametrize("store_size", [False, True])
def test_lz4_in_v0_has_a_checksum_only_old_readers_believe(size: int, store_size: bool) -> None:
    """Written wrong, as Kafka did; read whatever it says."""
    data = build_messages([Message(0, 0, b"k", b"v" * size)], MessageSpec(0, Codec.LZ4))
    frame_at = data.index(b"\x04\x22\x4d\x18")
    with pytest.raises(RuntimeError, match="ERROR"):
        lz4.frame.decompress(data[frame_at:])
    assert read(data)[0].value == b"v" * size
    inner = build_messages([Message(0, 0, b"k", b"v" * size)], MessageSpec(0))
    right = bytearray(lz4.frame.compress(inner, block_linked=False, store_size=store_size))
    for checksum in (right[14 if store_size else 6], 0):
        right[14 if store_size else 6] = checksum
        assert read(wrapper(bytes(right), magic=0, codec=Codec.LZ4))[0].value == b"v" * size


@given(message_sets(3), st.data())
def test_whatever_is_garbled_is_read_or_refused(data: bytes, choose: st.DataObject) -> None:
    garbled = bytearray(data)
    for _ in range(choose.draw(st.integers(1, 3))):
        garbled[choose.draw(st.integers(16, len(garbled) - 1))] = choose.draw(st.integers(0, 255))
    size = 12 + int.from_bytes(garbled[8:12], "big")
    if size == len(garbled):
        garbled = bytearray(resealed(garbled))
    with contextlib.suppress(CorruptData):
        read(bytes(garbled))


def test_a_wrapper_of_many_is_one_row() -> None:
    many = [Message(n, n, b"k%d" % n, b"v") for n in range(5000)]
    data = build_messages(many, MessageSpec(1, Codec.LZ4))
    assert len(scan_batches(data, "t")) == 1
    assert [r.offset for r in read(data)] == list(range(5000))
    assert np.array_equal([r.timestamp for r in read(data)], range(5000))
