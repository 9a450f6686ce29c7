"""What the coordinator knows of one transactional id, and which steps it may take.

`RULES` has every pair of state and event; nothing else decides what follows what. The functions
below it make the state that a step leads to: pure, from values to values. Called by
`coordinator`, which stores a state before it counts.

The protocol is KIP-98's with KIP-360's recovery, as Kafka 4.3 runs it at `transaction.version` 0
and 1: a transaction keeps its epoch from start to end. What KIP-890's version 2 left in a log that
real Kafka wrote (a next producer id) is still completed as it wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.base.times import after_ms
from lapse.coordination.records.transactions import (
    TransactionLogValue,
    TransactionPartitions,
    TransactionStatus,
)

NO_ID = -1
NO_EPOCH = -1
NO_TIME_MS = -1
EPOCH_MAX = (1 << 15) - 1
# The last epoch a client is given: one more is kept back, so that its holder can be fenced.
EPOCH_LAST = EPOCH_MAX - 1
EPOCH_BUMPED_BY_END = 2  # the transaction.version whose EndTxn takes a new epoch


class Event(Enum):
    """What can happen to a transactional id that has no step under way."""

    INIT = "InitProducerId"
    ADD = "AddPartitionsToTxn or AddOffsetsToTxn"
    COMMIT = "EndTxn, to commit"
    ABORT = "EndTxn, to abort"
    TIME_OUT = "the transaction is older than its timeout"
    FENCED = "the epoch is raised in memory, the producer shut out"
    MARKED = "every partition has its marker"
    EXPIRE = "the id has not been used for transactional.id.expiration.ms"


# The state to go to; the error a client gets (NONE: its request is done already); or None
# where the event has no meaning and changes nothing.
Rule = TransactionStatus | ErrorCode | None

_BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
_INVALID = ErrorCode.INVALID_TXN_STATE
_DONE = ErrorCode.NONE
_BUG = ErrorCode.UNKNOWN_SERVER_ERROR  # where Kafka throws: no transaction stays in such a state
_S = TransactionStatus

# What clients ask for.
_REQUESTS = (Event.INIT, Event.ADD, Event.COMMIT, Event.ABORT)
_REQUEST_RULES: Mapping[TransactionStatus, tuple[Rule, Rule, Rule, Rule]] = {
    _S.EMPTY: (_S.EMPTY, _S.ONGOING, _INVALID, _INVALID),
    _S.ONGOING: (_S.PREPARE_EPOCH_FENCE, _S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT),
    _S.PREPARE_COMMIT: (_BUSY, _BUSY, _BUSY, _INVALID),
    _S.PREPARE_ABORT: (_BUSY, _BUSY, _INVALID, _BUSY),
    _S.COMPLETE_COMMIT: (_S.EMPTY, _S.ONGOING, _DONE, _INVALID),
    _S.COMPLETE_ABORT: (_S.EMPTY, _S.ONGOING, _INVALID, _DONE),
    _S.DEAD: (_BUG, _BUG, _BUG, _BUG),
    _S.PREPARE_EPOCH_FENCE: (_BUG, _BUG, _BUG, _BUG),
}
# What happens by itself; pairs that are not here change nothing.
_INNER_RULES: Mapping[tuple[TransactionStatus, Event], Rule] = {
    (_S.ONGOING, Event.TIME_OUT): _S.PREPARE_EPOCH_FENCE,
    (_S.PREPARE_EPOCH_FENCE, Event.FENCED): _S.PREPARE_ABORT,
    (_S.PREPARE_COMMIT, Event.MARKED): _S.COMPLETE_COMMIT,
    (_S.PREPARE_ABORT, Event.MARKED): _S.COMPLETE_ABORT,
    (_S.EMPTY, Event.EXPIRE): _S.DEAD,
    (_S.COMPLETE_COMMIT, Event.EXPIRE): _S.DEAD,
    (_S.COMPLETE_ABORT, Event.EXPIRE): _S.DEAD,
}
RULES: Mapping[tuple[TransactionStatus, Event], Rule] = {
    (status, event): (
        _REQUEST_RULES[status][_REQUESTS.index(event)]
        if event in _REQUESTS
        else _INNER_RULES.get((status, event))
    )
    for status in TransactionStatus
    for event in Event
}

ENDING = (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)
COMPLETED = (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)


@dataclass(frozen=True, slots=True)
class ProducerIdAndEpoch:
    """Who a request says it is from."""

    producer_id: int
    epoch: int

    @property
    def is_given(self) -> bool:
        """Whether both are there. An epoch of -1 would equal those that are not known."""
        return self.producer_id != NO_ID and self.epoch != NO_EPOCH


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id; times are Unix ms, -1 where there is none.

    Attributes:
        producer_epoch: -1 until the first InitProducerId is stored.
        last_producer_epoch: the one before, if the producer itself requested the present one
            (KIP-360: its retry is answered again); never stored.
        partitions: while the transaction ends, those that have no marker yet.
        start_ms: when the first partition was added.
        pending: the state that a step under way leads to; no other step starts meanwhile.
        fence_failed: the epoch was raised in memory to shut a producer out, the store failed, and
            no client got the epoch: it is not raised again (KAFKA-9666).
    """

    producer_id: int
    timeout_ms: int
    last_update_ms: int
    status: TransactionStatus = TransactionStatus.EMPTY
    producer_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    next_producer_epoch: int = NO_EPOCH
    last_producer_epoch: int = NO_EPOCH
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIME_MS
    client_version: int = 0
    pending: TransactionStatus | None = None
    fence_failed: bool = False

    @property
    def commits(self) -> bool:
        """Whether the decision is made and is to commit."""
        return self.status == TransactionStatus.PREPARE_COMMIT

    @property
    def epoch_exhausted(self) -> bool:
        """Whether the producer needs a new producer id to get another epoch."""
        return self.producer_epoch >= EPOCH_LAST

    def is_timed_out(self, now_ms: int) -> bool:
        """Whether an open transaction is older than its timeout."""
        return after_ms(self.start_ms, self.timeout_ms) < now_ms


