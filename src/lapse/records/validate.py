"""What a producer may append: T-1…T-8 and H-8, decided before a byte is written.

What Kafka calls LogValidator.

`check_produced` takes the records of one partition of a Produce request and gives back the batch
ready to be appended (its base offset still to be set), or raises `RefusedBatch`: a batch is
accepted whole or not at all, and the client learns which records were to blame.

The way of nearly every batch is: header fields by `struct`, checksum and records by one kernel
each, no object a record. What old producers send (v0, v1) is made a v2 batch first (`convert`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.base.config import TopicConfig
from lapse.base.errors import CorruptData, ErrorCode, KafkaError
from lapse.kernels import decode as kernel
from lapse.kernels import scan
from lapse.kernels.crc32c import crc32c
from lapse.kernels.keep import finish_batch
from lapse.kernels.layout import (
    ATTRIBUTES,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP,
    RECORD_TOMBSTONE,
    TRANSACTIONAL,
    VALUED_TOMBSTONES,
)
from lapse.records.as_sent import AsSent, as_sent
from lapse.records.batch import Header, as_array, decode_rows, row_of, scan_prefix
from lapse.records.compression import BadCompression, deflate, has_linked_blocks, inflate
from lapse.records.convert import needs_v2, to_batch
from lapse.records.layout import (
    KNOWN_ATTRIBUTES,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    Codec,
    TimestampType,
)
from lapse.records.timestamps import allowed_range
from lapse.records.tombstone import bits_agree, without_values

RecordErrors = tuple[tuple[int, str], ...]

# What `kernels.decode.check_records` finds, for the client. INVALID_TIMESTAMP wins (T-1).
_FAULTS = {
    kernel.UNPARSABLE: (ErrorCode.INVALID_RECORD, "the record does not parse"),
    kernel.BAD_OFFSET_DELTA: (ErrorCode.INVALID_RECORD, "offset deltas must be 0, 1, 2 …"),
    kernel.KEYLESS: (
        ErrorCode.INVALID_RECORD,
        "compacted topics (cleanup.policy) take no record without a key",
    ),
    kernel.BAD_TIMESTAMP: (
        ErrorCode.INVALID_TIMESTAMP,
        "the timestamp is outside message.timestamp.before.max.ms / .after.max.ms",
    ),
}
_LIVE_NULL = "a null value without the flag, beside flagged tombstones (KIP-87)"
_ONE_BATCH = "a Produce request carries exactly one batch"
_HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET_MAX = (1 << 63) - 1


class RefusedBatch(KafkaError):
    """A batch that was not appended; `record_errors` are (index in the batch, why)."""

    def __init__(self, code: ErrorCode, message: str, record_errors: RecordErrors = ()) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


@dataclass(frozen=True, slots=True)
class CheckedBatch:
    """One batch that may be appended.

    Attributes:
        data: the v2 batch, writable; its base offset and leader epoch are for the log to set.
        header: its fields, with the base offset the producer gave it (0, in practice).
        tombstones: null values among its records.
        log_append_time_ms: the append time written into it, or -1 on a CreateTime topic.
        write_magic: the format the log is to write it in (`message.format.version`).
        values_dropped: flagged values (KIP-87) that the topic does not keep: they are null now.
        sent: messages of an old format that are stored as they came; `data` is no batch then.
    """

    data: bytearray | memoryview
    header: Header
    tombstones: int
    log_append_time_ms: int
    write_magic: int = 2
    values_dropped: int = 0
    sent: AsSent | None = None


def check_produced(
    records: bytes | bytearray | memoryview, topic: TopicConfig, now_ms: int, where: str
) -> CheckedBatch:
    """The one batch in `records`, checked and with its times set; raises RefusedBatch.

    `where` (the topic-partition) opens every message.
    """
    data = memoryview(records)
    if len(data) > MAGIC and data[MAGIC] < 2:
        rows = _messages_of(data, where)
        kept = _kept(data, rows, topic, where)
        if kept is not None:
            return _check_kept(kept, topic, now_ms, where)
        data = _upgraded(data, rows, where)
    buf = as_array(data)
    header = _header(data, buf, where)
    _check_header(header, topic, where)
    dropped = 0
    if header.attributes & VALUED_TOMBSTONES or topic.tombstone_values_enable:
        data, header, dropped = _settled_tombstones(data, header, topic, where)
        buf = as_array(data)
    plain = _check_records(buf, header, topic, now_ms, where)
    if topic.message_format_version < 2:
        _check_old_format(data, header, topic, where)
    if data.readonly:
        data = memoryview(bytearray(data))
    wanted = _target_codec(topic, header.attributes & CODEC_MASK)
    if wanted != header.attributes & CODEC_MASK:
        data, header = _recompressed(data, plain.records, wanted, header, topic, where)
    header = _set_times(data, header, topic, now_ms, plain.timestamp_greatest)
    append_time_ms = header.max_timestamp if header.attributes & LOG_APPEND_TIME else NO_TIMESTAMP
    return CheckedBatch(
        data, header, plain.tombstones, append_time_ms, topic.message_format_version, dropped
    )


# --- the batch ------------------------------------------------------------------------------------


def _messages_of(data: memoryview, where: str) -> NDArray[np.void]:
    """Rows of BATCH of the messages and wrappers that a producer of v0 or v1 sent."""
    rows, position, reason = scan_prefix(data)
    if reason is not None:
        raise RefusedBatch(ErrorCode.CORRUPT_MESSAGE, f"{where}: {reason} at byte {position}")
    if (rows["magic"] > 1).any():
        raise RefusedBatch(ErrorCode.INVALID_RECORD, f"{where}: formats are mixed")
    return rows


def _upgraded(data: memoryview, rows: NDArray[np.void], where: str) -> memoryview:
    """The same as one v2 batch (T-8: numbered anew)."""
    try:
        return memoryview(bytearray(to_batch(data, rows, where)))
    except CorruptData as e:
        raise RefusedBatch(ErrorCode.CORRUPT_MESSAGE, str(e)) from e


def _header(data: memoryview, buf: NDArray[np.uint8], where: str) -> Header:
    """The fields of the one v2 batch that `data` is, its checksum and sizes checked."""
    if not data:
        raise RefusedBatch(ErrorCode.INVALID_RECORD, f"{where}: {_ONE_BATCH}")
    if len(data) < HEADER_SIZE:
        raise RefusedBatch(ErrorCode.CORRUPT_MESSAGE, f"{where}: batch cut off")
    (
        base_offset, length, leader_epoch, magic, crc, attributes, last_delta, base_timestamp,
        max_timestamp, producer_id, producer_epoch, base_sequence, count,
    ) = _HEADER.unpack_from(data)  # fmt: skip
    size = LOG_OVERHEAD + length
    code, why = ErrorCode.CORRUPT_MESSAGE, ""
    if size < HEADER_SIZE:
        why = scan.REASONS[scan.BAD_SIZE]
    elif size > len(data):
        why = scan.REASONS[scan.TRUNCATED]
    elif magic != 2:
        code, why = ErrorCode.INVALID_RECORD, scan.REASONS[scan.BAD_MAGIC]
    elif crc32c(buf, ATTRIBUTES, size) != crc:
        why = scan.REASONS[scan.BAD_CRC]
    elif size != len(data):
        code, why = ErrorCode.INVALID_RECORD, _ONE_BATCH
    elif last_delta < 0 or count < 0 or base_offset > _OFFSET_MAX - last_delta:
        code, why = ErrorCode.INVALID_RECORD, scan.REASONS[scan.BAD_COUNT]
    if why:
        raise RefusedBatch(code, f"{where}: {why}")
    return Header(
        0, size, base_offset, base_offset + last_delta, base_timestamp, max_timestamp, producer_id,
        crc, leader_epoch, base_sequence, count, attributes, producer_epoch, magic,
    )  # fmt: skip


def _check_header(header: Header, topic: TopicConfig, where: str) -> None:
    """Refuse what the header alone shows to be wrong."""
    attributes = header.attributes
    odd = (
        header.size > topic.max_message_bytes
        or header.count < 1
        or header.last_offset - header.base_offset != header.count - 1
        or header.producer_id != NO_PRODUCER_ID
        or attributes & ~CODEC_MASK
        or attributes & CODEC_MASK > Codec.ZSTD
    )
    if odd:  # nearly never: the words are put together only then
        _look_closer(header, topic, where)


def _look_closer(header: Header, topic: TopicConfig, where: str) -> None:
    attributes = header.attributes
    has_producer = header.producer_id > NO_PRODUCER_ID  # of any other negative one, as Kafka
    invalid = ErrorCode.INVALID_RECORD
    refusals = (
        (header.size > topic.max_message_bytes, ErrorCode.MESSAGE_TOO_LARGE,
         f"the batch has {header.size} bytes, max.message.bytes is {topic.max_message_bytes}"),
        (attributes & CONTROL, invalid, "clients may not write control batches"),
        (attributes & DELETE_HORIZON, invalid, "clients may not set a delete horizon (bit 6)"),
        (attributes & ~KNOWN_ATTRIBUTES, invalid,
         f"unknown attribute bits {attributes & 0xFFFF & ~KNOWN_ATTRIBUTES:#x}"),
        (attributes & CODEC_MASK > Codec.ZSTD, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
         f"unknown codec {attributes & CODEC_MASK}"),
        (header.count < 1 or header.last_offset - header.base_offset != header.count - 1, invalid,
         "the record count does not fit the offset range"),
        (has_producer and (header.base_sequence < 0 or header.producer_epoch < 0), invalid,
         "an idempotent batch needs a sequence and an epoch"),
        (attributes & TRANSACTIONAL and not has_producer, invalid,
         "a transactional batch needs a producer id"),
        (attributes & LOG_APPEND_TIME
         and (topic.message_timestamp_type == TimestampType.LOG_APPEND_TIME
              or header.max_timestamp == NO_TIMESTAMP),  # T-2
         ErrorCode.INVALID_TIMESTAMP, "producers may not set the LogAppendTime bit"),
    )  # fmt: skip
    for refused, code, why in refusals:
        if refused:
            raise RefusedBatch(code, f"{where}: {why}")


def _settled_tombstones(
    data: memoryview, header: Header, topic: TopicConfig, where: str
) -> tuple[memoryview, Header, int]:
    """KIP-87: bits that agree where the topic knows them, else null for a flagged value.

    The number says how many values were dropped so.
    """
    if not topic.tombstone_values_enable and not topic.compacts:
        return data, header, 0  # the flag has no effect there
    row = row_of(header)
    try:
        _, records = decode_rows(data, row, where)
        if not bits_agree(row, records):
            raise RefusedBatch(
                ErrorCode.INVALID_RECORD,
                f"{where}: batch and records do not agree on tombstones with values (KIP-87)",
            )
        if header.attributes & VALUED_TOMBSTONES:
            _check_nulls(records, where)
        if topic.tombstone_values_enable:
            return data, header, 0
        flagged = records["attributes"] & RECORD_TOMBSTONE != 0
        dropped = int((flagged & (records["value_length"] >= 0)).sum())
        data = memoryview(without_values(data, row, where))
    except CorruptData as e:
        raise RefusedBatch(ErrorCode.INVALID_RECORD, str(e)) from e
    return data, _header(data, as_array(data), where), dropped


def _check_nulls(records: NDArray[np.void], where: str) -> None:
    """Refuse a null value that is to be no tombstone; only a batch that has the flag can say so."""
    alive = (records["attributes"] & RECORD_TOMBSTONE == 0) & (records["value_length"] < 0)
    errors = tuple((int(n), _LIVE_NULL) for n in np.flatnonzero(alive))
    if errors:
        message = f"{where}: record {errors[0][0]} of the batch: {_LIVE_NULL}"
        raise RefusedBatch(ErrorCode.INVALID_RECORD, message, errors)


def _check_old_format(data: memoryview, header: Header, topic: TopicConfig, where: str) -> None:
    """Refuse what would be lost in v0 or v1."""
    why = needs_v2(data, row_of(header), where)
    if why is None and topic.tombstone_values_enable and header.attributes & VALUED_TOMBSTONES:
        why = "a tombstone with a value (KIP-87)"  # it would come to life
    if why is not None:
        raise RefusedBatch(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"{where}: {why} in message format v{topic.message_format_version}; "
            "message.format.version must be 0.11 or later",
        )


# --- old formats that stay ----------------------------------------------------------------------


def _kept(
    data: memoryview, rows: NDArray[np.void], topic: TopicConfig, where: str
) -> AsSent | None:
    """The messages, if they may be stored as they came: the topic's own format and codec."""
    if (rows["magic"] != topic.message_format_version).any():
        return None
    codecs = set((rows["attributes"] & CODEC_MASK).tolist())
    if any(_target_codec(topic, codec) != codec for codec in codecs):
        return None
    try:
        return as_sent(data, rows, where)
    except CorruptData as e:
        raise RefusedBatch(ErrorCode.CORRUPT_MESSAGE, str(e)) from e


