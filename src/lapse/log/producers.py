"""What a log remembers of idempotent producers, and Kafka's `.snapshot` file of it.

What Kafka calls ProducerStateManager.

Sequence rules are Kafka's: a producer's batches must follow each other; one of the last five sent
again is a duplicate and is answered as it was the first time; an older epoch is fenced. So are
those of transactions: one begins with a producer's first transactional batch and ends with its
next marker; a marker must not come from an older producer epoch or an older coordinator. State is
made again from batch headers and markers after a crash, starting from the newest snapshot
(P-1 … P-4; `log.replay`).

`check*` decide and change nothing; `update` records what is in the log. A snapshot at base B
has the state after all batches below B, so that recovery reads only from B on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lapse.base.errors import CorruptData, ErrorCode, KafkaError
from lapse.kernels.crc32c import crc32c
from lapse.kernels.layout import CONTROL, TRANSACTIONAL
from lapse.log.facts import ProducerLast
from lapse.log.markers import EndMarker
from lapse.log.txn_index import AbortedTxn
from lapse.records.batch import Header

REMEMBERED_BATCHES = 5
_SEQUENCE_MAX = (1 << 31) - 1
_NONE = -1

_VERSION = 1
_HEAD = struct.Struct(">hIi")  # version, CRC-32C of what follows it, entries
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_FROM = 6  # the count and the entries
_JAVA_BUCKETS_MIN = 16


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
        coordinator_epoch: in its last marker; -1 before the first.
        last_timestamp: of its last batch or marker.
        transaction_first_offset: where its open transaction began; -1 outside one.
        last_marker_offset: of its last marker since the log was opened; -1 before the first.
    """

    producer_id: int
    epoch: int
    batches: list[SentBatch] = field(default_factory=list)
    coordinator_epoch: int = _NONE
    last_timestamp: int = _NONE
    transaction_first_offset: int = _NONE
    last_marker_offset: int = _NONE

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

    def has_ended(self, sent: SentBatch) -> bool:
        """Whether the transaction of that batch is over: then no producer sends it again.

        A batch with its sequence numbers is another one. Kafka takes it for a duplicate, so that
        new records are acknowledged and nowhere: librdkafka gives them the numbers of those that it
        had no answer for when it aborted.
        """
        first = self.transaction_first_offset
        return first == _NONE or sent.last_offset < first


def last_sequence_of(batch: Header) -> int:
    """Sequence of the batch's last record; the numbers wrap at 2^31 - 1."""
    if batch.base_sequence < 0:
        return _NONE
    return (batch.base_sequence + batch.last_offset - batch.base_offset) & _SEQUENCE_MAX


class EndedTxn(NamedTuple):
    """A transaction that a marker ended, and had data here.

    Attributes:
        last_offset: the marker's.
        aborted: its entry for the transaction index; None if it was committed.
    """

    first_offset: int
    last_offset: int
    aborted: AbortedTxn | None


