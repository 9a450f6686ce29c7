"""What a Fetch brought of one partition: which batches count, and as what they are handed out.

Pure: bytes in, records or columns out. A batch may begin below the requested offset (Y-1)
and the last may be cut short; control batches and, for a read_committed consumer, those of aborted
transactions are left out (Y-3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.base.extras import needed_for
from lapse.base.ids import TopicPartition
from lapse.client.record import ConsumerRecord
from lapse.kernels import scan
from lapse.kernels.layout import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL
from lapse.records.append_times import NOTHING, AppendTimes
from lapse.records.batch import Header, Record, headers_of, records_of, scan_prefix
from lapse.records.control import control_type
from lapse.records.layout import NO_TIMESTAMP
from lapse.wire.schema.fetch import PartitionData

if TYPE_CHECKING:  # who reads no columns needs no Arrow
    import pyarrow as pa

Aborted = tuple[int, int]  # producer id, first offset


@dataclass(frozen=True, slots=True)
class Fetched:
    """Whole batches of one partition, from `offset` on.

    Attributes:
        rows: of BATCH, all of them.
        counts: which hold records for the consumer.
        next_offset: where to read on.
        create_times_kept, append_times: what only a broker of ours knows.
    """

    partition: TopicPartition
    offset: int
    data: bytes | memoryview
    rows: NDArray[np.void]
    counts: NDArray[np.bool_]
    next_offset: int
    create_times_kept: bool = False
    append_times: AppendTimes = NOTHING

    def records(self) -> Iterator[ConsumerRecord]:
        """One by one; raises CorruptData where one does not parse."""
        where = str(self.partition)
        for row in self.rows[self.counts]:
            some = list(records_of(self.data, row, where))
            yield from (shown for shown in self._shown(row, some) if shown.offset >= self.offset)

    def arrow(self, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """By kernel, as `records.columns` has it; `names` are columns, None: all but headers."""
        with needed_for("reading records as columns"):
            from lapse.records.columns import (  # noqa: PLC0415
                WITHOUT_HEADERS,
                ColumnSpec,
                record_batches,
            )

        spec = ColumnSpec(
            names=WITHOUT_HEADERS if names is None else tuple(names),
            offset_from=self.offset,
            valued_tombstones=True,
            create_times_kept=self.create_times_kept,
            append_times=self.append_times,
        )
        where = str(self.partition)
        return record_batches(self.data, self.rows[self.counts], self.partition, where, spec)

    def _shown(self, row: np.void, records: Sequence[Record]) -> Iterator[ConsumerRecord]:
        timed = bool(row["magic"] > 0 and int(row["attributes"]) & LOG_APPEND_TIME)
        append_time = int(row["max_timestamp"]) if timed else NO_TIMESTAMP
        if not timed:
            append_time = int(self.append_times.shown(row["base_offset"].reshape(1))[0])
        # A cleaner of Kafka's makes every create time in the batch the append time (L15).
        may_be_lost = timed and not (self.create_times_kept and row["magic"] == 2)
        lost = may_be_lost and all(r.create_time == append_time for r in records)
        for r in records:
            yield ConsumerRecord(
                self.partition,
                r.offset,
                r.key,
                r.value,
                r.headers,
                None if lost or r.create_time == NO_TIMESTAMP else r.create_time,
                None if append_time == NO_TIMESTAMP else append_time,
                r.is_tombstone or r.flagged,
                r.timestamp,
            )


def fetched(
    partition: TopicPartition,
    offset: int,
    data: bytes | memoryview,
    aborted: Sequence[Aborted] | None = None,
    beside: PartitionData | None = None,
) -> Fetched:
    """Judge fetched batches; `aborted` as in the response, None: uncommitted records count too.

    `beside` is the partition's part of the response.

    Raises:
        CorruptData: a batch does not parse, or not one is whole.
    """
    rows, position, reason = scan_prefix(data)
    if reason is not None and (reason != scan.REASONS[scan.TRUNCATED] or not len(rows)):
        raise CorruptData(str(partition), position, reason)
    headers = headers_of(rows)
    counts = np.array([not _is_control(h) for h in headers], np.bool_)
    if aborted is not None:
        counts &= _committed(data, rows, headers, aborted, str(partition))
    next_offset = max(offset, headers[-1].last_offset + 1) if headers else offset
    if beside is None:
        return Fetched(partition, offset, data, rows, counts, next_offset)
    return Fetched(
        partition, offset, data, rows, counts, next_offset, beside.create_times_kept,
        append_times_of(beside),
    )  # fmt: skip


def answered(
    partition: TopicPartition, offset: int, data: PartitionData, *, committed: bool
) -> Fetched:
    """Judge a partition's part of a response that has records; raises as `fetched`."""
    assert isinstance(data.records, (bytes, memoryview)), "decoded, it is no slice of a file"
    aborted = [(a.producer_id, a.first_offset) for a in data.aborted_transactions or ()]
    return fetched(partition, offset, data.records, aborted if committed else None, data)


def append_times_of(beside: PartitionData) -> AppendTimes:
    """Return the response's append times; NOTHING if their offsets are out of order."""
    entries = beside.append_times
    if not entries:
        return NOTHING
    offsets = np.array([entry.offset for entry in entries], np.int64)
    times = np.array([entry.append_ms for entry in entries], np.int64)
    is_in_order = len(entries) == 1 or bool((np.diff(offsets) > 0).all())
    return AppendTimes(offsets, times) if is_in_order else NOTHING


def _is_control(header: Header) -> bool:
    return header.magic == 2 and bool(header.attributes & CONTROL)


def _committed(
    data: bytes | memoryview,
    rows: NDArray[np.void],
    headers: Sequence[Header],
    aborted: Sequence[Aborted],
    where: str,
) -> NDArray[np.bool_]:
    """Which batches are of no aborted transaction.

    One is from the offset that the answer names to its producer's next ABORT marker.
    """
    beginning = sorted(aborted, key=lambda one: one[1], reverse=True)
    open_now: set[int] = set()
    committed = np.ones(len(headers), np.bool_)
    for n, header in enumerate(headers):
        while beginning and beginning[-1][1] <= header.last_offset:
            open_now.add(beginning.pop()[0])
        if header.magic < 2 or header.producer_id not in open_now:
            continue
        if _is_control(header):
            marker = next(iter(records_of(data, rows[n], where)), None)
            if marker is not None and control_type(marker.key) == "ABORT":
                open_now.discard(header.producer_id)
        elif header.attributes & TRANSACTIONAL:
            committed[n] = False
    return committed
