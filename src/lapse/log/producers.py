"""What a log remembers of idempotent producers, and Kafka's `.snapshot` file of it.

Sequence rules are Kafka's: a producer's batches must follow each other; one of the last five sent
again is a duplicate and is answered as it was the first time; an older epoch is fenced. State is
made again from batch headers after a crash, starting from the newest snapshot (SEMANTICS §11).

`check` decides and changes nothing; `update` records what is in the log. A snapshot at base B
tells the state after all batches below B, so that recovery reads only from B on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lapse.base.errors import CorruptData, ErrorCode, KafkaError
from lapse.kernels.crc32c import crc32c
from lapse.kernels.layout import CONTROL, TRANSACTIONAL
from lapse.log.facts import ProducerLast
from lapse.log.headers import Header

REMEMBERED_BATCHES = 5
_SEQUENCE_MAX = (1 << 31) - 1
_NONE = -1

_VERSION = 1
_HEAD = struct.Struct(">hIi")  # version, CRC-32C of what follows it, entries
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_FROM = 6  # the count and the entries


class SentBatch(NamedTuple):
    """One remembered batch of a producer."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


@dataclass(slots=True)
class Producer:
    """State of one producer id, newest batch last.

    Attributes:
        transaction_first_offset: where its open transaction began; -1 outside one.
    """

    producer_id: int
    epoch: int
    batches: list[SentBatch] = field(default_factory=list)
    coordinator_epoch: int = _NONE
    last_timestamp: int = _NONE
    transaction_first_offset: int = _NONE

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else _NONE

    @property
    def last_data_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else _NONE

    def duplicate_of(self, batch: Header) -> SentBatch | None:
        """The remembered batch this is a second sending of."""
        if batch.producer_epoch != self.epoch:
            return None
        first, last = batch.base_sequence, last_sequence_of(batch)
        for sent in self.batches:
            if sent.first_sequence == first and sent.last_sequence == last:
                return sent
        return None


def last_sequence_of(batch: Header) -> int:
    """Sequence of the batch's last record; the numbers wrap at 2^31 - 1."""
    if batch.base_sequence < 0:
        return _NONE
    return (batch.base_sequence + batch.last_offset - batch.base_offset) & _SEQUENCE_MAX


class Producers:
    """All producers of one log."""

    def __init__(self, producers: Iterable[Producer] = ()) -> None:
        self._producers = {p.producer_id: p for p in producers}

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[Producer]:
        """By producer id."""
        return iter(p for _, p in sorted(self._producers.items()))

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def check(self, batch: Header, where: str) -> SentBatch | None:
        """May a leader append this batch? The batch it duplicates, if it does; else None.

        Raises KafkaError: INVALID_PRODUCER_EPOCH or OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        if batch.producer_id < 0:
            return None
        known = self._producers.get(batch.producer_id)
        if known is None:
            return None  # its state may have expired: any sequence may begin
        sent = known.duplicate_of(batch)
        if sent is not None:
            return sent
        name = f"{where}: producer {batch.producer_id}"
        if batch.producer_epoch < known.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"{name} has epoch {known.epoch}, the batch says {batch.producer_epoch}",
            )
        if batch.producer_epoch > known.epoch:
            expected = 0
        elif known.last_sequence == _NONE:
            return None
        else:
            expected = (known.last_sequence + 1) & _SEQUENCE_MAX
        if batch.base_sequence != expected:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{name} epoch {batch.producer_epoch}: expected sequence {expected}, "
                f"the batch begins with {batch.base_sequence}",
            )
        return None

    def update(self, batch: Header) -> None:
        """Take note of a batch that is in the log, gaps and all (W-7: emptied ones too)."""
        if batch.producer_id < 0 or batch.magic != 2:
            return
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            producer = Producer(batch.producer_id, batch.producer_epoch)
            self._producers[batch.producer_id] = producer
        if batch.attributes & CONTROL:
            if batch.count:  # an emptied control batch says nothing
                self._end_transaction(producer, batch)
            return
        if batch.producer_epoch != producer.epoch:
            producer.epoch = batch.producer_epoch
            producer.batches.clear()
        delta = batch.last_offset - batch.base_offset
        producer.batches.append(
            SentBatch(
                batch.base_sequence,
                last_sequence_of(batch),
                batch.last_offset,
                delta,
                batch.max_timestamp,
            )
        )
        del producer.batches[:-REMEMBERED_BATCHES]
        producer.last_timestamp = batch.max_timestamp
        if batch.attributes & TRANSACTIONAL and producer.transaction_first_offset == _NONE:
            producer.transaction_first_offset = batch.base_offset

    @staticmethod
    def _end_transaction(producer: Producer, batch: Header) -> None:
        if batch.producer_epoch != producer.epoch:
            producer.epoch = batch.producer_epoch
            producer.batches.clear()
        producer.last_timestamp = batch.max_timestamp
        producer.transaction_first_offset = _NONE

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers idle for longer, unless a transaction is open."""
        self._producers = {
            producer_id: p
            for producer_id, p in self._producers.items()
            if p.transaction_first_offset >= 0 or now_ms - p.last_timestamp < expiration_ms
        }

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest open transaction begins."""
        open_at = [
            p.transaction_first_offset
            for p in self._producers.values()
            if p.transaction_first_offset >= 0
        ]
        return min(open_at, default=None)

    def last_batches(self) -> tuple[ProducerLast, ...]:
        """For facts, by producer id."""
        return tuple(
            ProducerLast(p.producer_id, p.epoch, p.last_data_offset, p.last_timestamp)
            for _, p in sorted(self._producers.items())
        )

    def snapshot(self) -> bytes:
        """Kafka's `.snapshot` file; only each producer's last batch is in it."""
        body = struct.pack(">i", len(self._producers)) + b"".join(
            _encode(p) for p in self._producers.values()
        )
        return struct.pack(">hI", _VERSION, _crc(body)) + body

    @staticmethod
    def from_snapshot(data: bytes, where: str) -> Producers:
        """Inverse of `snapshot`; raises CorruptData."""
        if len(data) < _HEAD.size:
            raise CorruptData(where, 0, "producer snapshot cut off")
        version, crc, count = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise CorruptData(where, 0, f"unknown producer snapshot version {version}")
        if crc != _crc(data[_CRC_FROM:]):
            raise CorruptData(where, 2, "checksum of the producer snapshot does not match")
        if len(data) != _HEAD.size + count * _ENTRY.size:
            raise CorruptData(where, _CRC_FROM, f"{count} producers in {len(data)} bytes")
        return Producers(_decode(fields) for fields in _ENTRY.iter_unpack(data[_HEAD.size :]))


def _crc(data: bytes) -> int:
    return int(crc32c(np.frombuffer(data, np.uint8), 0, len(data)))


def _encode(p: Producer) -> bytes:
    last = p.batches[-1] if p.batches else SentBatch(_NONE, _NONE, _NONE, 0, _NONE)
    return _ENTRY.pack(
        p.producer_id,
        p.epoch,
        last.last_sequence,
        last.last_offset,
        last.offset_delta,
        p.last_timestamp,
        p.coordinator_epoch,
        p.transaction_first_offset,
    )


def _decode(fields: Sequence[int]) -> Producer:
    producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, first = fields
    batches = []
    if offset >= 0:
        first_sequence = (sequence - delta) & _SEQUENCE_MAX if sequence >= 0 else _NONE
        batches.append(SentBatch(first_sequence, sequence, offset, delta, timestamp))
    return Producer(producer_id, epoch, batches, coordinator_epoch, timestamp, first)


assert _ENTRY.size == 46