def _check_kept(kept: AsSent, topic: TopicConfig, now_ms: int, where: str) -> CheckedBatch:
    """The same rules for messages that stay what they are; the log says offsets and times."""
    size_max, records = int(kept.sizes.max()), kept.records
    times = records["timestamp_delta"]
    greatest = int(times.max())
    header = Header(
        0, len(kept.data), 0, len(records) - 1, int(times[0]), greatest, NO_PRODUCER_ID, 0, -1, -1,
        len(records), kept.attributes, -1, kept.magic,
    )  # fmt: skip
    if size_max > topic.max_message_bytes or kept.attributes & LOG_APPEND_TIME:
        _look_closer(header._replace(size=size_max), topic, where)
    allowed = allowed_range(topic, now_ms)
    faults = np.zeros(len(records), np.uint8)
    timed = times != NO_TIMESTAMP
    faults[timed & ((times < allowed.least) | (times > allowed.greatest))] = kernel.BAD_TIMESTAMP
    if topic.compacts:
        faults[records["key_length"] < 0] = kernel.KEYLESS
    if faults.any():
        raise _refusal(faults, where)
    nulls = int((records["value_length"] < 0).sum())
    append_time = topic.message_timestamp_type == TimestampType.LOG_APPEND_TIME
    return CheckedBatch(
        kept.data, header, nulls, now_ms if append_time else NO_TIMESTAMP, kept.magic, sent=kept
    )


