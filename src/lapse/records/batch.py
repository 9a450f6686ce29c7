"""Batches in a buffer: the Python face of `kernels.scan` and `kernels.decode`.

What Kafka calls DefaultRecordBatch.

A batch is a row of `kernels.layout.BATCH`, whatever its format; its records are decoded only on
request, and are rows of `RECORD` for every format (`legacy` has the old ones).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.kernels import decode, scan
from lapse.kernels.layout import (
    BATCH,
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    RECORD,
    RECORD_TOMBSTONE,
    VALUED_TOMBSTONES,
)
from lapse.kernels.varint import read_one_varint
from lapse.records.compression import BadCompression, inflate, inflate_into
from lapse.records.layout import NO_TIMESTAMP, TimestampType, timestamp_type_of
from lapse.records.legacy import decode_message

Buffer = bytes | bytearray | memoryview | NDArray[np.uint8]

_ROWS_MIN = 64
_PIECE_BYTES = 32 << 20
_AT_REACH = (scan.DONE, scan.TRUNCATED)
_WORD = (1 << 64) - 1
_RECORD_BYTES_MIN = 7  # the smallest record: a length and six one-byte fields


class Header(NamedTuple):
    """A row of `BATCH` as Python numbers."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    crc: int
    leader_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used
    attributes: int
    producer_epoch: int
    magic: int


assert Header._fields == BATCH.names


def headers_of(rows: NDArray[np.void]) -> list[Header]:
    """Rows of `BATCH` as Python numbers."""
    return [Header(*row) for row in rows.tolist()]


def row_of(header: Header) -> np.void:
    """Inverse of `headers_of`, for one."""
    row: np.void = np.array([tuple(header)], BATCH)[0]
    return row


@dataclass(frozen=True, slots=True)
class Record:
    """One record as a consumer sees it, plus where it lies.

    Attributes:
        timestamp: what readers are shown: the append time in a LogAppendTime batch.
        create_time: what the producer said (the same thing in a CreateTime batch).
        size: bytes of the record, its length prefix included.
        flagged: it says itself that it is a tombstone, and so does its batch (KIP-87). That
            counts only where its topic compacts.
    """

    offset: int
    timestamp: int
    create_time: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    size: int
    attributes: int
    flagged: bool = False

    @property
    def is_tombstone(self) -> bool:
        """By Kafka's rule: a null value."""
        return self.value is None


def runs(rows: NDArray[np.void], kinds: NDArray[np.generic]) -> Iterator[NDArray[np.void]]:
    """Neighbours of the same kind, which `kinds` has for each row."""
    if len(rows):
        edges = np.flatnonzero(kinds[1:] != kinds[:-1]) + 1
        for begin, end in pairwise([0, *edges.tolist(), len(rows)]):
            yield rows[begin:end]


def as_array(buffer: Buffer) -> NDArray[np.uint8]:
    """The bytes as an array, without copying; read-only, so that kernels meet one array type."""
    data = np.frombuffer(buffer, np.uint8)
    data.flags.writeable = False
    return data


def scan_prefix(
    buffer: Buffer, *, check_crc: bool = True, on_piece: Callable[[], None] | None = None
) -> tuple[NDArray[np.void], int, str | None]:
    """Batches from the start of `buffer` to its end or to the first thing wrong.

    Returns (rows of BATCH, bytes they cover, what is wrong there or None). `on_piece` is called
    now and then: what was scanned so far is not needed any more.
    """
    check = scan.CHECK_ALL if check_crc else scan.CHECK_NONE
    rows, position, why, _ = _scanned(as_array(buffer), check, on_piece)
    return rows, position, scan.REASONS.get(why)


def scan_small_checked(buffer: Buffer) -> tuple[NDArray[np.void], int, str | None, int]:
    """As `scan_prefix`, for somebody who checks batches when he reads them.

    A wrong checksum does not end it. Returns beside how many batches were scanned before that one:
    of these the small ones are right, whose bytes are in the cache when their headers are read.
    """
    rows, position, why, n_checked = _scanned(as_array(buffer), scan.CHECK_SMALL, None)
    return rows, position, scan.REASONS.get(why), n_checked


def _scanned(
    data: NDArray[np.uint8], check: int, on_piece: Callable[[], None] | None
) -> tuple[NDArray[np.void], int, int, int]:
    """Rows, bytes they cover, why it ended, and how many rows were scanned with `check`.

    With CHECK_SMALL nothing is checked from the first wrong checksum on.
    """
    rows = np.empty(_ROWS_MIN, BATCH)
    filled, position, n_checked = 0, 0, -1
    reach = len(data) if on_piece is None else min(_PIECE_BYTES, len(data))
    while True:
        n, position, why = scan.scan(data, position, reach, rows[filled:], check)
        filled += n
        if on_piece is not None and reach < len(data) and why in _AT_REACH:
            on_piece()
            reach = min(reach + _PIECE_BYTES, len(data))
            continue
        if why == scan.BAD_CRC and check == scan.CHECK_SMALL:
            check, n_checked = scan.CHECK_NONE, filled
            continue
        if why != scan.FULL:
            return rows[:filled], position, why, filled if n_checked < 0 else n_checked
        # As many as there will be if they go on like this: copying a table costs more than a scan.
        expected = _ROWS_MIN + int(1.1 * filled * (len(data) / position))
        larger = np.empty(max(expected, filled + _ROWS_MIN), BATCH)
        larger[:filled] = rows
        rows = larger


def scan_batches(buffer: Buffer, where: str, *, check_crc: bool = True) -> NDArray[np.void]:
    """All batches of `buffer` as rows of BATCH; raises CorruptData if it is not made of batches."""
    rows, position, reason = scan_prefix(buffer, check_crc=check_crc)
    if reason is not None:
        raise CorruptData(where, position, reason)
    return rows


