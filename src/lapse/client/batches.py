"""What a producer has taken and not yet sent: batches that fill, one queue a partition.

No I/O and no clock: `Queue.add` says where a record went, `Batch.fields` what is to be encoded. The
memory all queues may hold together is `Room`'s to give.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.records.batch_writer import Bytes, RecordFields, encoded_headers
from lapse.records.builder import NewRecord

RECORD_OVERHEAD_BYTES = 32  # lengths, deltas and attributes of a record, at most


class RecordMetadata(NamedTuple):
    """Where a record went.

    Attributes:
        offset: -1 with acks 0, and where the broker knew the batch already but not its offset.
        append_time: ms, on a LogAppendTime topic; else None.
    """

    partition: TopicPartition
    offset: int
    append_time: int | None


class BatchMetadata(NamedTuple):
    """Where a batch went; `base_offset` and `append_time` as in `RecordMetadata`."""

    partition: TopicPartition
    base_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed here
    append_time: int | None

    def record(self, n: int) -> RecordMetadata:
        """Of the n-th record in it."""
        offset = -1 if self.base_offset < 0 else self.base_offset + n
        return RecordMetadata(self.partition, offset, self.append_time)


def new_record(
    key: bytes | None,
    value: bytes | None,
    create_time: int,
    tombstone: bool | None,
    headers: Sequence[tuple[str, bytes | None]],
) -> NewRecord:
    """A record to be sent, flagged where it is a tombstone with a value (KIP-87).

    Raises:
        KafkaError: INVALID_RECORD, a null value that is to be no tombstone: all other software
            would take it for one.
    """
    if tombstone is False and value is None:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            "tombstone=False with a null value: consumers that do not know KIP-87, and the "
            "cleaner, take a null value for a tombstone",
        )
    flagged = bool(tombstone) and value is not None
    return NewRecord(key, value, create_time, tuple(headers), tombstone=flagged)


def size_of(record: NewRecord) -> int:
    """Bytes of a record in a batch at most, not compressed."""
    size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    # A character takes four bytes at most.
    return size + sum(4 * len(name) + len(value or b"") + 10 for name, value in record.headers)


def fields_of(records: Sequence[NewRecord]) -> RecordFields:
    """Records as columns."""
    return RecordFields(
        keys=Bytes.of(r.key for r in records),
        values=Bytes.of(r.value for r in records),
        headers=Bytes.of(encoded_headers(r.headers) for r in records),
        times=np.array([r.timestamp for r in records], np.int64),
        tombstones=np.array([r.tombstone for r in records], np.bool_),
    )


def flagged_nulls(fields: RecordFields, first: int, until: int) -> RecordFields:
    """The fields as a batch of those records may have them.

    Where one is a tombstone that says so, the null values among them must say so too.
    """
    if not fields.tombstones[first:until].any():
        return fields
    tombstones = fields.tombstones.copy()
    tombstones[first:until] |= fields.values.lengths[first:until] < 0
    return RecordFields(fields.keys, fields.values, fields.headers, fields.times, tombstones)


@dataclass(eq=False, slots=True)
class Batch:
    """Records of one partition that are sent together: taken one by one, or columns at once.

    Attributes:
        size: bytes at most, not compressed.
        deadline: of the loop's time: given up then.
        linger_until: likewise: it waits for no more records then.
        ready: nothing more is to be waited for.
        done: what became of it.
        columns: in place of `records`: some columns, and which of their records.
    """

    partition: TopicPartition
    deadline: float
    linger_until: float
    done: asyncio.Future[BatchMetadata]
    records: list[NewRecord] = field(default_factory=list)
    columns: tuple[RecordFields, int, int] | None = None
    size: int = 0
    valued: bool = False
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def count(self) -> int:
        return len(self.records) if self.columns is None else self.columns[2] - self.columns[1]

    def fields(self) -> tuple[RecordFields, int, int]:
        """What to encode: columns, and which of their records."""
        columns, first, until = self.columns or (fields_of(self.records), 0, len(self.records))
        return flagged_nulls(columns, first, until), first, until


class Queue:
    """One partition's batches, oldest first; only the last one takes more."""

    def __init__(self, batch_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self.batches: deque[Batch] = deque()

    def last_with_room(self, size: int) -> Batch | None:
        """The batch that a record of `size` may still join; what it does not fit is ready."""
        last = self.batches[-1] if self.batches else None
        if last is None or last.ready.is_set():
            return None
        if last.size + size > self._batch_bytes:
            last.ready.set()
            return None
        return last

    def put(self, batch: Batch) -> None:
        """A new batch, behind the others: those before it are ready."""
        self.hurry()
        self.batches.append(batch)

    def add(self, batch: Batch, record: NewRecord, size: int) -> int:
        """Put a record into a batch of this queue; returns its place there."""
        batch.records.append(record)
        batch.size += size
        batch.valued |= record.tombstone
        if batch.size >= self._batch_bytes:
            batch.ready.set()
        return len(batch.records) - 1

    def hurry(self) -> None:
        """Wait for nothing more."""
        if self.batches:
            self.batches[-1].ready.set()


class Room:
    """Memory for records that wait, given in the order of the requests for it."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        """Wait until there is room; a size above all there is must have been refused before."""
        if not self._waiting and self.used + size <= self.bytes_max:
            self.used += size
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(size)  # it had just been given
            else:
                with contextlib.suppress(ValueError):  # passed over already
                    self._waiting.remove((size, turn))
                self._serve()
            raise

    def give(self, size: int) -> None:
        """Take back what is no longer used."""
        self.used -= size
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self.used + self._waiting[0][0] <= self.bytes_max:
            size, turn = self._waiting.popleft()
            if not turn.cancelled():
                self.used += size
                turn.set_result(None)
