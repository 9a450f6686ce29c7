"""What the transaction coordinator wants done, as data.

`coordinator` returns these; its owner carries them out in order and reports back:
`Store` → `stored`, `WriteMarkers` → `markers_written`, `AllocateProducerIds` →
`producer_ids_allocated`. Each must be reported, also when it failed.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.coordination.records.entries import encode_entry
from lapse.coordination.records.transactions import (
    TRANSACTION_LOG,
    TransactionLogKey,
    TransactionLogValue,
)
from lapse.coordination.transactions.state import NO_EPOCH, NO_ID


@dataclass(frozen=True, slots=True)
class Store:
    """Append one record to `__transaction_state`-`partition`, and sync it as that topic requires.

    Attributes:
        ticket: names this store in `stored`.
        coordinator_epoch: the leader epoch under which it may be appended.
        value: None is a tombstone.
        version: of the value.
    """

    ticket: int
    partition: int
    coordinator_epoch: int
    transactional_id: str
    value: TransactionLogValue | None
    version: int

    def record(self) -> tuple[bytes, bytes | None]:
        """Key and value bytes of the record; Kafka writes it without compression."""
        key = TransactionLogKey(transactional_id=self.transactional_id)
        return encode_entry(TRANSACTION_LOG, key, self.value, self.version)


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """End the producer's transaction in each of these partitions (WriteTxnMarkers).

    Attributes:
        ticket: names these markers; the effect itself is handed back to `markers_written`.
        partitions: sorted; never empty.
    """

    ticket: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a client; the producer id and epoch are only InitProducerId's."""

    error: ErrorCode
    producer_id: int = NO_ID
    producer_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request that came with `token`; each token is answered once."""

    token: Hashable
    answer: Answer


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    """Take a block of `count` producer ids from the metadata store, durably."""

    count: int


Effect = Store | WriteMarkers | Reply | AllocateProducerIds
