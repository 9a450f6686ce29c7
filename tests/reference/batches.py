"""Batches and their records in pure Python: the twin of `kernels.{scan,decode,legacy}`.

Written from docs/internals/record-batch.md and T-10 … T-12, field by field, with `struct`; no
kernel is called.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from tests.reference import varint
from tests.reference.crc32c import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
FIELDS = (
    "base_offset length leader_epoch magic crc attributes last_delta base_timestamp max_timestamp "
    "producer_id producer_epoch base_sequence count"
).split()
assert HEADER.size == 61

# What `scan` may say of the place where it stopped.
DONE, TRUNCATED, BAD_SIZE, BAD_MAGIC, BAD_CRC, BAD_COUNT = 0, 2, 3, 4, 5, 6


@dataclass(frozen=True)
class Batch:
    """A v2 batch's header and bytes."""

    position: int
    raw: bytes
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_delta

    @property
    def payload(self) -> bytes:
        return self.raw[HEADER.size :]


@dataclass(frozen=True)
class Record:
    """A record as it lies in the plain record bytes of its batch."""

    raw: bytes
    attributes: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    headers_raw: bytes  # count and headers

    def headers(self) -> list[tuple[bytes, bytes | None]]:
        count, at = varint.read(self.headers_raw, 0, len(self.headers_raw), 32)
        out = []
        for _ in range(count):
            name, at = _field(self.headers_raw, at, len(self.headers_raw))
            assert name is not None
            value, at = _field(self.headers_raw, at, len(self.headers_raw))
            out.append((name, value))
        assert at == len(self.headers_raw)
        return out


@dataclass(frozen=True)
class Message:
    """A v0 or v1 message: its fields as a row of BATCH has them, and its bytes."""

    position: int
    raw: bytes
    magic: int
    base_offset: int
    crc: int
    attributes: int
    base_timestamp: int

    @property
    def length(self) -> int:
        return len(self.raw) - 12

    @property
    def last_offset(self) -> int:
        return self.base_offset

    @property
    def max_timestamp(self) -> int:
        return self.base_timestamp

    producer_id = producer_epoch = leader_epoch = base_sequence = count = -1


def messages(data: bytes, magic: int) -> list[tuple[int, int, bytes | None, bytes | None]] | None:
    """(offset, timestamp, key, value) of plain messages; None where they do not parse."""
    at, out = 0, []
    while at < len(data):
        if len(data) - at < 12:
            return None
        offset, length = struct.unpack_from(">qi", data, at)
        raw = data[at + 12 : at + 12 + length]
        if length < 6 or len(raw) < length or raw[4] != magic or raw[5] & 7:
            return None
        if zlib.crc32(raw[4:]) != int.from_bytes(raw[:4], "big"):
            return None
        fields = raw[6:]
        timestamp = -1
        if magic:
            if len(fields) < 8:
                return None
            timestamp = int.from_bytes(fields[:8], "big", signed=True)
            fields = fields[8:]
        pair = []
        for _ in range(2):
            if len(fields) < 4:
                return None
            length = int.from_bytes(fields[:4], "big", signed=True)
            if length < -1 or length > len(fields) - 4:
                return None
            pair.append(None if length < 0 else fields[4 : 4 + length])
            fields = fields[4 + max(length, 0) :]
        if fields:
            return None
        out.append((offset, timestamp, *pair))
        at += 12 + len(raw)
    return out


def scan(data: bytes, *, check_crc: bool = True) -> tuple[list[Batch | Message], int, int]:
    """(batches and messages, position where it stopped, why)."""
    at = 0
    found: list[Batch | Message] = []
    while at < len(data):
        if len(data) - at < 12:
            return found, at, TRUNCATED
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
        if size < 26:
            return found, at, BAD_SIZE
        raw = data[at : at + size]
        if len(raw) < size:
            return found, at, TRUNCATED
        magic = raw[16]
        if magic > 2:
            return found, at, BAD_MAGIC
        if magic < 2:
            if size < (26, 34)[magic]:
                return found, at, BAD_SIZE
            offset, crc = int.from_bytes(raw[:8], "big", signed=True), raw[12:16]
            if check_crc and zlib.crc32(raw[16:]) != int.from_bytes(crc, "big"):
                return found, at, BAD_CRC
            timestamp = int.from_bytes(raw[18:26], "big", signed=True) if magic else -1
            crc_stored = int.from_bytes(crc, "big")
            found.append(Message(at, raw, magic, offset, crc_stored, raw[17], timestamp))
        else:
            if size < HEADER.size:
                return found, at, BAD_SIZE
            batch = Batch(at, raw, *HEADER.unpack_from(raw))
            if check_crc and crc32c(raw[21:]) != batch.crc:
                return found, at, BAD_CRC
            if batch.last_delta < 0 or batch.count < 0:
                return found, at, BAD_COUNT
            found.append(batch)
        at += size
    return found, at, DONE


def records(plain: bytes, count: int) -> list[Record] | int:
    """The records, or how many parse before one does not (`count`: bytes are left over)."""
    at = 0
    out: list[Record] = []
    for n in range(count):
        try:
            record, at = _record(plain, at)
        except (varint.BadVarint, BadRecord):
            return n
        out.append(record)
    return out if at == len(plain) else count


class BadRecord(ValueError):
    """A length that does not fit."""


def _record(plain: bytes, at: int) -> tuple[Record, int]:
    start = at
    length, at = varint.read(plain, at, len(plain), 32)
    end = at + length
    if length < 6 or end > len(plain):  # six one-byte fields are the least
        raise BadRecord
    attributes = plain[at]
    timestamp_delta, at = varint.read(plain, at + 1, end, 64)
    offset_delta, at = varint.read(plain, at, end, 32)
    key, at = _field(plain, at, end)
    value, at = _field(plain, at, end)
    if at >= end:  # not even a header count
        raise BadRecord
    raw = plain[start:end]
    return Record(raw, attributes, timestamp_delta, offset_delta, key, value, plain[at:end]), end


def _field(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = varint.read(data, at, end, 32)
    if length == -1:
        return None, at
    if length < -1 or at + length > end:
        raise BadRecord
    return data[at : at + length], at + length
