"""Kafka's own way with transactions, X-1 … X-7; tests/oracle shows that it is Kafka's."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from lapse.kernels.layout import BATCH, CONTROL, DELETE_HORIZON, TRANSACTIONAL
from lapse.kernels.markers import ABORT, COMMIT, OTHER
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.kafka_transactions import Read, SegmentTransactions, listed_for, replay
from lapse.lifecycle.round.plan import RoundPlan
from lapse.log.txn_index import AbortedTxn, encode_entries
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from tests.unit.lifecycle.round.test_rewrite import (
    NOW,
    batches,
    data,
    marker,
    offsets,
    plan_of,
    run,
)

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


def kafkas(
    directory: Path, content: bytes, upper: int, listed: list[AbortedTxn], dirty: int = 0
) -> RoundPlan:
    """A round of Kafka's over one segment."""
    (directory / f"{0:020d}.txnindex").write_bytes(encode_entries(listed))
    (directory / "².txnindex").write_bytes(b"a stranger's")
    return plan_of(
        directory, (0, content), upper=upper, dirty=dirty, rules=Rules.KAFKA_43, probe_always=True
    )


def test_an_abort_that_a_segment_ends_with_is_looked_up(tmp_path: Path) -> None:
    """X-1: up to where the segment ends, the last transaction in it too."""
    content = data(0, b"a", producer=7, transactional=True) + marker(1, 7, commit=False)
    plan = kafkas(tmp_path, content, 2, [AbortedTxn(7, 0, 1, 2)])
    assert run(plan).groups[0].removed == {"aborted": 1}
    assert offsets(plan, 0) == [1]
    log = data(0, b"x") + data(1, b"a", producer=7, transactional=True) + marker(2, 7, commit=False)
    plan = kafkas(tmp_path, log, 3, [AbortedTxn(7, 1, 2, 3)])
    assert run(plan).groups[0].removed == {"aborted": 1}


def test_x7_a_marker_is_stamped_once_nothing_was_read_that_it_is_about(tmp_path: Path) -> None:
    """Each marker by its own transaction, whatever became of the others."""
    content = (
        data(0, b"a", producer=7, transactional=True) + marker(1, 7, commit=True)
        + marker(2, 7, commit=True) + data(3, b"b", producer=8, transactional=True)
        + marker(4, 8, commit=True) + marker(5, 9, commit=False)
    )  # fmt: skip
    plan = kafkas(tmp_path, content, 6, [])
    assert run(plan).groups[0].stamped == 2
    stamped = [b.base_offset for b in batches(plan, 0) if b.attributes & DELETE_HORIZON]
    assert stamped == [2, 5]


def from_within(directory: Path, *records: NewRecord) -> RoundPlan:
    """The map is built from offset 2 on, behind the marker of an abort that an index lists.

    So to it these records, which are committed, are aborted ones still; "k" is written once more
    above them.
    """
    before = data(0, b"x", producer=7, transactional=True) + marker(1, 7, commit=False)
    spec = BatchSpec(2, producer_id=7, producer_epoch=0, base_sequence=1, transactional=True)
    last = 2 + len(records)
    content = before + build_batch(records, spec) + marker(last, 7, commit=True)
    content += data(last + 1, b"k")
    (directory / f"{0:020d}.index").write_bytes(struct.pack(">ii", 2, len(before)))
    return kafkas(directory, content, last + 2, [AbortedTxn(7, 0, 1, 2)], dirty=2)


def test_records_that_the_map_has_not_heard_of_are_asked_about_one_by_one(tmp_path: Path) -> None:
    """As Kafka asks about each when it copies: an older value goes, and what has no key."""
    plan = from_within(
        tmp_path, NewRecord(b"own", b"1", NOW), NewRecord(b"k", b"2", NOW),
        NewRecord(None, b"3", NOW), NewRecord(b"other", b"4", NOW),
    )  # fmt: skip
    [group] = run(plan).groups
    assert group.removed == {"aborted": 1, "superseded": 1, "keyless": 1}
    assert offsets(plan, 0) == [1, 2, 5, 6, 7]
    assert group.stamped == 0


def test_and_a_tombstone_among_them_gets_its_horizon(tmp_path: Path) -> None:
    plan = from_within(tmp_path, NewRecord(b"dead", None, NOW))
    assert run(plan).groups[0].stamped == 1
    stamped = [b.base_offset for b in batches(plan, 0) if b.attributes & DELETE_HORIZON]
    assert stamped == [2]
