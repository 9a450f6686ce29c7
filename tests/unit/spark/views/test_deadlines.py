"""Each deadline by the promise it comes from; since when a round is due; what it frees."""

from __future__ import annotations

import pytest

from lapse.lifecycle.decide.horizon import Stamp
from lapse.lifecycle.decide.promises import SLACK_MS, bounds_of
from lapse.lifecycle.decide.select import Decision, Due, LogInfo, decide
from lapse.log.facts import LogFacts, StartMove
from lapse.log.summary import Ended
from lapse.spark.views.deadlines import (
    DELETED,
    MARKER,
    SUPERSEDED,
    TOMBSTONE,
    bytes_to_free,
    due_since_ms,
    first_deadline,
)
from tests.unit.lifecycle.decide.logs import DAY, NOW, compacted, log, segment

SETTINGS = {
    "max_compaction_lag_ms": 5000, "segment_ms": 100_000, "delete_retention_ms": 300,
    "file_delete_delay_ms": 20, "lapse_tombstone_removal_max_lag_ms": 70,
    "lapse_physical_delete_max_lag_ms": 90_000,
}  # fmt: skip


def decided(
    facts: LogFacts, now_ms: int = NOW, stamps: tuple[Stamp, ...] = (), **more: object
) -> Decision:
    return decide(LogInfo(facts, compacted(**{**SETTINGS, **more}), stamps), now_ms)


def test_the_promises_have_these_names() -> None:
    names = {promise.name for promise in bounds_of(compacted())}
    assert {SUPERSEDED, TOMBSTONE, MARKER, DELETED} < names


@pytest.mark.parametrize(
    ("checkpoint", "oldest"), [(None, 9000), (10, 5000), (20, 3000), (30, None)]
)
def test_superseded_values_count_from_the_oldest_append_that_is_dirty(
    checkpoint: int | None, oldest: int | None
) -> None:
    """The active segment's too: it must have been rolled by then."""
    facts = log(
        [segment(10 * n, append_first_ms=NOW - age) for n, age in enumerate((9000, 5000, 3000))],
        cleaner_checkpoint=checkpoint,
    )
    found = first_deadline(decided(facts))
    expected = None if oldest is None else (NOW - oldest + 5000 + SLACK_MS + 20, "superseded")
    assert found == expected
    assert first_deadline(decided(facts, max_compaction_lag_ms=(1 << 63) - 1)) is None


HELD = [segment(0, horizon_earliest_ms=NOW + 40, horizon_bytes=30), segment(10)]


def test_tombstones_count_from_when_their_horizon_passes() -> None:
    """Not before the round that stamped them lies delete.retention.ms back (L3)."""
    facts = log(HELD, cleaner_checkpoint=20)
    assert first_deadline(decided(facts)) == (NOW + 40 + 70 + SLACK_MS + 20, "tombstone")
    late = Stamp(NOW - 260, NOW + 40, NOW - 100)  # committed 160 ms after its clock was read
    found = first_deadline(decided(facts, stamps=(late,)))
    assert found == (NOW + 200 + 70 + SLACK_MS + 20, "tombstone")
    later = Stamp(NOW - 200, NOW + 100, NOW)
    assert first_deadline(decided(facts, stamps=(later,))) == first_deadline(decided(facts))


def test_tombstones_that_nobody_stamped_and_markers_that_are_spent() -> None:
    bare = log([segment(0, tombstones=1, append_last_ms=NOW - 50), segment(10)],
               cleaner_checkpoint=20)  # fmt: skip
    gone_ms = NOW - 50 + 300 + 70 + SLACK_MS + 20
    assert first_deadline(decided(bare)) == (gone_ms, "tombstone")
    spent = segment(0, ended=(Ended(7, 3, True, alone=True),), append_last_ms=NOW - 50, commits=1)
    found = first_deadline(decided(log([spent, segment(10)], cleaner_checkpoint=20)))
    assert found == (NOW - 50 + 70 + 300 + 2 * SLACK_MS + 20, "marker")


def test_deleted_records_whatever_the_policy() -> None:
    moved = log([segment(0), segment(10), segment(20)], cleaner_checkpoint=30, log_start_offset=13,
                start_moves=(StartMove(13, NOW - 70),))  # fmt: skip
    for policy in ("compact", "delete"):
        found = first_deadline(decided(moved, cleanup_policy=policy))
        assert found == (NOW - 70 + 90_000, "deleted")


def test_the_first_one_counts() -> None:
    dirty = log([segment(0, append_first_ms=NOW - 9000, horizon_earliest_ms=NOW + 40,
                         horizon_bytes=30), segment(10, 0)])  # fmt: skip
    found = first_deadline(decided(dirty))
    assert found == (NOW - 9000 + 5000 + SLACK_MS + 20, "superseded")


@pytest.mark.parametrize(
    ("now_ms", "reasons", "since"),
    [
        (NOW, set(), None),
        (NOW + 39, set(), None),
        (NOW + 75, {Due.HORIZON}, NOW + 75),  # half of 70 ms after the horizon
        (NOW + 90, {Due.HORIZON}, NOW + 75),
    ],
)
def test_since_when_a_removal_is_due(now_ms: int, reasons: set[Due], since: int | None) -> None:
    facts = log(HELD, cleaner_checkpoint=20)
    decision = decided(facts, now_ms, min_cleanable_dirty_ratio=1)
    assert (set(decision.due), due_since_ms(decision)) == (reasons, since)


def test_since_when_the_others_are() -> None:
    ratio = decided(log([segment(0), segment(10)]), max_compaction_lag_ms=2 * DAY)
    assert (ratio.due, due_since_ms(ratio)) == ((Due.RATIO,), None)
    late = decided(log([segment(0), segment(10)]), min_cleanable_dirty_ratio=1)
    assert (late.due, due_since_ms(late)) == ((Due.MAX_LAG,), NOW - DAY + 5000)
    moved = log([segment(0), segment(10), segment(20)], cleaner_checkpoint=30, log_start_offset=13,
                start_moves=(StartMove(13, NOW - 80_000),))  # fmt: skip
    assert due_since_ms(decided(moved)) == NOW - 80_000 + (90_000 - 20) // 2


def test_what_a_round_frees() -> None:
    facts = log([segment(0, 1000, records=60), segment(10, 500, records=40), segment(20)])
    decision = decided(facts)
    assert [bytes_to_free(decision, keys) for keys in (None, 100, 103, 25)] == [None, 0, 0, 1125]
    expired = log([segment(0, 1000, records=100, horizon_earliest_ms=NOW - DAY, horizon_bytes=30),
                   segment(10)], cleaner_checkpoint=20)  # fmt: skip
    assert bytes_to_free(decided(expired), 90) == 130


def test_a_trim_frees_its_share_of_one_segment() -> None:
    moved = log([segment(0), segment(10, 1000), segment(20)], cleaner_checkpoint=30,
                log_start_offset=13, start_moves=(StartMove(13, NOW - 80_000),))  # fmt: skip
    decision = decided(moved, cleanup_policy="delete")
    assert decision.due == (Due.DELETED,)
    assert bytes_to_free(decision, None) == 300
