"""Rows of logs are kept for as long as a new one would say the same."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.http.log_rows import Rows, row_of, same_until_ms
from lapse.lifecycle.decide.deadline import next_look_ms
from lapse.lifecycle.decide.lateness import MARKER, SUPERSEDED, TOMBSTONE
from lapse.lifecycle.decide.select import LogInfo, decide
from lapse.lifecycle.round import ledger
from lapse.lifecycle.round.ledger import LedgerEntry
from lapse.log.env import LogEnv
from lapse.log.facts import StartMove
from lapse.log.partition_log import PartitionLog
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.decide.logs import compacted as settings_of
from tests.support.lifecycle.decide.logs import log as facts_of
from tests.support.lifecycle.decide.logs import segment
from tests.support.lifecycle.rounds import NOW, compacted, overwritten, write


def opened(path: Path, **settings: object) -> PartitionLog:
    """A log with sealed segments, from before max lag is over."""
    config = compacted(max_compaction_lag_ms=60_000, **settings)
    env = LogEnv(RealFs(), ManualClock(NOW))
    path.mkdir()
    log = PartitionLog.open(path, TopicPartition("a", 0), config, env, clean_shutdown=False)
    write(log, overwritten(), NOW)
    log.roll(NOW)
    return log


def booked_round(log: PartitionLog) -> LedgerEntry:
    """The ledger's entry of a round that left a tombstone with a horizon in 50 ms."""
    log.cleaner_checkpoint = log.log_end_offset
    first, generation = log.segments[0], log.generation
    with_horizon = replace(first.summary, horizon_earliest_ms=NOW + 50, horizon_bytes=10**6)
    assert log.adopt_summary(with_horizon, "", generation) is None
    booked = LedgerEntry("r", 0, NOW, NOW + 50, NOW, 1, 1, 1, (), end_offset=100)
    ledger.append(RealFs(), log.dir, booked)
    return booked


def test_a_log_that_did_not_change_is_not_looked_at_again(tmp_path: Path) -> None:
    """Ten thousand of them cost a scrape a tenth of a second; their delay grows all the same."""
    log, rows = opened(tmp_path / "a"), Rows()
    late = NOW + 60_001
    row = rows.of(log, late)
    assert row is not None
    assert (row.due, row.delay_ms(late), row.deadline_ms(late)) == (True, 1, late)
    assert rows.of(log, late + 10**9) is row
    assert row.delay_ms(late + 10**9) == 10**9 + 1
    assert row.deadline_ms(late + 10**9) == late + 10**9


def test_what_comes_by_the_clock_or_goes_back_with_it_ends_a_row(tmp_path: Path) -> None:
    log, rows = opened(tmp_path / "a", min_cleanable_dirty_ratio=1), Rows()
    young = rows.of(log, NOW)
    assert young is not None
    assert (young.due, young.next_ms) == (False, NOW + 60_001)
    assert rows.of(log, NOW + 60_000) is young
    late = rows.of(log, NOW + 60_001)
    assert late is not None
    assert late.due
    assert rows.of(log, NOW + 60_000) == young  # the clock was set back


def test_a_log_that_changed_is_looked_at_again(tmp_path: Path) -> None:
    log, rows = opened(tmp_path / "a"), Rows()
    row = rows.of(log, NOW)
    assert row is not None
    assert row.ratio == 1
    log.cleaner_checkpoint = log.log_end_offset
    clean = rows.of(log, NOW)
    assert clean is not None
    assert (clean.ratio, clean.due, clean.late_from_ms) == (0, False, None)
    log.update_config(compacted(cleanup_policy="delete"))
    assert rows.of(log, NOW) is None


def test_a_round_in_the_ledger_ends_a_row_with_a_horizon(tmp_path: Path) -> None:
    """Its commit may be later than its horizon says (L3): the log is not due as early."""
    log, rows = opened(tmp_path / "a"), Rows()
    booked = booked_round(log)
    at = NOW + 50
    row = rows.of(log, at)
    assert row is not None
    assert row.due
    assert rows.of(log, at + 1) is row
    ledger.append(RealFs(), log.dir, replace(booked, committed_ms=NOW + 30))  # another group
    waiting = rows.of(log, at + 1)
    assert waiting is not None
    assert (waiting.due, waiting.next_ms) == (False, NOW + 80)
    passed = rows.of(log, NOW + 80)
    assert passed is not None
    assert passed.due