def plain_records(
    buffer: Buffer, row: np.void, where: str, target: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """The record bytes of one v2 batch, inflated if need be: into `target` if that is large enough.

    Raises CorruptData.
    """
    start, size = int(row["position"]), int(row["size"])
    payload = as_array(buffer)[start + HEADER_SIZE : start + size]
    codec = int(row["attributes"]) & CODEC_MASK
    try:
        plain = inflate(codec, payload) if target is None else inflate_into(codec, payload, target)
    except BadCompression as e:
        raise CorruptData(where, start, str(e)) from e
    if int(row["count"]) * _RECORD_BYTES_MIN > len(plain):
        raise CorruptData(where, start, f"{row['count']} records in {len(plain)} bytes")
    return plain


def decode_rows(
    buffer: Buffer, row: np.void, where: str
) -> tuple[NDArray[np.uint8], NDArray[np.void]]:
    """(plain bytes, rows of RECORD that point into them) of one batch of any format.

    A record's offset is the batch's base offset + its delta, its create time the batch's base
    timestamp + its delta.
    """
    if row["magic"] < 2:
        return decode_message(as_array(buffer), row, where)
    plain = plain_records(buffer, row, where)
    rows = np.empty(int(row["count"]), RECORD)
    end = decode.decode(plain, 0, len(plain), rows)
    if end < 0:
        raise CorruptData(where, int(row["position"]), f"record {-1 - end} does not parse")
    deltas = rows["offset_delta"]
    span = (int(row["last_offset"]) - int(row["base_offset"])) & _WORD  # it may wrap, as in Java
    if len(rows) and not (deltas.min() >= 0 and deltas.max() <= span):
        raise CorruptData(where, int(row["position"]), "a record's offset is outside its batch's")
    return plain, rows


def first_offset(buffer: Buffer, header: Header, where: str) -> int:
    """Where a batch begins; of a wrapper (v0, v1) only the messages inside tell."""
    if header.magic == 2 or not header.attributes & CODEC_MASK:
        return header.base_offset
    _, rows = decode_rows(buffer, row_of(header), where)
    return header.base_offset + int(rows["offset_delta"][0])


def records_of(buffer: Buffer, row: np.void, where: str) -> Iterator[Record]:
    """The records of one batch; raises CorruptData where one does not parse."""
    plain, rows = decode_rows(buffer, row, where)
    append_time = timestamp_type_of(row) is TimestampType.LOG_APPEND_TIME
    may_flag = row["magic"] == 2 and int(row["attributes"]) & VALUED_TOMBSTONES
    # In arrays: what is beyond 64 bits wraps, as it does in Java and as `legacy` counts on.
    offsets = (rows["offset_delta"] + row["base_offset"]).tolist()
    create_times = (rows["timestamp_delta"] + row["base_timestamp"]).tolist()
    for r, offset, create_time in zip(rows, offsets, create_times, strict=True):
        end = int(r["position"] + r["size"])
        yield Record(
            offset=offset,
            timestamp=int(row["max_timestamp"]) if append_time else create_time,
            create_time=create_time,
            key=_field(plain, int(r["key_position"]), int(r["key_length"])),
            value=_field(plain, int(r["value_position"]), int(r["value_length"])),
            headers=_headers(plain, int(r["headers_position"]), end, where, int(row["position"])),
            size=int(r["size"]),
            attributes=int(r["attributes"]),
            flagged=bool(may_flag and int(r["attributes"]) & RECORD_TOMBSTONE),
        )


def not_older_in(
    buffer: Buffer, row: np.void, cutoff_ms: int, from_offset: int, untimed_from: int, where: str
) -> tuple[int, int] | None:
    """Offset and time of a batch's first record, from `from_offset` on, that may not be older.

    Who has no time may be of any age from `untimed_from` on; its time is given as -1. Raises
    CorruptData.
    """
    is_v2 = row["magic"] == 2
    if is_v2 and (not row["count"] or int(row["attributes"]) & CONTROL):
        return None  # no reader gets anything of it
    append_time = timestamp_type_of(row) is TimestampType.LOG_APPEND_TIME
    if append_time and row["max_timestamp"] < cutoff_ms:
        return None
    _, records = decode_rows(buffer, row, where)
    offsets = records["offset_delta"] + row["base_offset"]
    times = records["timestamp_delta"] + row["base_timestamp"]
    if append_time:
        times[:] = row["max_timestamp"]
    stays = ((times < 0) & (offsets >= untimed_from)) | (times >= cutoff_ms)
    stays &= offsets >= from_offset
    if not stays.any():
        return None
    first = int(stays.argmax())
    return int(offsets[first]), max(int(times[first]), NO_TIMESTAMP)


def _field(plain: NDArray[np.uint8], start: int, length: int) -> bytes | None:
    return None if length < 0 else plain[start : start + length].tobytes()


def _headers(
    plain: NDArray[np.uint8], at: int, end: int, where: str, batch_position: int
) -> tuple[tuple[str, bytes | None], ...]:
    if at == end:
        return ()  # v0 and v1 have none, not even a count
    count, at = read_one_varint(plain, at, end)
    headers = []
    for _ in range(count if at >= 0 else 0):
        name_length, at = read_one_varint(plain, at, end)
        if at < 0 or not 0 <= name_length <= end - at:
            break
        name = plain[at : at + name_length].tobytes().decode(errors="replace")
        value_length, at = read_one_varint(plain, at + name_length, end)
        if at < 0 or not -1 <= value_length <= end - at:
            break
        headers.append((name, _field(plain, at, value_length)))
        at += max(value_length, 0)
    if len(headers) != count or at != end:
        raise CorruptData(where, batch_position, "record headers do not parse")
    return tuple(headers)
