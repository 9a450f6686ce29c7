"""One partition of a coordinator's topic: read through once, then appended to in order.

`__consumer_offsets` and `__transaction_state` are logs like any other; this is how their owner uses
them. The machines live in the event loop; what they want appended is queued here in their order,
and a worker thread writes whatever has come meanwhile as one batch. A failed append fails what was
in its batch and nothing else: those behind it are tried.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lapse.base.clock import Clock
from lapse.base.errors import CorruptData, ErrorCode, KafkaError, StorageError
from lapse.broker.disk import DiskThreads
from lapse.broker.partitions import Partitions
from lapse.broker.purgatory import Purgatory
from lapse.coordination.entries import Marker, Types, Write, decode_entry
from lapse.kernels.layout import CONTROL, TRANSACTIONAL
from lapse.log.markers import parse_marker
from lapse.log.partition_log import PartitionLog
from lapse.metadata.image import LEADER_EPOCH
from lapse.records.batch import headers_of, records_of, scan_prefix
from lapse.records.builder import BatchSpec, NewRecord
from lapse.wire.errors import MalformedMessage, UnsupportedVersion

logger = logging.getLogger(__name__)

READ_BYTES = 4 << 20
BATCH_BYTES_MAX = 256 << 10  # well below the least max.message.bytes that such a topic is given
_RECORD_BYTES = 32  # what a record costs beside key and value, at most

KeyValue = tuple[bytes, bytes | None]
# Called with how it went and the offset of the first record, -1 where it is not in the log.
Done = Callable[[ErrorCode, int], None]
NO_TRANSACTION = BatchSpec(leader_epoch=LEADER_EPOCH)


@dataclass(frozen=True, slots=True)
class Parts:
    """What of the broker a coordinator's log works with."""

    partitions: Partitions
    disk: DiskThreads
    clock: Clock
    purgatory: Purgatory


@dataclass(slots=True)
class _Waiting:
    records: Sequence[KeyValue]
    spec: BatchSpec
    done: Done

    @property
    def size(self) -> int:
        return sum(len(key) + len(value or b"") + _RECORD_BYTES for key, value in self.records)


class StateLog:
    """The log behind one shard of a coordinator."""

    def __init__(self, log: PartitionLog, parts: Parts) -> None:
        self._log, self._parts = log, parts
        self._queue: deque[_Waiting] = deque()
        self._writing: asyncio.Task[None] | None = None

    def append(
        self,
        records: Sequence[KeyValue],
        done: Done,
        spec: BatchSpec = NO_TRANSACTION,
    ) -> None:
        """Append these records in one batch, then say how it went.

        `spec` names their producer where they belong to a transaction.
        """
        self._queue.append(_Waiting(records, spec, done))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all())

    async def close(self) -> None:
        """Write what is queued."""
        while self._writing is not None:
            await asyncio.wait([self._writing])

    async def _write_all(self) -> None:
        try:
            while self._queue:
                taken = self._take()
                error, offset = await self._parts.disk.run(self._write, taken)
                if error is ErrorCode.NONE:
                    self._parts.purgatory.changed(self._log.partition)
                for waiting in taken:
                    waiting.done(error, offset)
                    offset += len(waiting.records) if offset >= 0 else 0
        finally:
            self._writing = None

    def _take(self) -> list[_Waiting]:
        """The first, and those that may go into a batch with it."""
        taken = [self._queue.popleft()]
        size = taken[0].size
        while self._queue and self._queue[0].spec == taken[0].spec:
            size += self._queue[0].size
            if size > BATCH_BYTES_MAX:
                break
            taken.append(self._queue.popleft())
        return taken

    def _write(self, taken: Sequence[_Waiting]) -> tuple[ErrorCode, int]:
        """In a worker thread; returns (how it went, first offset)."""
        log, now_ms = self._log, self._parts.clock.now_ms()
        records = [NewRecord(k, v, now_ms) for waiting in taken for k, v in waiting.records]
        try:
            done = log.append_own(records, taken[0].spec, now_ms=now_ms)
        except (KafkaError, StorageError) as e:
            self._parts.partitions.report(log.partition, e)
            logger.warning("%s: %d records are not appended: %s", log.partition, len(records), e)
            return (e.code if isinstance(e, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR), -1
        return ErrorCode.NONE, done.base_offset

    # --- loading --------------------------------------------------------------------------------

    async def load(self, types: Types) -> list[Write | Marker]:
        """Everything the log says, in order; raises CorruptData, StorageError."""
        return await self._parts.disk.run(lambda: list(read_events(self._log, types)))


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
