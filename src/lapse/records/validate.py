"""What a producer may append: SEMANTICS T-1…T-8, D and H-8, decided before a byte is written.

`check_produced` takes the records of one partition of a Produce request and gives back the batch
ready to be appended (its base offset still to be set), or raises `RefusedBatch`: a batch is
accepted whole or not at all, and the client learns which records were to blame.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lapse.base.config import TopicConfig
from lapse.base.errors import ErrorCode, KafkaError
from lapse.kernels import decode as kernel
from lapse.kernels import scan
from lapse.kernels.keep import finish_batch
from lapse.kernels.layout import (
    ATTRIBUTES,
    BATCH,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MAX_TIMESTAMP,
    TRANSACTIONAL,
)
from lapse.records.batch import as_array
from lapse.records.compression import BadCompression, deflate, inflate
from lapse.records.layout import (
    KNOWN_ATTRIBUTES,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    Codec,
    TimestampType,
)
from lapse.records.timestamps import allowed_range

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
_SCAN_ERRORS = {
    scan.BAD_CRC: ErrorCode.CORRUPT_MESSAGE,
    scan.TRUNCATED: ErrorCode.CORRUPT_MESSAGE,
    scan.BAD_SIZE: ErrorCode.CORRUPT_MESSAGE,
    scan.BAD_MAGIC: ErrorCode.INVALID_RECORD,
    scan.BAD_COUNT: ErrorCode.INVALID_RECORD,
}


class RefusedBatch(KafkaError):
    """A batch that was not appended; `record_errors` are (index in the batch, why)."""

    def __init__(self, code: ErrorCode, message: str, record_errors: RecordErrors = ()) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


@dataclass(frozen=True, slots=True)
class CheckedBatch:
    """One batch that may be appended.

    Attributes:
        data: the batch, writable; its base offset and leader epoch are for the log to set.
        row: its header as a row of BATCH (position 0, base offset 0).
        tombstones: null values among its records.
        log_append_time_ms: the append time written into it, or -1 on a CreateTime topic.
    """

    data: bytearray | memoryview
    row: np.void
    tombstones: int
    log_append_time_ms: int


def check_produced(
    records: bytes | bytearray | memoryview, topic: TopicConfig, now_ms: int, where: str
) -> CheckedBatch:
    """The one batch in `records`, checked and with its times set; raises RefusedBatch.

    `where` (the topic-partition) opens every message.
    """
    data = memoryview(records)
    row = _header(data, where)
    _check_header(row, len(data), topic, where)
    plain = _check_records(data, row, topic, now_ms, where)
    if data.readonly:
        data = memoryview(bytearray(data))
    wanted = _target_codec(topic, int(row["attributes"]) & CODEC_MASK)
    if wanted != int(row["attributes"]) & CODEC_MASK:
        data = _recompressed(data, plain.records, wanted, row)
    append_time_ms = _set_times(data, row, topic, now_ms, plain.timestamp_greatest)
    return CheckedBatch(data, row, plain.tombstones, append_time_ms)


def _header(data: memoryview, where: str) -> np.void:
    rows = np.zeros(1, BATCH)
    buf = as_array(data)
    n, position, why = scan.scan(buf, 0, len(buf), rows, True)
    if why in _SCAN_ERRORS:
        raise RefusedBatch(_SCAN_ERRORS[why], f"{where}: {scan.REASONS[why]}")
    if n != 1 or position != len(buf):
        raise RefusedBatch(
            ErrorCode.INVALID_RECORD, f"{where}: a Produce request carries exactly one batch"
        )
    row: np.void = rows[0]
    return row


def _check_header(row: np.void, size: int, topic: TopicConfig, where: str) -> None:
    """Refuse what the header alone shows to be wrong."""
    attributes = int(row["attributes"])
    count = int(row["count"])
    has_producer = int(row["producer_id"]) != NO_PRODUCER_ID
    invalid = ErrorCode.INVALID_RECORD
    refusals = (
        (size > topic.max_message_bytes, ErrorCode.MESSAGE_TOO_LARGE,
         f"the batch has {size} bytes, max.message.bytes is {topic.max_message_bytes}"),
        (row["magic"] != 2, invalid, "only message format v2 is taken"),
        (attributes & CONTROL, invalid, "clients may not write control batches"),
        (attributes & DELETE_HORIZON, invalid, "clients may not set a delete horizon (bit 6)"),
        (attributes & ~KNOWN_ATTRIBUTES, invalid,
         f"unknown attribute bits {attributes & 0xFFFF & ~KNOWN_ATTRIBUTES:#x}"),
        (attributes & CODEC_MASK > Codec.ZSTD, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
         f"unknown codec {attributes & CODEC_MASK}"),
        (attributes & TRANSACTIONAL, ErrorCode.INVALID_TXN_STATE,
         "transactions are not supported by this broker version"),
        (count < 1 or int(row["last_offset"]) - int(row["base_offset"]) != count - 1, invalid,
         "the record count does not fit the offset range"),
        (has_producer and (row["base_sequence"] < 0 or row["producer_epoch"] < 0), invalid,
         "an idempotent batch needs a sequence and an epoch"),
        (attributes & LOG_APPEND_TIME
         and (topic.message_timestamp_type == TimestampType.LOG_APPEND_TIME
              or row["max_timestamp"] == NO_TIMESTAMP),  # T-2
         ErrorCode.INVALID_TIMESTAMP, "producers may not set the LogAppendTime bit"),
    )  # fmt: skip
    for refused, code, why in refusals:
        if refused:
            raise RefusedBatch(code, f"{where}: {why}")


@dataclass(frozen=True, slots=True)
class _Plain:
    records: NDArray[np.uint8]
    timestamp_greatest: int
    tombstones: int


def _check_records(
    data: memoryview, row: np.void, topic: TopicConfig, now_ms: int, where: str
) -> _Plain:
    payload = as_array(data)[HEADER_SIZE:]
    try:
        plain = inflate(int(row["attributes"]) & CODEC_MASK, payload)
    except BadCompression as e:
        raise RefusedBatch(ErrorCode.CORRUPT_MESSAGE, f"{where}: {e}") from e
    count = int(row["count"])
    if count > len(plain):
        raise RefusedBatch(
            ErrorCode.INVALID_RECORD, f"{where}: {count} records in {len(plain)} bytes"
        )
    times = allowed_range(topic, now_ms)
    faults = np.zeros(count, np.uint8)
    bad, greatest, tombstones = kernel.check_records(
        plain, 0, len(plain), int(row["base_timestamp"]), topic.compacts,
        times.least, times.greatest, faults,
    )  # fmt: skip
    if bad:
        raise _refusal(faults, where)
    return _Plain(plain, greatest, tombstones)


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


def _target_codec(topic: TopicConfig, sent: int) -> int:
    if topic.compression_type == "producer":
        return sent
    name = "none" if topic.compression_type == "uncompressed" else topic.compression_type
    return Codec[name.upper()]


def _recompressed(
    data: memoryview, plain: NDArray[np.uint8], codec: int, row: np.void
) -> memoryview:
    """The same batch with its records under another codec (T-8); CRC is set later."""
    row["attributes"] = int(row["attributes"]) & ~CODEC_MASK | codec
    out = bytearray(data[:HEADER_SIZE]) + deflate(codec, plain)
    struct.pack_into(">h", out, ATTRIBUTES, int(row["attributes"]))
    row["size"] = len(out)
    row["crc"] = finish_batch(np.frombuffer(out, np.uint8), 0, len(out))
    return memoryview(out)


def _set_times(
    data: memoryview, row: np.void, topic: TopicConfig, now_ms: int, greatest: int
) -> int:
    """T-3, T-4: max timestamp and type bit as the topic wants them; returns the append time."""
    append_time = topic.message_timestamp_type == TimestampType.LOG_APPEND_TIME
    attributes = int(row["attributes"]) & ~LOG_APPEND_TIME | LOG_APPEND_TIME * append_time
    max_timestamp = now_ms if append_time else greatest
    if (attributes, max_timestamp) != (int(row["attributes"]), int(row["max_timestamp"])):
        row["attributes"], row["max_timestamp"] = attributes, max_timestamp
        struct.pack_into(">h", data, ATTRIBUTES, attributes)
        struct.pack_into(">q", data, MAX_TIMESTAMP, max_timestamp)
        row["crc"] = finish_batch(np.frombuffer(data, np.uint8), 0, len(data))
    return now_ms if append_time else -1
