"""Transactions, as the entries of their topic leave them."""

from __future__ import annotations

import pytest

from lapse.coordination.records.entries import Write, decode_entry, encode_entry
from lapse.coordination.records.transactions import (
    TRANSACTION_LOG,
    TYPES,
    TransactionLogKey,
    TransactionLogValue,
    TransactionPartitions,
    TransactionStatus,
    fold_transactions,
)
from lapse.wire.errors import UnsupportedVersion


def value(status: TransactionStatus, **more: int) -> TransactionLogValue:
    return TransactionLogValue(
        producer_id=5,
        producer_epoch=1,
        transaction_timeout_ms=60_000,
        transaction_status=status,
        transaction_partitions=(TransactionPartitions(topic="t", partition_ids=(0, 2)),),
        transaction_last_update_timestamp_ms=7,
        transaction_start_timestamp_ms=6,
        **more,
    )


def write(offset: int, name: str, said: TransactionLogValue | None) -> Write:
    key = TransactionLogKey(transactional_id=name)
    return Write(offset, decode_entry(TYPES, *encode_entry(TRANSACTION_LOG, key, said)))


def test_the_last_state_of_each_id() -> None:
    ongoing, done = value(TransactionStatus.ONGOING), value(TransactionStatus.COMPLETE_COMMIT)
    events = [write(0, "z", ongoing), write(1, "a", ongoing), write(2, "z", done)]
    folded = fold_transactions(events)
    assert list(folded.items()) == [("a", ongoing), ("z", done)]
    assert fold_transactions([*events, write(3, "a", None)]) == {"z": done}


def test_the_old_version_has_no_other_producer_ids() -> None:
    key = TransactionLogKey(transactional_id="a")
    plain = value(TransactionStatus.EMPTY)
    assert encode_entry(TRANSACTION_LOG, key, plain, 0)[1] is not None
    with pytest.raises(UnsupportedVersion, match="previous_producer_id"):
        encode_entry(
            TRANSACTION_LOG, key, value(TransactionStatus.EMPTY, previous_producer_id=4), 0
        )


def test_labels_are_kafkas() -> None:
    assert [status.label for status in TransactionStatus] == [
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort",
        "Dead", "PrepareEpochFence",
    ]  # fmt: skip
