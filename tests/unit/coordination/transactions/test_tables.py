"""Which partitions are led, which load, and whose ids are whose."""

from __future__ import annotations

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.coordination.partitioning import partition_for
from lapse.coordination.records.transactions import TransactionStatus
from lapse.coordination.transactions.state import ProducerIdAndEpoch, Transaction
from lapse.coordination.transactions.tables import LoadedPartition, TransactionTables

TXN = Transaction(producer_id=7, timeout_ms=1, last_update_ms=0, producer_epoch=3)
HERE = partition_for("a", 2)


def tables() -> TransactionTables:
    found = TransactionTables(2)
    found.begin_load(HERE, 5)
    found.install(LoadedPartition(HERE, 5, {"a": TXN}))
    return found


def code(found: TransactionTables, name: str) -> ErrorCode:
    try:
        found.partition(name)
    except KafkaError as refused:
        return refused.code
    return ErrorCode.NONE


def test_what_a_name_is_told() -> None:
    found = TransactionTables(2)
    other = next(name for name in "bcd" if partition_for(name, 2) != HERE)
    assert code(found, "") == ErrorCode.INVALID_REQUEST
    assert code(found, "a") == ErrorCode.NOT_COORDINATOR
    found.begin_load(HERE, 5)
    assert code(found, "a") == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert found.awaits(HERE, 5)
    assert not found.awaits(HERE, 4)
    assert not found.awaits(1 - HERE, 5)
    found.install(LoadedPartition(HERE, 5))
    assert code(found, "a") == ErrorCode.NONE
    assert code(found, other) == ErrorCode.NOT_COORDINATOR
    assert not found.is_loading
    found.remove(HERE)
    assert code(found, "a") == ErrorCode.NOT_COORDINATOR
    found.begin_load(HERE, 6)
    found.remove(HERE)
    assert not found.is_loading


@pytest.mark.parametrize(
    ("name", "producer_id", "epoch", "error"),
    [
        ("a", 7, 3, None),
        ("a", 7, 2, ErrorCode.PRODUCER_FENCED),
        ("a", 7, 4, ErrorCode.PRODUCER_FENCED),
        ("a", 8, 3, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ("a", 8, 2, ErrorCode.INVALID_PRODUCER_ID_MAPPING),  # the id is looked at first
        ("aaa", 7, 3, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_whose_it_is(name: str, producer_id: int, epoch: int, error: ErrorCode | None) -> None:
    assert partition_for(name, 2) == HERE
    found, producer = tables(), ProducerIdAndEpoch(producer_id, epoch)
    if error is None:
        partition, txn = found.owned(name, producer)
        assert (partition.number, partition.coordinator_epoch, txn) == (HERE, 5, TXN)
        return
    with pytest.raises(KafkaError) as refused:
        found.owned(name, producer)
    assert refused.value.code == error


def test_idle_has_no_step_under_way() -> None:
    found = tables()
    (partition,) = found.loaded()
    assert found.find("a") is partition
    assert [(name, txn) for _, name, txn in found.idle()] == [("a", TXN)]
    partition.transactions["a"] = Transaction(7, 1, 0, pending=TransactionStatus.DEAD)
    assert found.idle() == []
