"""DescribeTransactions and ListTransactions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.coordination.records.transactions import TransactionStatus
from lapse.coordination.transactions.state import Transaction
from lapse.coordination.transactions.views import (
    ListedTransaction,
    TransactionDescription,
    TransactionFilter,
    describe,
    listing,
)

S = TransactionStatus
NOW = 10_000
TXN = Transaction(
    producer_id=5,
    timeout_ms=1000,
    last_update_ms=9_000,
    status=S.ONGOING,
    producer_epoch=3,
    partitions=frozenset({TopicPartition("t", 10), TopicPartition("t", 9), TopicPartition("a", 1)}),
    start_ms=8_000,
)
TABLES = (
    {"a": TXN, "b": replace(TXN, producer_id=6, start_ms=7_000)},
    {
        "c": Transaction(7, 1000, 9_000),
        "dead": replace(TXN, status=S.DEAD),
        "é": replace(TXN, status=S.PREPARE_COMMIT),
    },
)


def test_description() -> None:
    assert describe("a", TXN) == TransactionDescription(
        "a", ErrorCode.NONE, "Ongoing", 5, 3, 1000, 8_000,
        (TopicPartition("a", 1), TopicPartition("t", 9), TopicPartition("t", 10)),
    )  # fmt: skip


@pytest.mark.parametrize("txn", [None, replace(TXN, status=S.DEAD)])
def test_none_to_describe(txn: Transaction | None) -> None:
    expected = TransactionDescription("a", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    assert describe("a", txn) == expected


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (TransactionFilter(), "a b c é"),
        (TransactionFilter(states=("Ongoing",)), "a b"),
        (TransactionFilter(states=("Empty", "PrepareCommit")), "c é"),
        (TransactionFilter(states=("Dead",)), ""),
        (TransactionFilter(states=("ongoing",)), ""),
        (TransactionFilter(states=("Ongoing", "Fancy")), "a b"),
        (TransactionFilter(producer_ids=frozenset({6, 7})), "b c"),
        (TransactionFilter(states=("Ongoing",), producer_ids=frozenset({6})), "b"),
        (TransactionFilter(duration_ms=2_000), "b c"),  # longer than; c has not begun, as in Kafka
        (TransactionFilter(duration_ms=1_999), "a b c é"),
        (TransactionFilter(duration_ms=0), "a b c é"),
        (TransactionFilter(duration_ms=20_000), ""),
        (TransactionFilter(pattern="a|é"), "a é"),
        (TransactionFilter(pattern=""), "a b c é"),
        (TransactionFilter(pattern=".*", states=("Empty",)), "c"),
    ],
)
def test_filters(wanted: TransactionFilter, names: str) -> None:
    found = listing(TABLES, wanted, NOW)
    assert found.error == ErrorCode.NONE
    assert [row.transactional_id for row in found.transactions] == names.split()


def test_rows_and_unknown_states() -> None:
    found = listing(TABLES, TransactionFilter(states=("Empty", "Nope", "dead")), NOW)
    assert found.transactions == (ListedTransaction("c", 7, "Empty"),)
    assert found.unknown_states == ("Nope", "dead")


def test_a_wrong_pattern() -> None:
    with pytest.raises(KafkaError) as refused:
        listing(TABLES, TransactionFilter(pattern="["), NOW)
    assert refused.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION
