"""One partition of a coordinator's topic: read through once, then appended to in order.

What Kafka calls CoordinatorRuntime.

`__consumer_offsets` and `__transaction_state` are logs like any other; this is how their owner uses
them. The machines live in the event loop; what they want appended is queued here in their order,
and a worker thread writes all that has come meanwhile as one batch. It is written once all in-sync
replicas have it. A failed append fails what was in its batch and nothing else: later batches are
tried.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from lapse.base.clock import Clock
from lapse.base.errors import CorruptData, ErrorCode, KafkaError, StorageError, unreadable
from lapse.broker.coordinators.late_requests import Arrivals
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.led import Led
from lapse.broker.logs.partitions import Partitions
from lapse.broker.logs.purgatory import Purgatory
from lapse.broker.replicas.replicas import AppendedTo, Replicas
from lapse.coordination.records.entries import Marker, Types, Write, decode_entry
from lapse.kernels.layout import CONTROL, TRANSACTIONAL
from lapse.log.markers import EndMarker, parse_marker
from lapse.log.partition_log import Appended, PartitionLog
from lapse.records.batch import headers_of, records_of, scan_prefix
from lapse.records.builder import BatchSpec, NewRecord
from lapse.wire.errors import MalformedMessage, UnsupportedVersion

T = TypeVar("T")

logger = logging.getLogger(__name__)

READ_BYTES = 4 << 20
BATCH_BYTES_MAX = 256 << 10  # well below the least max.message.bytes that such a topic is given
_RECORD_BYTES = 32  # what a record costs beside key and value, at most

KeyValue = tuple[bytes, bytes | None]
# Called with how it went and the offset of the first record, -1 where it is not in the log.
Done = Callable[[ErrorCode, int], None]


@dataclass(frozen=True, slots=True)
class Writer:
    """The transaction that records belong to.

    Attributes:
        verified_at: the log end offset before the transaction was verified; None: not verified.
    """

    producer_id: int
    producer_epoch: int
    verified_at: int | None = None

    @property
    def spec(self) -> BatchSpec:
        """The header fields of its batches."""
        return BatchSpec(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            transactional=True,
        )


@dataclass(frozen=True, slots=True)
class Parts:
    """What of the broker a coordinator's log works with.

    `arrivals` numbers the connections by which requests come.
    """

    partitions: Partitions
    disk: DiskThreads
    clock: Clock
    purgatory: Purgatory
    replicas: Replicas
    commit_seconds: float = 5.0  # as Kafka's offsets.commit.timeout.ms
    arrivals: Arrivals = field(default_factory=Arrivals)


@dataclass(slots=True)
class _Waiting:
    """Records, or the marker that ends the writer's transaction."""

    done: Done
    records: Sequence[KeyValue] = field(default_factory=tuple)
    writer: Writer | None = None
    marker: EndMarker | None = None

    @property
    def size(self) -> int:
        return sum(len(key) + len(value or b"") + _RECORD_BYTES for key, value in self.records)


