"""Kafka's own way with transactions, X-1 … X-7; tests/oracle shows that it is Kafka's."""

from __future__ import annotations

import numpy as np

from lapse.kernels.layout import BATCH, CONTROL, TRANSACTIONAL
from lapse.kernels.markers import ABORT, COMMIT, OTHER
from lapse.lifecycle.round.kafka_transactions import Read, SegmentTransactions, listed_for, replay
from lapse.log.txn_index import AbortedTxn

FIRST = AbortedTxn(7, 0, 3, 0)  # (producer id, first offset, last offset, last stable offset)
DATA = OTHER


def told(*kinds: int, listed: tuple[AbortedTxn, ...] = (), first: int = 0) -> SegmentTransactions:
    """Of batches of producer 7, one offset each."""
    rows = np.zeros(len(kinds), BATCH)
    rows["base_offset"] = rows["last_offset"] = np.arange(len(kinds))
    rows["producer_id"], rows["count"] = 7, 1
    types = np.array(kinds, np.uint8)
    rows["attributes"] = TRANSACTIONAL | np.where(types == OTHER, 0, CONTROL)
    [found] = replay([Read(rows, types, first, listed)])
    return found


def test_x1_an_abort_counts_where_an_index_lists_it() -> None:
    listed = told(DATA, DATA, DATA, ABORT, DATA, COMMIT, listed=(FIRST,))
    assert listed.aborted.tolist() == [True, True, True, False, False, False]
    assert listed.spent.tolist() == [False] * 6
    assert listed.entries == {3: FIRST}
    lost = told(DATA, DATA, DATA, ABORT, DATA, COMMIT)
    assert not lost.aborted.any()
    assert lost.spent.tolist() == [False, False, False, True, False, False]


def test_x3_a_marker_is_spent_where_nothing_was_read() -> None:
    found = told(ABORT, COMMIT, DATA, COMMIT, COMMIT, listed=(FIRST,))
    assert found.spent.tolist() == [True, True, False, False, True]
    assert not found.entries


def test_an_abort_whose_marker_is_not_read_stands_for_all_that_follows() -> None:
    """Where the map is built from within a segment on: a commit does not end it."""
    found = told(DATA, ABORT, DATA, COMMIT, DATA, ABORT, DATA, listed=(FIRST,), first=2)
    assert found.aborted.tolist() == [False, False, True, False, True, False, False]


def test_what_is_looked_up_is_bounded_by_the_log_start_and_the_last_stable_offset() -> None:
    low, high = AbortedTxn(1, 10, 20, 15), AbortedTxn(2, 30, 40, 41)
    above = AbortedTxn(3, 35, 60, 61)
    assert listed_for([[low, high], [above]], 0, 36) == [low, high]
    assert listed_for([[low, high], [above]], 21, 50) == [high, above]
    assert listed_for([[low], [above]], 0, 35) == [low]