class Producers:
    """All producers of one log."""

    def __init__(self, producers: Iterable[Producer] = ()) -> None:
        self._producers = {p.producer_id: p for p in producers}
        self._open = {
            p.transaction_first_offset: p.producer_id
            for p in self._producers.values()
            if p.transaction_first_offset >= 0
        }

    def __iter__(self) -> Iterator[Producer]:
        """By producer id."""
        return iter(p for _, p in sorted(self._producers.items()))

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def check(self, batch: Header, where: str) -> SentBatch | None:
        """May a leader append this data batch? The batch it duplicates, if it does; else None.

        Raises KafkaError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_TXN_STATE.
        """
        if batch.producer_id < 0:
            return None
        known = self._producers.get(batch.producer_id)
        if known is None:
            return None  # its state may have expired: any sequence may begin
        sent = known.duplicate_of(batch)
        if sent is not None and not (batch.attributes & TRANSACTIONAL and known.has_ended(sent)):
            return sent
        name = f"{where}: producer {batch.producer_id}"
        _check_epoch(known, batch.producer_epoch, name)
        if batch.producer_epoch > known.epoch or known.last_sequence == _NONE:
            expected = 0  # also after a marker that raised the epoch
        else:
            expected = (known.last_sequence + 1) & _SEQUENCE_MAX
        if batch.base_sequence != expected:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{name} epoch {batch.producer_epoch}: expected sequence {expected}, "
                f"the batch begins with {batch.base_sequence}",
            )
        if known.transaction_first_offset >= 0 and not batch.attributes & TRANSACTIONAL:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"{name} has a transaction open since offset {known.transaction_first_offset}, "
                "the batch is not part of one",
            )
        return None

    def check_epoch(self, producer_id: int, producer_epoch: int, where: str) -> None:
        """Raise KafkaError INVALID_PRODUCER_EPOCH where a newer epoch of the producer is known."""
        known = self._producers.get(producer_id)
        if known is not None:
            _check_epoch(known, producer_epoch, f"{where}: producer {producer_id}")

    def is_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer, in this epoch, has a transaction open here."""
        known = self._producers.get(producer_id)
        return (
            known is not None
            and known.epoch == producer_epoch
            and known.transaction_first_offset >= 0
        )

    def check_verified(self, producer_id: int, verified_at: int, where: str) -> None:
        """Refuse to write for a transaction that went on at log end `verified_at`, and has ended.

        Raises KafkaError INVALID_TXN_STATE where a marker came since: what was verified before it
        would begin a transaction that is never ended (KIP-890).
        """
        known = self._producers.get(producer_id)
        if known is not None and known.last_marker_offset >= verified_at:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"{where}: producer {producer_id}: the transaction ended at offset "
                f"{known.last_marker_offset}, before this was appended",
            )

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, where: str
    ) -> None:
        """May a coordinator end the producer's transaction? Says nothing if so.

        Raises KafkaError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        known = self._producers.get(producer_id)
        if known is None:
            return
        name = f"{where}: producer {producer_id}"
        _check_epoch(known, producer_epoch, name)
        if coordinator_epoch < known.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"{name} had a marker of coordinator epoch {known.coordinator_epoch}, "
                f"this one says {coordinator_epoch}",
            )

    def update(self, batch: Header, marker: EndMarker | None = None) -> EndedTxn | None:
        """Take note of a batch that is in the log, gaps and all (W-7: emptied ones too).

        `marker` is what a control batch says; one that says nothing (emptied, or of another
        type) is ignored. Returns the transaction that this ends, if it had data.
        """
        if batch.producer_id < 0 or batch.magic != 2:
            return None
        if batch.attributes & CONTROL:
            return None if marker is None else self._end_transaction(batch, marker)
        producer = self._of_epoch(batch)
        first_sequence, delta = batch.base_sequence, batch.last_offset - batch.base_offset
        last_sequence = _NONE if first_sequence < 0 else (first_sequence + delta) & _SEQUENCE_MAX
        batches = producer.batches
        batches.append(
            SentBatch(first_sequence, last_sequence, batch.last_offset, delta, batch.max_timestamp)
        )
        if len(batches) > REMEMBERED_BATCHES:
            del batches[0]
        producer.last_timestamp = batch.max_timestamp
        # A bare header begins no transaction: its marker may have gone with its records.
        begins = batch.count > 0 and producer.transaction_first_offset == _NONE
        if begins and batch.attributes & TRANSACTIONAL:
            producer.transaction_first_offset = batch.base_offset
            self._open[batch.base_offset] = batch.producer_id
        return None

    def _end_transaction(self, batch: Header, marker: EndMarker) -> EndedTxn | None:
        producer = self._of_epoch(batch)
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp = batch.max_timestamp
        producer.last_marker_offset = batch.last_offset
        first = producer.transaction_first_offset
        if first == _NONE:
            return None  # nothing of it is here: no reader need know
        producer.transaction_first_offset = _NONE
        self._open.pop(first, None)
        aborted = None
        if not marker.commit:
            stable = min(self._open, default=batch.last_offset + 1)
            aborted = AbortedTxn(batch.producer_id, first, batch.last_offset, stable)
        return EndedTxn(first, batch.last_offset, aborted)

    def _of_epoch(self, batch: Header) -> Producer:
        """The batch's producer; another epoch than before, even a lower one, begins anew."""
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            producer = Producer(batch.producer_id, batch.producer_epoch)
            self._producers[batch.producer_id] = producer
        elif batch.producer_epoch != producer.epoch:
            producer.epoch = batch.producer_epoch
            producer.batches.clear()
        return producer

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers idle for longer, unless a transaction is open."""
        gone = [
            p.producer_id
            for p in self._producers.values()
            if p.transaction_first_offset < 0 and now_ms - p.last_timestamp >= expiration_ms
        ]
        for producer_id in gone:
            del self._producers[producer_id]

    def open_transactions(self) -> dict[int, int]:
        """Producer id → where its open transaction began."""
        return {producer_id: first for first, producer_id in self._open.items()}

    def forget_transaction(self, producer_id: int) -> None:
        """End a transaction whose outcome is unknown: no batch or marker of it is left."""
        producer = self._producers[producer_id]
        self._open.pop(producer.transaction_first_offset, None)
        producer.transaction_first_offset = _NONE

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest open transaction begins."""
        return min(self._open, default=None)

    def ids(self) -> list[int]:
        """In no order: a copy is all that this costs."""
        return list(self._producers)

    def last_batches(self, producer_ids: Iterable[int] | None = None) -> tuple[ProducerLast, ...]:
        """For facts: of these as far as they are known, or of all by producer id."""
        wanted = sorted(self._producers) if producer_ids is None else producer_ids
        known = filter(None, map(self._producers.get, wanted))
        return tuple(
            ProducerLast(p.producer_id, p.epoch, p.last_data_offset, p.last_timestamp)
            for p in known
        )

    def snapshot(self) -> bytes:
        """Kafka's `.snapshot` file; only each producer's last batch is in it."""
        body = struct.pack(">i", len(self._producers)) + b"".join(
            _encode(p) for p in _java_order(self._producers)
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


def _check_epoch(known: Producer, epoch: int, name: str) -> None:
    if epoch < known.epoch:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH, f"{name} has epoch {known.epoch}, not {epoch}"
        )


def _java_order(producers: Mapping[int, Producer]) -> list[Producer]:
    """In the order in which Java walks a hash map of them: equal states make equal files."""
    buckets = _JAVA_BUCKETS_MIN
    while len(producers) * 4 > buckets * 3:
        buckets *= 2

    def bucket(p: Producer) -> int:
        hashed = (p.producer_id ^ p.producer_id >> 32) & 0xFFFFFFFF
        return (hashed ^ hashed >> 16) & (buckets - 1)

    return sorted(producers.values(), key=bucket)


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