# --- its records ----------------------------------------------------------------------------------


class _Plain(NamedTuple):
    records: NDArray[np.uint8]
    timestamp_greatest: int
    tombstones: int


def _check_records(
    buf: NDArray[np.uint8], header: Header, topic: TopicConfig, now_ms: int, where: str
) -> _Plain:
    plain, start = buf, HEADER_SIZE
    if header.attributes & CODEC_MASK:
        try:
            plain, start = inflate(header.attributes & CODEC_MASK, plain[HEADER_SIZE:]), 0
        except BadCompression as e:
            raise RefusedBatch(ErrorCode.CORRUPT_MESSAGE, f"{where}: {e}") from e
        if header.attributes & CODEC_MASK == Codec.LZ4 and has_linked_blocks(buf[HEADER_SIZE:]):
            # Kafka's UNKNOWN_SERVER_ERROR, said so that its producer can mend it.
            raise RefusedBatch(
                ErrorCode.INVALID_RECORD, f"{where}: LZ4 blocks that are not independent"
            )
    count = header.count
    if count * kernel.RECORD_BYTES_MIN > len(plain) - start:
        raise RefusedBatch(
            ErrorCode.INVALID_RECORD, f"{where}: {count} records in {len(plain) - start} bytes"
        )
    times = allowed_range(topic, now_ms)
    faults = np.empty(count, np.uint8)
    bad, greatest, tombstones = kernel.check_records(
        plain, start, len(plain), header.base_timestamp, topic.compacts,
        times.least, times.greatest, faults,
    )  # fmt: skip
    if bad:
        raise _refusal(faults, where)
    return _Plain(plain[start:], greatest, tombstones)