def test_a_log_whose_ledger_cannot_be_read_has_a_row_that_says_so(tmp_path: Path) -> None:
    """Its tombstones' deadline rests on the ledger: what was known of it before is kept."""
    log, rows = opened(tmp_path / "a"), Rows()
    booked_round(log)
    before = rows.of(log, NOW + 50)
    assert before is not None
    assert TOMBSTONE in {deadline.what for deadline in before.deadlines}
    path = ledger.ledger_path(log.dir)
    path.rename(tmp_path / "aside")
    path.mkdir()
    row = rows.of(log, NOW + 51)
    assert row is not None
    assert (row.due, row.next_ms, row.uncleanable) == (False, None, "unreadable")
    assert row.uncleanable_bytes == sum(s.size for s in log.segments[:-1])
    assert sorted(row.deadlines) == sorted(before.deadlines)
    unseen = Rows().of(log, NOW + 51)
    assert unseen is not None
    assert TOMBSTONE not in {deadline.what for deadline in unseen.deadlines}
    path.rmdir()
    (tmp_path / "aside").rename(path)
    assert rows.of(log, NOW + 52) == before


def test_a_log_that_takes_no_writes_is_late_and_nobodys_to_clean(tmp_path: Path) -> None:
    """A round of it would not help, so none is due; what must be gone must be gone all the same."""
    log, rows = opened(tmp_path / "a"), Rows()
    late_ms = NOW + 60_001
    online = rows.of(log, late_ms)
    assert online is not None
    log._core.offline_reason = "a write failed"
    row = rows.of(log, late_ms)
    assert row is not None
    assert (online.due, row.due, row.next_ms) == (True, False, None)
    assert (row.uncleanable, row.uncleanable_bytes) == (
        "offline", sum(s.size for s in log.segments[:-1]),
    )  # fmt: skip
    assert row.deadlines == online.deadlines
    assert row.delay_ms(late_ms) == 1


def test_a_log_that_must_be_looked_through_needs_a_service() -> None:
    """Another log cleaner's: nothing can be decided, and what is in it nobody knows."""
    active = segment(20, 0)
    known = row_of(decide(LogInfo(facts_of([segment(0), active]), settings_of()), NOW))
    assert (known.wants_look, known.unknown) == (False, frozenset())
    lacking = facts_of([segment(0), segment(10, with_summary=False), active])
    row = row_of(decide(LogInfo(lacking, settings_of()), NOW))
    assert (row.due, row.wants_look, row.needs_service) == (False, True, True)
    assert row.deadline_ms(NOW) == NOW
    assert row.unknown == {SUPERSEDED, TOMBSTONE, MARKER}
    deleting = settings_of(cleanup_policy="delete")
    moved = replace(lacking, start_moves=(StartMove(5, NOW),), log_start_offset=5)
    assert row_of(decide(LogInfo(moved, deleting), NOW)).unknown == frozenset()


def test_a_log_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    log, rows = opened(tmp_path / "a"), Rows()
    rows.of(log, NOW)
    log.close()
    held = weakref.ref(log)
    del log
    gc.collect()
    assert held() is None


def test_min_lag_ends_a_row_though_no_round_waits_for_it() -> None:
    """A log that is left alone has a dirty ratio all the same."""
    unhandled = ("unknown codec 7 at offset 3",)
    young = segment(0, largest_timestamp=NOW - 300, append_last_ms=NOW - 300, unhandled=unhandled)
    decision = decide(
        LogInfo(facts_of([young, segment(10, 0)]), settings_of(min_compaction_lag_ms=1000)), NOW
    )
    assert next_look_ms(decision) is None
    assert row_of(decision).ratio == 0
    assert same_until_ms(decision) == NOW + 700
    assert row_of(decide(decision.info, NOW + 700)).ratio == 1


def test_a_move_of_the_log_start_from_the_future_ends_a_row_when_it_is_there() -> None:
    moves = (StartMove(5, NOW + 50),)
    facts = facts_of([segment(0), segment(10, 0)], log_start_offset=5, start_moves=moves)
    decision = decide(LogInfo(facts, settings_of(cleanup_policy="delete")), NOW)
    assert row_of(decision).due  # not waited for
    assert same_until_ms(decision) == NOW + 50
    assert not row_of(decide(decision.info, NOW + 50)).due
