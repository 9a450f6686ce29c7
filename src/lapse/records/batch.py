"""Batches in a buffer: the Python face of `kernels.scan` and `kernels.decode`.

A batch is a row of `kernels.layout.BATCH`; its records are decoded only on request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.kernels import decode, scan
from lapse.kernels.layout import BATCH, CODEC_MASK, HEADER_SIZE, RECORD
from lapse.kernels.varint import read_varint
from lapse.records.compression import BadCompression, inflate
from lapse.records.layout import TimestampType, timestamp_type_of

Buffer = bytes | bytearray | memoryview | NDArray[np.uint8]

_ROWS_MIN = 64
_BYTES_A_ROW = 4096  # first guess; a full table doubles
_RECORD_BYTES_MIN = 7  # the smallest record: a length and six one-byte fields


@dataclass(frozen=True, slots=True)
class Record:
    """One record as a consumer sees it, plus where it lies.

    Attributes:
        timestamp: what readers are shown: the append time in a LogAppendTime batch.
        create_time: what the producer said (the same thing in a CreateTime batch).
        size: bytes of the record, its length prefix included.
    """

    offset: int
    timestamp: int
    create_time: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    size: int
    attributes: int

    @property
    def is_tombstone(self) -> bool:
        return self.value is None


def as_array(buffer: Buffer) -> NDArray[np.uint8]:
    """The bytes as an array, without copying; read-only, so that kernels meet one array type."""
    data = np.frombuffer(buffer, np.uint8)
    data.flags.writeable = False
    return data


def scan_prefix(
    buffer: Buffer, *, check_crc: bool = True
) -> tuple[NDArray[np.void], int, str | None]:
    """Batches from the start of `buffer` to its end or to the first thing wrong.

    Returns (rows of BATCH, bytes they cover, what is wrong there or None).
    """
    data = as_array(buffer)
    rows = np.empty(max(_ROWS_MIN, len(data) // _BYTES_A_ROW), BATCH)
    filled, position = 0, 0
    while True:
        n, position, why = scan.scan(data, position, len(data), rows[filled:], check_crc)
        filled += n
        if why != scan.FULL:
            return rows[:filled], position, scan.REASONS.get(why)
        rows = np.concatenate([rows, np.empty(len(rows), BATCH)])


def scan_batches(buffer: Buffer, where: str, *, check_crc: bool = True) -> NDArray[np.void]:
    """All batches of `buffer` as rows of BATCH; raises CorruptData if it is not made of batches."""
    rows, position, reason = scan_prefix(buffer, check_crc=check_crc)
    if reason is not None:
        raise CorruptData(where, position, reason)
    return rows


def plain_records(buffer: Buffer, row: np.void, where: str) -> NDArray[np.uint8]:
    """The record bytes of one batch, inflated if need be."""
    start, size = int(row["position"]), int(row["size"])
    payload = as_array(buffer)[start + HEADER_SIZE : start + size]
    try:
        plain = inflate(int(row["attributes"]) & CODEC_MASK, payload)
    except BadCompression as e:
        raise CorruptData(where, start, str(e)) from e
    if int(row["count"]) * _RECORD_BYTES_MIN > len(plain):
        raise CorruptData(where, start, f"{row['count']} records in {len(plain)} bytes")
    return plain


def decode_rows(
    buffer: Buffer, row: np.void, where: str
) -> tuple[NDArray[np.uint8], NDArray[np.void]]:
    """(plain record bytes, rows of RECORD that point into them) of one v2 batch."""
    plain = plain_records(buffer, row, where)
    rows = np.empty(int(row["count"]), RECORD)
    end = decode.decode(plain, 0, len(plain), rows)
    if end < 0:
        raise CorruptData(where, int(row["position"]), f"record {-1 - end} does not parse")
    return plain, rows


def records_of(buffer: Buffer, row: np.void, where: str) -> Iterator[Record]:
    """The records of one v2 batch; raises CorruptData where one does not parse."""
    plain, rows = decode_rows(buffer, row, where)
    append_time = timestamp_type_of(row) is TimestampType.LOG_APPEND_TIME
    base_offset, base_timestamp = int(row["base_offset"]), int(row["base_timestamp"])
    for r in rows:
        create_time = base_timestamp + int(r["timestamp_delta"])
        end = int(r["position"] + r["size"])
        yield Record(
            offset=base_offset + int(r["offset_delta"]),
            timestamp=int(row["max_timestamp"]) if append_time else create_time,
            create_time=create_time,
            key=_field(plain, int(r["key_position"]), int(r["key_length"])),
            value=_field(plain, int(r["value_position"]), int(r["value_length"])),
            headers=_headers(plain, _after_value(r), end, where, int(row["position"])),
            size=int(r["size"]),
            attributes=int(r["attributes"]),
        )


def _field(plain: NDArray[np.uint8], start: int, length: int) -> bytes | None:
    return None if length < 0 else plain[start : start + length].tobytes()


def _after_value(r: np.void) -> int:
    return int(r["value_position"]) + max(int(r["value_length"]), 0)


def _headers(
    plain: NDArray[np.uint8], at: int, end: int, where: str, batch_position: int
) -> tuple[tuple[str, bytes | None], ...]:
    count, at = read_varint(plain, at, end)
    headers = []
    for _ in range(count if at >= 0 else 0):
        name_length, at = read_varint(plain, at, end)
        if at < 0 or not 0 <= name_length <= end - at:
            break
        name = plain[at : at + name_length].tobytes().decode(errors="replace")
        value_length, at = read_varint(plain, at + name_length, end)
        if at < 0 or not -1 <= value_length <= end - at:
            break
        headers.append((name, _field(plain, at, value_length)))
        at += max(value_length, 0)
    if len(headers) != count or at != end:
        raise CorruptData(where, batch_position, "record headers do not parse")
    return tuple(headers)