class StateLog:
    """The log behind one shard of a coordinator, while this broker leads it in one epoch."""

    def __init__(self, led: Led, parts: Parts) -> None:
        self._log, self._epoch, self._parts = led.log, led.epoch, parts
        self._queue: deque[_Waiting] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def end_offset(self) -> int:
        """Where the log ends now; what is queued comes behind it."""
        return self._log.log_end_offset

    def append(self, records: Sequence[KeyValue], done: Done, writer: Writer | None = None) -> None:
        """Append these records in one batch, then say how it went."""
        self._enqueue(_Waiting(done, records, writer))

    def append_marker(self, writer: Writer, marker: EndMarker, done: Done) -> None:
        """End a transaction, then say how it went."""
        self._enqueue(_Waiting(done, writer=writer, marker=marker))

    def _enqueue(self, waiting: _Waiting) -> None:
        if self._is_closed:  # told soon, and not now: whoever appends is in the middle of a step
            refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
            asyncio.get_running_loop().call_soon(waiting.done, refusal, -1)
            return
        self._queue.append(waiting)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all())

    async def close(self) -> None:
        """Write what is queued; what comes from now on is refused.

        The next one of this log may be in the same epoch, which refuses nothing of ours, and would
        not know of it.
        """
        self._is_closed = True
        while self._writing is not None:
            await asyncio.wait([self._writing])

    async def _write_all(self) -> None:
        try:
            while self._queue:
                taken = self._take()
                error, offset = await self._written(taken)
                if error is ErrorCode.NONE:
                    self._parts.purgatory.changed(self._log.partition)
                for waiting in taken:
                    waiting.done(error, offset)
                    offset += len(waiting.records) if offset >= 0 else 0
        finally:
            self._writing = None

    async def _written(self, taken: Sequence[_Waiting]) -> tuple[ErrorCode, int]:
        """As `_write`; an error of ours is reported too, or its waiters would wait for ever."""
        partition, replicas = self._log.partition, self._parts.replicas
        try:
            error, offset = await self._parts.disk.run(self._write, taken)
            if error is ErrorCode.NONE:
                replicas.appended(partition)
                end_offset = offset + max(1, sum(len(waiting.records) for waiting in taken))
                appended = [AppendedTo(partition, self._epoch, end_offset)]
                [error] = await replicas.committed(appended, self._parts.commit_seconds)
        except Exception:
            logger.exception("%s: an append ended by an error of ours", self._log.partition)
            return ErrorCode.UNKNOWN_SERVER_ERROR, -1
        return error, offset if error is ErrorCode.NONE else -1

    def _take(self) -> list[_Waiting]:
        """The first, and those that may go into a batch with it."""
        taken = [self._queue.popleft()]
        size = taken[0].size
        while taken[0].writer is None and self._queue and self._queue[0].writer is None:
            size += self._queue[0].size
            if size > BATCH_BYTES_MAX:
                break
            taken.append(self._queue.popleft())
        return taken

    def _write(self, taken: Sequence[_Waiting]) -> tuple[ErrorCode, int]:
        """In a worker thread; returns (how it went, first offset)."""
        log = self._log
        try:
            return ErrorCode.NONE, self._append(taken).base_offset
        except (KafkaError, StorageError) as e:
            self._parts.partitions.report(log.partition, e)
            count = sum(len(waiting.records) for waiting in taken)
            what = f"a batch of {count} records"
            self._parts.partitions.append_failures.note(log.partition, what, e)
            return (e.code if isinstance(e, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR), -1

    def _append(self, taken: Sequence[_Waiting]) -> Appended:
        now_ms, first = self._parts.clock.now_ms(), taken[0]
        writer, marker, leader_epoch = first.writer, first.marker, self._epoch
        if writer is not None and marker is not None:
            return self._log.append_marker(
                writer.producer_id, writer.producer_epoch, marker.commit,
                marker.coordinator_epoch, leader_epoch=leader_epoch, now_ms=now_ms,
            )  # fmt: skip
        records = [NewRecord(k, v, now_ms) for waiting in taken for k, v in waiting.records]
        spec = replace(BatchSpec() if writer is None else writer.spec, leader_epoch=leader_epoch)
        verified_at = None if writer is None else writer.verified_at
        return self._log.append_own(records, spec, now_ms=now_ms, verified_at=verified_at)

    # --- loading --------------------------------------------------------------------------------

    async def load(self, types: Types, made: Callable[[Iterator[Write | Marker]], T]) -> T:
        """What is made, in a worker thread, of everything the log says, in order.

        There may be millions of records, and the event loop has others to serve. Raises
        CorruptData, StorageError.
        """
        return await self._parts.disk.run(self._read, types, made)

    def _read(self, types: Types, made: Callable[[Iterator[Write | Marker]], T]) -> T:
        try:
            return made(read_events(self._log, types))
        except OSError as e:
            raise unreadable(e, self._log.partition) from e


def read_events(log: PartitionLog, types: Types) -> Iterator[Write | Marker]:
    """What a coordinator's log says, in order; waits for the disk.

    A record that does not parse is left out and said, as in Kafka; a batch that does not is
    CorruptData, since what follows it would be missed in silence.
    """
    offset, where = log.log_start_offset, str(log.partition)
    while True:
        data = log.read(offset, READ_BYTES).read()
        rows, _, reason = scan_prefix(data)
        if not len(rows):
            if data:
                raise CorruptData(where, 0, f"at offset {offset}: {reason}")
            return
        for header, row in zip(headers_of(rows), rows, strict=True):
            if header.last_offset < offset:
                continue
            writer = header.producer_id if header.attributes & TRANSACTIONAL else -1
            if header.attributes & CONTROL:
                marker = parse_marker(data[header.position : header.position + header.size], where)
                if marker is not None:
                    yield Marker(header.producer_id, commit=marker.commit)
                continue
            for record in records_of(data, row, where):
                try:
                    entry = decode_entry(types, record.key, record.value)
                except (MalformedMessage, UnsupportedVersion) as e:
                    logger.error("%s: offset %d is left out: %s", where, record.offset, e)  # noqa: TRY400
                else:
                    yield Write(record.offset, entry, writer)
        offset = int(rows[-1]["last_offset"]) + 1
