"""A consumer's view of a log: fetched offset by offset, in small answers, as a client would.

Also reads the `consumed.*.tsv` files in which a Java consumer's view of real Kafka is recorded.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lapse.kernels.layout import CONTROL
from lapse.log.partition_log import PartitionLog
from lapse.log.txn_index import committed
from lapse.records.batch import records_of, scan_prefix
from lapse.records.layout import TimestampType, timestamp_type_of

FETCH_BYTES = 700  # so that most answers end within a batch

_TYPE_NAMES = {
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """What a consumer is handed; no leader epoch where the batch has none."""

    offset: int
    leader_epoch: int | None
    timestamp_type: str
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class View:
    """All a consumer got, where it stood then, and the end offset it was told."""

    records: list[ConsumerRecord]
    position: int
    end_offset: int


def consume(log: PartitionLog, *, read_committed: bool, fetch_bytes: int = FETCH_BYTES) -> View:
    """From the log's start to the end that the isolation level lets it see."""
    position = log.log_start_offset
    upper = log.last_stable_offset if read_committed else log.high_watermark
    records: list[ConsumerRecord] = []
    while position < upper:
        data = log.read(position, fetch_bytes, upper).read()
        rows, _, _ = scan_prefix(data)  # the last batch may be cut
        if not len(rows):
            break
        shown = (rows["magic"] < 2) | (rows["attributes"] & CONTROL == 0)
        if read_committed:
            reach = int(rows["last_offset"].max()) + 1
            shown = committed(rows, log.aborted_transactions(position, reach))
        for row, hand_out in zip(rows, shown, strict=True):
            if hand_out:
                found = _records(data, row)
                records += [record for record in found if record.offset >= position]
            position = int(row["last_offset"]) + 1
    return View(records, position, upper)


def _records(data: bytes, row: np.void) -> list[ConsumerRecord]:
    magic, epoch = int(row["magic"]), int(row["leader_epoch"])
    name = _TYPE_NAMES[timestamp_type_of(row)] if magic else "NoTimestampType"
    return [
        ConsumerRecord(
            offset=r.offset,
            leader_epoch=None if epoch < 0 else epoch,
            timestamp_type=name,
            timestamp=r.timestamp,
            key=r.key,
            value=r.value,
            headers=tuple((header.encode(), value) for header, value in r.headers),
        )
        for r in records_of(data, row, "fetched")
    ]


# --- recorded views -----------------------------------------------------------------------------


def read_view(path: Path) -> View:
    """A recorded view; the file may be compressed instead."""
    zipped = path.with_name(path.name + ".gz")
    data = gzip.decompress(zipped.read_bytes()) if zipped.exists() else path.read_bytes()
    first, *lines, last = data.decode().splitlines()
    assert first.startswith("#offset\t")
    end, position, end_offset = last.split()
    assert end == "#end"
    return View(
        [_recorded(line) for line in lines],
        int(position.removeprefix("position=")),
        int(end_offset.removeprefix("endOffset=")),
    )


def _recorded(line: str) -> ConsumerRecord:
    offset, epoch, type_name, timestamp, key, value, headers = line.split("\t")
    pairs = (pair.split("=") for pair in headers.split(",") if pair)
    return ConsumerRecord(
        int(offset),
        None if epoch == "-" else int(epoch),
        type_name,
        int(timestamp),
        _bytes(key),
        _bytes(value),
        tuple((bytes.fromhex(name), _bytes(value)) for name, value in pairs),
    )


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else bytes.fromhex(text)
