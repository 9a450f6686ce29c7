"""Make a v2 batch from records: for tools, tests and whatever writes few records.

What Kafka calls MemoryRecordsBuilder.

Bulk writers use kernels; this one is for being obviously right.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lapse.kernels.crc32c import crc32c
from lapse.kernels.layout import (
    ATTRIBUTES,
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    RECORD_TOMBSTONE,
    TRANSACTIONAL,
    VALUED_TOMBSTONES,
)
from lapse.records.compression import deflate
from lapse.records.layout import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Codec,
    TimestampType,
)

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to be written.

    Attributes:
        offset_delta: None means its place in the list.
        tombstone: it says so itself, whatever its value (KIP-87); the batch then says so too.
    """

    key: bytes | None
    value: bytes | None
    timestamp: int = 0
    headers: tuple[Header, ...] = ()
    offset_delta: int | None = None
    tombstone: bool = False


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """The header fields of a batch to be built; what is not said is worked out."""

    base_offset: int = 0
    codec: Codec = Codec.NONE
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    append_time: int = NO_TIMESTAMP  # max timestamp of a LogAppendTime batch
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    leader_epoch: int = 0
    transactional: bool = False
    control: bool = False
    horizon_ms: int | None = None
    last_offset_delta: int | None = None
    attributes_more: int = 0  # further bits, for tests of what must be refused


def varint(value: int) -> bytes:
    """Zig-zag encoding of a 32- or 64-bit number."""
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw >= 0x80:
        out.append((raw & 0x7F) | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def _field(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def _wrapped(delta: int) -> int:
    """Within 64 bits, as Java's long: times may lie further apart, and readers wrap them back."""
    return (delta + (1 << 63)) % (1 << 64) - (1 << 63)


def _record(record: NewRecord, offset_delta: int, base_timestamp: int) -> bytes:
    attributes = b"%c" % (RECORD_TOMBSTONE * record.tombstone)
    body = attributes + varint(_wrapped(record.timestamp - base_timestamp)) + varint(offset_delta)
    body += _field(record.key) + _field(record.value) + varint(len(record.headers))
    for name, value in record.headers:
        body += _field(name.encode()) + _field(value)
    return varint(len(body)) + body


def build_batch(records: Sequence[NewRecord], spec: BatchSpec | None = None) -> bytes:
    """One batch on the wire and on disk, CRC included."""
    spec = spec or BatchSpec()
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    if spec.horizon_ms is not None:
        base_timestamp = spec.horizon_ms
    deltas = [n if r.offset_delta is None else r.offset_delta for n, r in enumerate(records)]
    plain = b"".join(
        _record(r, delta, base_timestamp) for r, delta in zip(records, deltas, strict=True)
    )
    append_time = spec.timestamp_type is TimestampType.LOG_APPEND_TIME
    greatest = max((r.timestamp for r in records), default=NO_TIMESTAMP)
    last_delta = (
        max(deltas, default=0) if spec.last_offset_delta is None else spec.last_offset_delta
    )
    attributes = (
        spec.codec
        | LOG_APPEND_TIME * append_time
        | TRANSACTIONAL * spec.transactional
        | CONTROL * spec.control
        | DELETE_HORIZON * (spec.horizon_ms is not None)
        | VALUED_TOMBSTONES * any(r.tombstone for r in records)
        | spec.attributes_more
    )
    covered = struct.pack(
        ">hiqqqhii",
        attributes - 0x10000 if attributes > 0x7FFF else attributes,
        last_delta,
        base_timestamp,
        spec.append_time if append_time else greatest,
        spec.producer_id,
        spec.producer_epoch,
        spec.base_sequence,
        len(records),
    ) + bytes(deflate(spec.codec, np.frombuffer(plain, np.uint8)))
    crc = crc32c(np.frombuffer(covered, np.uint8), 0, len(covered))
    length = ATTRIBUTES - 12 + len(covered)
    head = struct.pack(">qiibI", spec.base_offset, length, spec.leader_epoch, 2, crc)
    assert len(head) == ATTRIBUTES
    assert ATTRIBUTES + 40 == HEADER_SIZE
    return head + covered
