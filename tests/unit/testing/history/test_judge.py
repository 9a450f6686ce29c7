"""Each kind of fault, planted in a history by hand, is found; what is no fault is not.

Every planted fault stands beside the same history without it, which must be clean: a judge that
calls everything wrong would pass the one half, and one that sees nothing the other.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lapse.testing.history.events import (
    Disturbed,
    Isolation,
    Outcome,
    Promised,
    Quiet,
    ReadFrom,
    ReadTo,
)
from lapse.testing.history.judge import judge
from lapse.testing.history.promise import Promise
from lapse.testing.history.verdict import Fault
from tests.support.testing.history.histories import COMPACTED, TOPIC, History

FILES = Isolation.FILES
UNCOMMITTED = Isolation.UNCOMMITTED
KEPT = Promise(compacts=False)


def faults(history: History) -> list[tuple[Fault, int]]:
    return [(finding.fault, finding.offset) for finding in judge(history.events).findings]


def test_a_history_without_fault() -> None:
    """Superseded and kept, committed and aborted, expected and found."""
    h = History()
    h.write("a", "1")
    h.write("a", "2")
    h.write("b", None)
    h.write("c", "1", transaction="t1")
    h.end("t1", Outcome.COMMITTED)
    h.write("c", "2", transaction="t2")
    h.end("t2", Outcome.ABORTED)
    h.read([0, 1, 2, 3])
    h.wait(2000)
    h.read([1, 2, 3])
    h.wait(6000)
    h.read([1, 3])
    verdict = judge(h.events)
    assert verdict.findings == ()
    assert verdict.acknowledged == 4
    assert verdict.judged > 10
    assert verdict.is_clean


# --- lost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("promise", [COMPACTED, KEPT])
def test_lost_in_the_middle(promise: Promise) -> None:
    h = History(promise)
    for key in "abc":
        h.write(key, "1")
    h.read([0, 1, 2])
    assert faults(h) == []
    h.read([0, 2])
    assert faults(h) == [(Fault.LOST, 1)]


def test_lost_without_compaction_though_a_later_one_has_its_key() -> None:
    h = History(KEPT)
    h.write("a", "1")
    h.write("a", "2")
    h.wait(100_000)
    h.read([1])
    assert faults(h) == [(Fault.LOST, 0)]


def test_lost_at_the_end() -> None:
    h = History()
    h.write("a", "1")
    h.write("b", "1")
    h.read([0], to=1)
    assert faults(h) == [(Fault.LOST, 1)]


def test_an_open_transaction_hides_the_end_from_readers_of_committed_records_only() -> None:
    h = History()
    h.write("a", "1", producer="q", transaction="t")
    h.write("b", "1")
    h.read([], to=0)
    assert faults(h) == []
    h.read([], to=0, isolation=UNCOMMITTED)
    assert faults(h) == [(Fault.LOST, 0), (Fault.LOST, 1)]


def test_a_reader_that_stops_before_the_end_tells_nothing_of_the_rest() -> None:
    h = History()
    h.write("a", "1")
    h.write("b", "1")
    h.add(ReadFrom(h.now_ms, "r", TOPIC, 0, 0, Isolation.COMMITTED, from_start=True))
    h.add(h.seen(0))
    assert faults(h) == []


def test_a_reader_that_begins_later_tells_nothing_of_what_is_before() -> None:
    h = History()
    h.write("a", "1")
    h.write("b", "1")
    h.add(ReadFrom(h.now_ms, "r", TOPIC, 0, 1, Isolation.COMMITTED))
    h.add(ReadTo(h.now_ms, "r", TOPIC, 0, 2))
    assert faults(h) == [(Fault.LOST, 1)]


def test_what_is_below_the_logs_start_is_gone() -> None:
    h = History()
    h.write("a", "1")
    h.write("b", "1")
    h.add(ReadFrom(h.now_ms, "r", TOPIC, 0, 1, Isolation.COMMITTED, from_start=True))
    h.add(h.seen(1))
    assert faults(h) == [(Fault.LOST, 0)]


def test_a_live_reader_that_skips_a_record() -> None:
    h = History()
    h.add(ReadFrom(h.now_ms, "r", TOPIC, 0, 0, Isolation.COMMITTED))
    for key in "abc":
        h.write(key, "1")
    h.add(h.seen(0))
    h.add(h.seen(2))
    assert faults(h) == [(Fault.LOST, 1)]


def test_what_failed_need_not_be_there_and_may_be() -> None:
    h = History()
    h.write("a", "1")
    sent = h.send("b", "1")
    h.fail(sent)
    h.read([0])
    assert faults(h) == []
    h.at[1], h.next_offset = sent, 2
    h.read([0, 1])
    assert judge(h.events).unknown == 1
    assert faults(h) == []


def test_a_deleted_record_may_be_gone() -> None:
    h = History(KEPT)
    h.write("a", "1")
    h.write("b", "1")
    h.delete(1)
    h.read([1])
    assert faults(h) == []


def test_an_expired_record_may_be_gone() -> None:
    h = History(Promise(compacts=False, retention_ms=500))
    h.write("a", "1")
    h.read([])
    assert faults(h) == [(Fault.EARLY, 0)]
    h = History(Promise(compacts=False, retention_ms=500))
    h.write("a", "1")
    h.wait(500)
    h.read([])
    assert faults(h) == []


def test_what_a_value_of_unknown_fate_would_have_superseded_is_lost_once_a_sweep_tells() -> None:
    """That value would be there itself."""
    h = History()
    h.write("a", "1")
    sent = h.send("a", "2")
    h.wait(5000)
    h.read([])
    assert faults(h) == []
    h.fail(sent)
    h.read([])
    assert faults(h) == [(Fault.LOST, 0)]


def test_a_tombstone_of_unknown_fate_may_have_done_it() -> None:
    h = History()
    h.write("a", "1")
    h.fail(h.send("a", None))
    h.wait(10_000)
    h.read([])
    assert faults(h) == []


def test_a_tombstone_that_was_aborted_has_not() -> None:
    h = History()
    h.write("a", "1")
    h.write("a", None, transaction="t")
    h.end("t", Outcome.ABORTED)
    h.wait(10_000)
    h.read([])
    assert faults(h) == [(Fault.LOST, 0)]


# --- altered, unsent, doubled ---------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"value": "other"}, {"key": b"b"}, {"timestamp_ms": 7}])
def test_altered(change: dict[str, object]) -> None:
    h = History()
    h.write("a", "1", timestamp_ms=5)
    right = replace(h.seen(0), timestamp_ms=5)
    h.read([0], instead={0: right})
    assert faults(h) == []
    h.read([0], instead={0: replace(right, **change)})
    assert faults(h) == [(Fault.ALTERED, 0)]


def test_another_record_at_its_offset() -> None:
    h = History()
    h.write("a", "1")
    sent = h.send("b", "1")
    h.fail(sent)
    other = replace(h.seen(0), producer=sent.producer, number=sent.number, key=b"b")
    h.read([0], instead={0: other})
    assert (Fault.ALTERED, 0) in faults(h)


def test_unsent() -> None:
    h = History()
    h.write("a", "1")
    h.read([0], instead={0: replace(h.seen(0), number=9)})
    assert (Fault.UNSENT, 0) in faults(h)


def test_what_was_refused_is_there() -> None:
    h = History()
    sent = h.send("a", "1")
    h.fail(sent, is_sure=True)
    h.at[0], h.next_offset = sent, 1
    h.read([0])
    assert faults(h) == [(Fault.UNSENT, 0)]


@pytest.mark.parametrize("once", [True, False])
def test_doubled(once: bool) -> None:
    """A producer without idempotence may send twice."""
    h = History(KEPT)
    h.write("a", "1", once=once)
    h.next_offset = 2
    h.read([0, 1], instead={1: h.seen(1, of=0)})
    assert faults(h) == ([(Fault.DOUBLED, 0)] if once else [])


def test_acknowledged_twice() -> None:
    h = History(KEPT)
    sent = h.send("a", "1")
    h.acknowledge(sent)
    h.acknowledge(sent)
    assert faults(h) == [(Fault.DOUBLED, 1)]


# --- order ----------------------------------------------------------------------------------------


def test_records_of_a_producer_out_of_order() -> None:
    h = History(KEPT)
    first, second = h.send("a", "1"), h.send("b", "1")
    h.acknowledge(second)
    h.acknowledge(first)
    assert faults(h) == [(Fault.OUT_OF_ORDER, 1)]


def test_two_producers_may_overtake_each_other() -> None:
    h = History(KEPT)
    first, second = h.send("a", "1"), h.send("b", "1", producer="q")
    h.acknowledge(second)
    h.acknowledge(first)
    assert faults(h) == []


def test_a_reader_that_goes_back() -> None:
    h = History(KEPT)
    h.write("a", "1")
    h.write("b", "1")
    h.read([0, 1, 0])
    assert faults(h) == [(Fault.OUT_OF_ORDER, 0)]


# --- transactions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", [Isolation.COMMITTED, UNCOMMITTED])
def test_aborted_seen(isolation: Isolation) -> None:
    h = History()
    h.write("a", "1", transaction="t")
    h.end("t", Outcome.ABORTED)
    h.read([0], isolation=isolation)
    committed = isolation is Isolation.COMMITTED
    assert faults(h) == ([(Fault.ABORTED_SEEN, 0)] if committed else [])


@pytest.mark.parametrize(("seen", "fault"), [([], None), ([0, 1], None), ([0], Fault.TORN)])
def test_a_transaction_of_unknown_outcome_is_there_whole_or_not_at_all(
    seen: list[int], fault: Fault | None
) -> None:
    h = History()
    h.write("a", "1", transaction="t")
    h.write("b", "1", transaction="t")
    h.end("t", Outcome.UNKNOWN)
    h.read(seen)
    assert faults(h) == ([] if fault is None else [(fault, 1)])


def test_a_committed_transaction_is_lost() -> None:
    h = History()
    h.write("a", "1", transaction="t")
    h.end("t", Outcome.COMMITTED)
    h.read([])
    assert faults(h) == [(Fault.LOST, 0)]


# --- resurrected ----------------------------------------------------------------------------------


def test_resurrected_after_a_round() -> None:
    h = History()
    h.write("a", "1")
    h.write("a", "2")
    h.wait(2000)
    h.read([1])
    assert faults(h) == []
    h.read([0, 1])
    assert faults(h) == [(Fault.RESURRECTED, 0)]


def test_a_run_that_began_before_may_hold_what_is_gone_since() -> None:
    h = History()
    h.write("a", "1")
    h.write("a", "2")
    h.wait(2000)
    h.add(ReadFrom(h.now_ms, "slow", TOPIC, 0, 0, Isolation.COMMITTED, from_start=True))
    h.read([1])
    h.add(h.seen(0, reader="slow"))
    assert faults(h) == []


def test_resurrected_after_delete_records() -> None:
    h = History(KEPT)
    h.write("a", "1")
    h.write("b", "1")
    h.delete(1)
    h.read([0, 1])
    assert faults(h) == [(Fault.RESURRECTED, 0)]


def test_a_value_whose_tombstone_went_before_it() -> None:
    h = History()
    h.write("a", "1")
    h.write("a", None)
    h.write("b", "1")
    h.wait(8000)
    h.read([0, 2])
    assert faults(h) == [(Fault.RESURRECTED, 0)]


def test_a_reader_that_lags_longer_than_a_tombstone_stays() -> None:
    h = History()
    h.add(ReadFrom(h.now_ms, "slow", TOPIC, 0, 0, Isolation.COMMITTED, from_start=True))
    h.write("a", "1")
    h.add(h.seen(0, reader="slow"))
    h.write("a", None)
    h.write("b", "1")
    h.wait(8000)
    h.add(h.seen(2, reader="slow"))
    h.read([2])
    assert faults(h) == []
    h.add(ReadFrom(h.now_ms, "late", TOPIC, 0, 0, Isolation.COMMITTED, from_start=True))
    h.add(h.seen(0, reader="late"))
    h.wait(8000)
    h.add(h.seen(2, reader="late"))
    assert set(faults(h)) == {(Fault.RESURRECTED, 0)}


# --- early and late -------------------------------------------------------------------------------


def test_superseded_within_min_lag() -> None:
    h = History()
    h.write("a", "1")
    h.write("a", "2")
    h.wait(900)
    h.read([1])
    assert faults(h) == [(Fault.EARLY, 0)]


def test_a_reader_had_passed_it_when_it_got_what_lies_behind() -> None:
    h = History()
    h.write("a", "1")
    h.write("a", "2")
    h.add(ReadFrom(h.now_ms, "r", TOPIC, 0, 0, Isolation.COMMITTED))
    h.add(h.seen(1))
    h.wait(5000)
    h.add(ReadTo(h.now_ms, "r", TOPIC, 0, 2))
    assert faults(h) == [(Fault.EARLY, 0)]


def test_one_of_unknown_fate_may_have_superseded_it_before_it_went_itself() -> None:
    h = History()
    h.write("a", "1")
    h.fail(h.send("a", "2"))
    h.wait(1100)
    h.write("a", "3")
    h.read([1])
    assert faults(h) == []


def test_min_lag_counts_from_an_old_timestamp_too() -> None:
    h = History()
    h.write("a", "1")
    h.write("a", "2", timestamp_ms=5)
    h.read([1], instead={1: replace(h.seen(1), timestamp_ms=5)})
    assert faults(h) == []


@pytest.mark.parametrize(("waits_ms", "fault"), [(4900, Fault.EARLY), (5100, None)])
def test_a_tombstone_stays_for_delete_retention(waits_ms: int, fault: Fault | None) -> None:
    h = History()
    h.write("a", None)
    h.wait(waits_ms)
    h.read([])
    assert faults(h) == ([] if fault is None else [(fault, 0)])


def test_delete_retention_counts_from_when_the_value_was_last_seen() -> None:
    h = History()
    h.write("a", "1")
    h.write("a", None)
    h.wait(5000)
    h.read([0, 1])
    h.wait(4000)
    h.read([])
    assert faults(h) == [(Fault.EARLY, 1)]


@pytest.mark.parametrize(("waits_ms", "fault"), [(9900, None), (10_100, Fault.LATE)])
def test_superseded_beyond_the_bound(waits_ms: int, fault: Fault | None) -> None:
    h = History()
    h.write("a", "1")
    h.write("a", "2")
    h.wait(waits_ms)
    h.read([0, 1])
    assert faults(h) == ([] if fault is None else [(fault, 0)])


def test_a_file_has_it_for_longer_than_readers() -> None:
    h = History()
    h.write("a", "1")
    h.write("a", "2")
    h.wait(10_100)
    h.read([0, 1], isolation=FILES)
    assert faults(h) == []
    h.wait(1000)
    h.read([0, 1], isolation=FILES)
    assert faults(h) == [(Fault.LATE, 0)]


def test_a_deleted_record_in_a_file() -> None:
    h = History()
    h.write("a", "1")
    h.write("b", "1")
    h.delete(1)
    h.wait(3900)
    h.read([0, 1], isolation=FILES)
    assert faults(h) == []
    h.wait(100)
    h.read([0, 1], isolation=FILES)
    assert faults(h) == [(Fault.LATE, 0)]


def test_an_expired_tombstone_beyond_the_bound() -> None:
    h = History()
    h.write("a", None)
    h.wait(20_100)
    h.read([0])
    assert faults(h) == [(Fault.LATE, 0)]


def test_aborted_data_beyond_the_bound() -> None:
    h = History()
    h.write("a", "1", transaction="t")
    h.end("t", Outcome.ABORTED)
    h.wait(10_100)
    h.read([0], isolation=UNCOMMITTED)
    assert faults(h) == [(Fault.LATE, 0)]


def test_an_expired_record_beyond_the_bound() -> None:
    h = History(Promise(compacts=False, retention_ms=500, expired_gone_ms=700))
    h.write("a", "1")
    h.wait(700)
    h.read([0])
    assert faults(h) == [(Fault.LATE, 0)]


def test_deadlines_count_from_when_all_is_quiet() -> None:
    h = History()
    h.write("a", "1")
    h.write("a", "2")
    h.add(Disturbed(h.now_ms, "kill"))
    h.wait(50_000)
    h.read([0, 1])
    assert faults(h) == []
    h.add(Quiet(h.now_ms))
    h.wait(9900)
    h.read([0, 1])
    assert faults(h) == []
    h.wait(200)
    h.read([0, 1])
    assert faults(h) == [(Fault.LATE, 0)]


def test_a_deadline_counts_from_the_last_change_of_settings() -> None:
    h = History(replace(COMPACTED, superseded_gone_ms=None))
    h.write("a", "1")
    h.write("a", "2")
    h.wait(50_000)
    h.add(Promised(h.now_ms, TOPIC, COMPACTED))
    h.wait(5000)
    h.read([0, 1])
    assert faults(h) == []
    h.wait(6000)
    h.read([0, 1])
    assert faults(h) == [(Fault.LATE, 0)]


def test_an_open_transaction_holds_back_what_is_beside_it() -> None:
    h = History()
    h.write("a", "1")
    h.write("a", "2")
    h.write("b", "1", producer="q", transaction="t")
    h.wait(50_000)
    h.read([0, 1], to=2)
    assert faults(h) == []
    h.end("t", Outcome.COMMITTED, "q")
    h.wait(9000)
    h.read([0, 1, 2])
    assert faults(h) == []
    h.wait(2000)
    h.read([0, 1, 2])
    assert faults(h) == [(Fault.LATE, 0)]


def test_a_transaction_of_unknown_outcome_holds_until_a_reader_had_passed_it() -> None:
    h = History()
    h.write("a", "1")
    h.write("a", "2")
    h.write("b", "1", producer="q", transaction="t")
    h.end("t", Outcome.UNKNOWN, "q")
    h.wait(50_000)
    h.read([0, 1], to=2)
    assert faults(h) == []
    h.write("c", "1")
    h.read([0, 1, 2, 4])
    h.wait(11_100)
    h.read([0, 1, 2, 4])
    assert faults(h) == [(Fault.LATE, 0)]


def test_the_least_min_lag_that_was_in_force_counts() -> None:
    h = History()
    h.write("a", "1")
    h.write("a", "2")
    h.add(Promised(h.now_ms, TOPIC, replace(COMPACTED, min_lag_ms=0)))
    h.add(Promised(h.now_ms, TOPIC, COMPACTED))
    h.read([1])
    assert faults(h) == []


# --- contradictions -------------------------------------------------------------------------------


def test_a_history_that_contradicts_itself() -> None:
    h = History()
    sent = h.send("a", "1")
    with pytest.raises(ValueError, match="p#0 is sent twice"):
        judge([*h.events, sent])
    h = History()
    h.acknowledge(sent)
    with pytest.raises(ValueError, match="p#0 is answered and was not sent"):
        judge(h.events)
    with pytest.raises(ValueError, match="r reads prices-0 without a ReadFrom"):
        judge([ReadTo(0, "r", TOPIC, 0, 1)])