# --- steps: the state each leads to ------------------------------------------------------------


def _step(txn: Transaction, status: TransactionStatus, now_ms: int) -> Transaction:
    return replace(
        txn,
        status=status,
        last_update_ms=now_ms,
        pending=None,
        previous_producer_id=txn.producer_id,
    )


def may_initialise(txn: Transaction, expected: ProducerIdAndEpoch) -> bool:
    """Whether a producer that names its id and epoch still owns the transactional id.

    It does if the id is new here; if it names the present producer id (its epoch is looked at when
    a new one is given); or the one before with an exhausted epoch, when it never saw the answer
    that gave it the present one.
    """
    return (
        txn.producer_epoch == NO_EPOCH
        or expected.producer_id == txn.producer_id
        or (expected.producer_id == txn.previous_producer_id and expected.epoch >= EPOCH_LAST)
    )


def needs_new_id(txn: Transaction, expected: ProducerIdAndEpoch | None) -> bool:
    """Whether InitProducerId must take another producer id."""
    return txn.epoch_exhausted and (expected is None or expected.epoch == txn.producer_epoch)


def with_new_id(
    txn: Transaction, producer_id: int, *, keep_last_epoch: bool, timeout_ms: int, now_ms: int
) -> Transaction:
    """Epoch 0 of another producer id."""
    return replace(
        _step(txn, TransactionStatus.EMPTY, now_ms),
        producer_id=producer_id,
        producer_epoch=0,
        last_producer_epoch=txn.producer_epoch if keep_last_epoch else NO_EPOCH,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_ms=NO_TIME_MS,
    )


def with_next_epoch(
    txn: Transaction, expected_epoch: int | None, *, timeout_ms: int, now_ms: int
) -> Transaction:
    """The next epoch of the same producer id; the present one again for a repeated request.

    Raises PRODUCER_FENCED where `expected_epoch` is neither the present one nor, after a bump that
    its producer requested, the one before. Also for an exhausted epoch, where Kafka throws.
    """
    if expected_epoch is None:
        epoch, last = txn.producer_epoch + 1, NO_EPOCH
    elif txn.producer_epoch in {NO_EPOCH, expected_epoch}:
        epoch, last = txn.producer_epoch + 1, txn.producer_epoch
    elif expected_epoch == txn.last_producer_epoch:
        epoch, last = txn.producer_epoch, txn.last_producer_epoch
    else:
        raise KafkaError(
            ErrorCode.PRODUCER_FENCED,
            f"producer {txn.producer_id} is at epoch {txn.producer_epoch}, not {expected_epoch}",
        )
    return replace(
        _step(txn, TransactionStatus.EMPTY, now_ms),
        producer_epoch=epoch,
        last_producer_epoch=last,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_ms=NO_TIME_MS,
    )


