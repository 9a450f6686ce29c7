"""What administrators see of transactions: DescribeTransactions and ListTransactions.

Pure functions over the coordinator's states (KIP-664; duration KIP-994, pattern KIP-1152).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.coordination.patterns import full_matches
from lapse.coordination.records.transactions import TransactionStatus
from lapse.coordination.transactions.state import NO_EPOCH, NO_ID, NO_TIME_MS, Transaction

_STATUS = {status.label: status for status in TransactionStatus}


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """One transactional id, or why it cannot be described.

    Attributes:
        state: Kafka's spelling, `Ongoing`; empty where there is an error.
        partitions: sorted; while the transaction ends, those without a marker yet.
    """

    transactional_id: str
    error: ErrorCode
    state: str = ""
    producer_id: int = NO_ID
    producer_epoch: int = NO_EPOCH
    timeout_ms: int = 0
    start_ms: int = NO_TIME_MS
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionFilter:
    """Which transactional ids ListTransactions wants; an empty filter lets all through.

    Attributes:
        states: Kafka's spellings; unknown ones are reported and match nothing.
        duration_ms: only transactions that began longer ago than this; below 0 all.
        pattern: RE2, for the whole id.
    """

    states: tuple[str, ...] = ()
    producer_ids: frozenset[int] = frozenset()
    duration_ms: int = -1
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """One row of ListTransactions."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """The answer to ListTransactions."""

    error: ErrorCode
    unknown_states: tuple[str, ...] = ()
    transactions: tuple[ListedTransaction, ...] = ()


def describe(transactional_id: str, txn: Transaction | None) -> TransactionDescription:
    """One transaction; TRANSACTIONAL_ID_NOT_FOUND where there is none, or it is being removed."""
    if txn is None or txn.status == TransactionStatus.DEAD:
        return TransactionDescription(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return TransactionDescription(
        transactional_id,
        ErrorCode.NONE,
        state=txn.status.label,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        timeout_ms=txn.timeout_ms,
        start_ms=txn.start_ms,
        partitions=tuple(sorted(txn.partitions)),
    )


def listing(
    tables: Iterable[Mapping[str, Transaction]], wanted: TransactionFilter, now_ms: int
) -> TransactionListing:
    """All transactions that pass the filter; raises INVALID_REGULAR_EXPRESSION."""
    states = {_STATUS[name] for name in wanted.states if name in _STATUS}
    found = [
        ListedTransaction(transactional_id, txn.producer_id, txn.status.label)
        for table in tables
        for transactional_id, txn in table.items()
        if txn.status != TransactionStatus.DEAD
        and (not wanted.producer_ids or txn.producer_id in wanted.producer_ids)
        and (not wanted.states or txn.status in states)
        and (wanted.duration_ms < 0 or now_ms - txn.start_ms > wanted.duration_ms)
    ]
    if wanted.pattern:
        matches = full_matches(wanted.pattern, [row.transactional_id for row in found])
        found = [row for row, match in zip(found, matches, strict=True) if match]
    unknown = tuple(name for name in wanted.states if name not in _STATUS)
    return TransactionListing(ErrorCode.NONE, unknown, tuple(found))
