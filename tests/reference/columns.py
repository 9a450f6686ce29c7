"""Batches to columns in pure Python, a record at a time: the twin of `kernels.columns`.

For v2 batches; values are what Arrow must show for them, times in microseconds.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.reference import batches, varint

Row = dict[str, object]

CODEC, APPEND_TIME, CONTROL, HORIZON, VALUED = 0x07, 0x08, 0x20, 0x40, 0x4000
RECORD_TOMBSTONE = 0x20
MICROS_MAX = (1 << 63) // 1000


class BadData(ValueError):
    """A batch whose records or headers do not parse; `position` is the batch's."""

    def __init__(self, position: int) -> None:
        super().__init__(f"batch at {position}")
        self.position = position


def rows_of(
    data: bytes,
    inflate: Callable[[int, bytes], bytes],
    *,
    offset_from: int,
    offset_until: int,
    control: bool,
    valued_tombstones: bool,
) -> list[Row]:
    """All columns but topic and partition of the records wanted."""
    found, _, _ = batches.scan(data, check_crc=False)
    rows: list[Row] = []
    for batch in found:
        assert isinstance(batch, batches.Batch)
        if batch.last_offset < offset_from or batch.base_offset >= offset_until:
            continue
        if batch.count and (control or not batch.attributes & CONTROL):
            wanted = range(offset_from, offset_until)
            rows += _rows_of_batch(batch, inflate, valued_tombstones, wanted)
    return rows


def _rows_of_batch(
    batch: batches.Batch,
    inflate: Callable[[int, bytes], bytes],
    valued_tombstones: bool,
    wanted: range,
) -> list[Row]:
    records = batches.records(inflate(batch.attributes & CODEC, batch.payload), batch.count)
    if isinstance(records, int):
        raise BadData(batch.position)
    if any(not 0 <= r.offset_delta <= batch.last_delta for r in records):
        raise BadData(batch.position)
    timed = bool(batch.attributes & APPEND_TIME)
    created = [_int64(batch.base_timestamp + r.timestamp_delta) for r in records]
    lost = timed and all(time == batch.max_timestamp for time in created)
    rows: list[Row] = []
    for record, time in zip(records, created, strict=True):
        if _int64(batch.base_offset + record.offset_delta) not in wanted:
            continue
        flagged = batch.attributes & VALUED and record.attributes & RECORD_TOMBSTONE
        rows.append(
            {
                "key": record.key,
                "value": record.value,
                "offset": _int64(batch.base_offset + record.offset_delta),
                "timestamp": _micros(batch.max_timestamp if timed else time),
                "timestampType": int(timed),
                "headers": _headers(record, batch.position),
                "create_time": None if lost or time == -1 else _micros(time),
                "create_time_ms": None if lost or time == -1 else time,
                "append_time": _known(batch.max_timestamp) if timed else None,
                "is_tombstone": bool(record.value is None or (valued_tombstones and flagged)),
                "horizon": _micros(batch.base_timestamp) if batch.attributes & HORIZON else None,
                "producer_id": None if batch.producer_id == -1 else batch.producer_id,
                "control": bool(batch.attributes & CONTROL),
            }
        )
    return rows


def _known(time_ms: int) -> int | None:
    return None if time_ms == -1 else _micros(time_ms)


def _micros(time_ms: int) -> int:
    return max(-MICROS_MAX, min(time_ms, MICROS_MAX)) * 1000


def _int64(number: int) -> int:
    """As Java adds: it wraps around."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _headers(record: batches.Record, position: int) -> list[Row] | None:
    raw, end, found = record.headers_raw, len(record.headers_raw), []
    try:
        count, at = varint.read(raw, 0, end, 32)
        if count < 0:
            raise BadData(position)
        for _ in range(count):
            length, at = varint.read(raw, at, end, 32)
            if not 0 <= length <= end - at:
                raise BadData(position)
            name, at = raw[at : at + length].decode(errors="replace"), at + length
            length, at = varint.read(raw, at, end, 32)
            if not -1 <= length <= end - at:
                raise BadData(position)
            value = None if length < 0 else raw[at : at + length]
            at += max(length, 0)
            found.append({"key": name, "value": value})
    except varint.BadVarint as e:
        raise BadData(position) from e
    if at != end:
        raise BadData(position)
    return found or None