def with_partitions(
    txn: Transaction, partitions: Iterable[TopicPartition], now_ms: int
) -> Transaction:
    """The transaction with more partitions; it starts now unless it is going on."""
    going_on = txn.status == TransactionStatus.ONGOING
    return replace(
        _step(txn, TransactionStatus.ONGOING, now_ms),
        partitions=txn.partitions.union(partitions),
        start_ms=txn.start_ms if going_on else now_ms,
        client_version=0,
    )


def fenced(txn: Transaction) -> Transaction:
    """The epoch raised so that its present holder is refused from here on.

    The state stays as it is: PREPARE_EPOCH_FENCE is only what is pending until the abort is.
    """
    kept = txn.fence_failed or txn.producer_epoch == EPOCH_MAX
    return replace(
        txn,
        producer_epoch=txn.producer_epoch + (0 if kept else 1),
        last_producer_epoch=NO_EPOCH,
        pending=TransactionStatus.PREPARE_EPOCH_FENCE,
    )


def decided(txn: Transaction, status: TransactionStatus, now_ms: int) -> Transaction:
    """The transaction as decided: PREPARE_COMMIT or PREPARE_ABORT."""
    return replace(
        _step(txn, status, now_ms),
        client_version=0,
        next_producer_id=NO_ID,
        next_producer_epoch=NO_EPOCH,
    )


def completed(txn: Transaction, status: TransactionStatus) -> Transaction:
    """The transaction with all its markers written."""
    done = replace(
        _step(txn, status, txn.last_update_ms),
        partitions=frozenset(),
        next_producer_id=NO_ID,
        next_producer_epoch=NO_EPOCH,
        fence_failed=False,
    )
    if txn.client_version >= EPOCH_BUMPED_BY_END and txn.next_producer_id != NO_ID:
        return replace(done, producer_id=txn.next_producer_id, producer_epoch=0)
    return done


# --- the log -----------------------------------------------------------------------------------


def log_value(txn: Transaction, version: int) -> TransactionLogValue:
    """What is stored; version 0 has no place for other producer ids and leaves them out."""
    partitions = None if txn.status == TransactionStatus.EMPTY else _by_topic(txn.partitions)
    value = TransactionLogValue(
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        transaction_timeout_ms=txn.timeout_ms,
        transaction_status=txn.status,
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=txn.last_update_ms,
        transaction_start_timestamp_ms=txn.start_ms,
    )
    if version == 0:
        return value
    return replace(
        value,
        previous_producer_id=txn.previous_producer_id,
        next_producer_id=txn.next_producer_id,
        next_producer_epoch=txn.next_producer_epoch,
        client_transaction_version=txn.client_version,
    )


def from_log_value(transactional_id: str, value: TransactionLogValue) -> Transaction:
    """What was stored, with no step under way; UNKNOWN_SERVER_ERROR for an unknown state."""
    try:
        status = TransactionStatus(value.transaction_status)
    except ValueError:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"transactional id {transactional_id!r} is stored in state "
            f"{value.transaction_status}, which this version does not know",
        ) from None
    return Transaction(
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        next_producer_epoch=value.next_producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        status=status,
        partitions=frozenset(
            TopicPartition(topic.topic, number)
            for topic in value.transaction_partitions or ()
            for number in topic.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        last_update_ms=value.transaction_last_update_timestamp_ms,
        client_version=value.client_transaction_version,
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> tuple[TransactionPartitions, ...]:
    return tuple(
        TransactionPartitions(topic=topic, partition_ids=tuple(tp.partition for tp in group))
        for topic, group in groupby(sorted(partitions), key=lambda tp: tp.topic)
    )
