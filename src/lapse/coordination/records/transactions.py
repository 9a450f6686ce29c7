"""`__transaction_state`: one entry a transactional id, as Kafka 4.3 writes it.

v1 of the value (KIP-890, `transaction.version` 1 and later) is flexible and remembers the producer
ids before and after the present one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from lapse.coordination.records.entries import EntryType, Marker, Types, Write, fold
from lapse.wire.declaration import (
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    array,
    field,
    header,
    struct,
)

TOPIC = "__transaction_state"


class TransactionStatus(IntEnum):
    """Where a transaction stands."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """Kafka's spelling, `CompleteCommit`."""
        return self.name.title().replace("_", "")


@header(versions="0-0", flexible="1+")
class TransactionLogKey:
    """A transactional id."""

    transactional_id: str = field(STRING)


@struct
class TransactionPartitions:
    """Partitions of a topic that a transaction wrote to."""

    topic: str = field(STRING)
    partition_ids: tuple[int, ...] = field(array(INT32))


@header(versions="0-1", flexible="1+")
class TransactionLogValue:
    """A transactional id's state; times are -1 where there is none yet."""

    producer_id: int = field(INT64)
    previous_producer_id: int = field(INT64, "1+", tag=0, default=-1)
    next_producer_id: int = field(INT64, "1+", tag=1, default=-1)
    producer_epoch: int = field(INT16)
    next_producer_epoch: int = field(INT16, "1+", tag=3, default=-1)
    transaction_timeout_ms: int = field(INT32)
    transaction_status: int = field(INT8)
    transaction_partitions: tuple[TransactionPartitions, ...] | None = field(
        array(TransactionPartitions), nullable="0+"
    )
    transaction_last_update_timestamp_ms: int = field(INT64)
    transaction_start_timestamp_ms: int = field(INT64)
    client_transaction_version: int = field(INT16, "1+", tag=2, default=0)


TRANSACTION_LOG = EntryType(0, "TRANSACTION_LOG", TransactionLogKey, TransactionLogValue, 1)
TYPES: Types = {TRANSACTION_LOG.id: TRANSACTION_LOG}


def fold_transactions(events: Iterable[Write | Marker]) -> Mapping[str, TransactionLogValue]:
    """State by transactional id, sorted."""
    values = fold(events).of(TRANSACTION_LOG)
    return {
        key.transactional_id: values[key]
        for key in sorted(values, key=lambda key: key.transactional_id)
    }