def _refusal(faults: NDArray[np.uint8], where: str) -> RefusedBatch:
    indexes = np.flatnonzero(faults)
    errors = tuple((int(i), _FAULTS[int(faults[i])][1]) for i in indexes)
    codes = {_FAULTS[int(fault)][0] for fault in np.unique(faults[indexes])}
    code = (
        ErrorCode.INVALID_TIMESTAMP
        if ErrorCode.INVALID_TIMESTAMP in codes
        else ErrorCode.INVALID_RECORD
    )
    first = next(i for i in indexes if _FAULTS[int(faults[i])][0] is code)
    message = f"{where}: record {first} of the batch: {_FAULTS[int(faults[first])][1]}"
    return RefusedBatch(code, message, errors)


# --- what the broker changes ----------------------------------------------------------------------


def _target_codec(topic: TopicConfig, sent: int) -> int:
    if topic.compression_type == "producer":
        return sent
    name = "none" if topic.compression_type == "uncompressed" else topic.compression_type
    return Codec[name.upper()]


def _recompressed(
    data: memoryview, plain: NDArray[np.uint8], codec: int, header: Header, topic: TopicConfig,
    where: str,
) -> tuple[memoryview, Header]:  # fmt: skip
    """The same batch with its records under another codec (T-8)."""
    attributes = header.attributes & ~CODEC_MASK | codec
    out = bytearray(data[:HEADER_SIZE]) + deflate(codec, plain)
    struct.pack_into(">h", out, ATTRIBUTES, attributes)
    crc = finish_batch(np.frombuffer(out, np.uint8), 0, len(out))
    header = header._replace(attributes=attributes, size=len(out), crc=crc)
    _check_header(header, topic, where)  # it may be too large now
    return memoryview(out), header


def _set_times(
    data: memoryview, header: Header, topic: TopicConfig, now_ms: int, greatest: int
) -> Header:
    """T-3, T-4: max timestamp and type bit as the topic wants them."""
    append_time = topic.message_timestamp_type == TimestampType.LOG_APPEND_TIME
    attributes = header.attributes & ~LOG_APPEND_TIME | LOG_APPEND_TIME * append_time
    max_timestamp = now_ms if append_time else greatest
    if (attributes, max_timestamp) == (header.attributes, header.max_timestamp):
        return header
    struct.pack_into(">h", data, ATTRIBUTES, attributes)
    struct.pack_into(">q", data, MAX_TIMESTAMP, max_timestamp)
    crc = finish_batch(np.frombuffer(data, np.uint8), 0, len(data))
    return header._replace(attributes=attributes, max_timestamp=max_timestamp, crc=crc)
