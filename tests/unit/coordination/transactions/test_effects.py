"""A store's record, as Kafka reads it."""

from __future__ import annotations

from lapse.coordination.records.entries import decode_entry
from lapse.coordination.records.transactions import TYPES, TransactionLogKey
from lapse.coordination.transactions.effects import Store
from lapse.coordination.transactions.state import Transaction, log_value


def test_record() -> None:
    value = log_value(Transaction(7, 1000, 5, producer_epoch=0, previous_producer_id=6), 1)
    entry = decode_entry(TYPES, *Store(1, 0, 3, "id-é", value, 1).record())
    assert entry.key == TransactionLogKey(transactional_id="id-é")
    assert (entry.value, entry.version) == (value, 1)


def test_tombstone() -> None:
    entry = decode_entry(TYPES, *Store(1, 0, 3, "id", None, 1).record())
    assert (entry.key.transactional_id, entry.value) == ("id", None)
