"""Lines of `lapse dump` for a log file: one a batch, one a record.

A v0 or v1 message is a batch of its own; a wrapper's records are the messages inside. Called by
`dump`, and by `dump_topics`, which wants records rather than lines.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData, LapseError
from lapse.base.readable import readable
from lapse.kernels.layout import (
    CODEC_MASK,
    CONTROL,
    LEGACY_CRC,
    TRANSACTIONAL,
    VALUED_TOMBSTONES,
)
from lapse.kernels.scan import BAD_CRC, REASONS, first_bad_crc
from lapse.records.batch import Record, as_array, decode_rows, records_of, scan_prefix
from lapse.records.control import control_type, coordinator_epoch
from lapse.records.layout import Codec, TimestampType, horizon_of, timestamp_type_of

_INT_MAX = (1 << 31) - 1
_SHORT = 8  # bytes; a longer value is shown as a hash unless --values hex
_TYPE_NAMES = {
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}
_V0_TYPE_NAME = "NoTimestampType"

Line = dict[str, Any]
Report = Callable[[CorruptData], None]
Decode = Callable[[bytes | None, bytes | None], Line]
Show = Callable[[bytes], str]


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """What is shown.

    Attributes:
        decode: for records of an internal topic.
        report: called with what cannot be read, which is then left out.
        as_text: keys, values and headers as text, not as hexadecimal digits.
        key: only records of this key, and the batches that have one.
        from_offset: only batches and records from here on.
    """

    records: bool
    values: str
    decode: Decode | None
    report: Report
    as_text: bool = False
    key: bytes | None = None
    from_offset: int = 0

    def wants(self, record: Record) -> bool:
        """Whether a record is shown."""
        return record.offset >= self.from_offset and (self.key is None or record.key == self.key)


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A batch of a log file as read; `crcs` are those of v0 and v1 messages, one a record."""

    row: np.void
    crc_ok: bool
    records: list[Record]
    crcs: list[int]


def read_batches(path: Path, report: Report, *, records: bool = True) -> Iterator[ReadBatch]:
    """Every batch, sound or not, as far as lengths tell where the next one is."""
    data, where = as_array(np.fromfile(path, np.uint8)), str(path)
    rows, end, reason = scan_prefix(data, check_crc=False)
    bad = _with_bad_checksums(data, rows)
    for n, row in enumerate(rows):
        if n in bad:
            report(CorruptData(where, int(row["position"]), REASONS[BAD_CRC]))
        if not records and row["magic"] == 2:
            yield ReadBatch(row, n not in bad, [], [])
            continue
        try:
            yield ReadBatch(row, n not in bad, *_records(data, row, where))
        except CorruptData as e:
            if n not in bad:
                report(e)
            yield ReadBatch(row, n not in bad, [], [])
    if reason is not None:
        report(CorruptData(where, end, reason))


def _with_bad_checksums(data: NDArray[np.uint8], rows: NDArray[np.void]) -> set[int]:
    bad: set[int] = set()
    unseen = np.ones(len(rows), np.bool_)
    while (n := int(first_bad_crc(data, rows, unseen))) >= 0:
        bad.add(n)
        unseen[: n + 1] = False
    return bad


def _records(data: NDArray[np.uint8], row: np.void, where: str) -> tuple[list[Record], list[int]]:
    records = list(records_of(data, row, where))
    if row["magic"] == 2:
        return records, []
    plain, messages = decode_rows(data, row, where)
    at = (int(message["position"]) + LEGACY_CRC for message in messages)
    return records, [int.from_bytes(plain[i : i + 4].tobytes(), "big") for i in at]


# --- lines --------------------------------------------------------------------------------------


def dump_log(path: Path, options: DumpOptions) -> Iterator[Line]:
    """Batches of a log file, each with its records."""
    for batch in read_batches(path, options.report, records=options.records):
        if int(batch.row["last_offset"]) < options.from_offset:
            continue
        if options.key is not None and not any(map(options.wants, batch.records)):
            continue
        yield _batch(path, batch)
        if options.records:
            yield from _records_lines(path, batch, options)


def name_text(name: str) -> str:
    """A file's name; bytes of it that are not UTF-8, which no JSON can hold, as escapes."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _records_lines(path: Path, batch: ReadBatch, options: DumpOptions) -> Iterator[Line]:
    is_control = bool(int(batch.row["attributes"]) & CONTROL)
    for i, record in enumerate(batch.records):
        if not options.wants(record):
            continue
        # What a control record has is no text.
        show = readable if options.as_text and not is_control else _SHOWN[options.values]
        line = _record(batch.row, i, record, show)
        if batch.crcs:
            line["crc"] = batch.crcs[i]
        if options.decode is not None and not is_control:
            try:
                line["decoded"] = options.decode(record.key, record.value)
            except LapseError as e:
                position = int(batch.row["position"])
                what = f"offset {record.offset}: {e}"
                options.report(CorruptData(str(path), position, what))
        yield line


def _batch(path: Path, batch: ReadBatch) -> Line:
    row, v2 = batch.row, batch.row["magic"] == 2
    attributes = int(row["attributes"])
    sequence = int(row["base_sequence"])
    base_offset = int(row["base_offset"])
    line: Line = {
        "type": "batch",
        "file": name_text(path.name),
        "pos": int(row["position"]),
        "size": int(row["size"]),
        "magic": int(row["magic"]),
        "base_offset": base_offset if v2 or not batch.records else batch.records[0].offset,
        "last_offset": int(row["last_offset"]),
    }
    if v2:
        line["leader_epoch"] = int(row["leader_epoch"])
    line |= {"crc": int(row["crc"]), "crc_ok": batch.crc_ok, "attributes": attributes}
    if v2:
        line["base_timestamp"] = int(row["base_timestamp"])
        line["delete_horizon"] = horizon_of(row)
    line |= {
        "max_timestamp": int(row["max_timestamp"]),
        "timestamp_type": _timestamp_type(row),
        "codec": _codec_name(attributes & CODEC_MASK),
        "pid": int(row["producer_id"]),
        "epoch": int(row["producer_epoch"]),
        "base_seq": sequence,
        "last_seq": sequence_after(sequence, int(row["last_offset"]) - base_offset),
        "txn": bool(v2 and attributes & TRANSACTIONAL),
        "control": bool(v2 and attributes & CONTROL),
        "count": int(row["count"]) if v2 else None,
    }
    if v2 and attributes & VALUED_TOMBSTONES:
        line["valued_tombstones"] = True
    return line


def _timestamp_type(row: np.void) -> str:
    return _TYPE_NAMES[timestamp_type_of(row)] if row["magic"] > 0 else _V0_TYPE_NAME


def _codec_name(codec: int) -> str:
    """Kafka's name, or the number of an unknown codec."""
    return Codec(codec).name.lower() if codec <= Codec.ZSTD else str(codec)


def sequence_after(sequence: int, n: int) -> int:
    """The sequence `n` records on; sequences wrap within 31 bits, -1 is none."""
    return -1 if sequence < 0 else (sequence + n) & _INT_MAX


def _record(row: np.void, i: int, record: Record, show: Show) -> Line:
    whole = readable if show is readable else bytes.hex
    line = {
        "type": "record",
        "i": i,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "seq": sequence_after(int(row["base_sequence"]), record.offset - int(row["base_offset"])),
        "size": record.size,
        "key": None if record.key is None else whole(record.key),
        "value": None if record.value is None else show(record.value),
    }
    if row["magic"] == 2 and int(row["attributes"]) & CONTROL:
        line["control_type"] = control_type(record.key)
        if line["control_type"] in {"ABORT", "COMMIT"}:
            line["coord_epoch"] = coordinator_epoch(record.value)
    if record.flagged:
        line["tombstone"] = True  # it has a value and is one all the same (ADR-4)
    if record.headers:
        line["headers"] = [[name, v if v is None else whole(v)] for name, v in record.headers]
    return line


def _hashed(data: bytes) -> str:
    if len(data) <= _SHORT:
        return data.hex()
    return f"sha256:{hashlib.sha256(data).hexdigest()[:32]}:{len(data)}"


_SHOWN: Mapping[str, Show] = {"hash": _hashed, "hex": bytes.hex}
