"""Each deadline by the promise it comes from, and how late that is."""

from __future__ import annotations

import pytest

from lapse.base.config import LONG_MAX
from lapse.lifecycle.decide.horizon import Stamp
from lapse.lifecycle.decide.lateness import (
    deadlines_of,
    first_deadline,
    kinds_of,
    overdue_ms,
    retention_deadline,
)
from lapse.lifecycle.decide.promises import RETENTION_SLACK_MS, SLACK_MS
from lapse.lifecycle.decide.select import Decision
from lapse.log.facts import StartMove
from lapse.log.summary import Ended
from tests.support.lifecycle.decide.logs import (
    DAY,
    NOW,
    compacted,
    decided,
    log,
    ours,
    segment,
)


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
    # Committed 160 ms after its clock was read.
    late = Stamp(NOW - 260, NOW + 40, NOW - 100, end_offset=10)
    found = first_deadline(decided(facts, stamps=(late,)))
    assert found == (NOW + 200 + 70 + SLACK_MS + 20, "tombstone")
    later = (*ours(facts), Stamp(NOW - 200, NOW + 100, NOW, end_offset=10))
    assert first_deadline(decided(facts, stamps=later)) == first_deadline(decided(facts))


@pytest.mark.parametrize("retention_ms", [LONG_MAX, LONG_MAX - 1])
@pytest.mark.parametrize("lag_ms", [-1, 70])
def test_tombstones_that_stay_for_ever_from_now_on(retention_ms: int, lag_ms: int) -> None:
    """A round has stamped them before; what is due by then does not hang on how long that was."""
    facts = log([segment(0, horizon_earliest_ms=NOW - 2 * DAY, horizon_bytes=30), segment(10)],
                cleaner_checkpoint=20)  # fmt: skip
    settings = {"delete_retention_ms": retention_ms, "lapse_tombstone_removal_max_lag_ms": lag_ms}
    found = first_deadline(decided(facts, **settings))
    by_ms = LONG_MAX if lag_ms < 0 else NOW - 2 * DAY + 70 + SLACK_MS + 20
    assert found == (by_ms, "tombstone")


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


# --- how late ------------------------------------------------------------------------------------


def late(decision: Decision, now_ms: int) -> dict[str, int]:
    return overdue_ms(decision.info.config, deadlines_of(decision), now_ms)


def test_nothing_is_late_until_a_deadline_has_passed() -> None:
    facts = log([segment(0, append_first_ms=NOW - 9000), segment(10, append_first_ms=NOW)])
    by_ms = NOW - 9000 + 5000 + SLACK_MS + 20
    none = {"superseded": 0, "tombstone": 0, "marker": 0, "deleted": 0}
    assert late(decided(facts), by_ms) == none
    assert late(decided(facts), by_ms + 7) == {**none, "superseded": 7}


def test_the_worst_of_each_kind_is_told() -> None:
    facts = log(
        [segment(0, horizon_earliest_ms=NOW - DAY, horizon_bytes=1),
         segment(10, tombstones=1, append_last_ms=NOW - 2 * DAY, append_first_ms=NOW - 2 * DAY),
         segment(20, append_first_ms=NOW)],
        cleaner_checkpoint=20, log_start_offset=3, start_moves=(StartMove(3, NOW - 3 * DAY),),
    )  # fmt: skip
    late_ms = late(decided(facts), NOW)
    assert late_ms["tombstone"] == 2 * DAY - (300 + 70 + SLACK_MS + 20)  # the one nobody stamped
    assert late_ms["deleted"] == 3 * DAY - 90_000
    assert (late_ms["superseded"], late_ms["marker"]) == (0, 0)


def test_retention_is_late_by_the_first_segment() -> None:
    """Whatever the policy says beside delete; an empty log expires no more."""
    settings = {"cleanup_policy": "delete", "retention_ms": 1000}
    facts = log([segment(0, append_last_ms=NOW, largest_timestamp=NOW), segment(10)])
    by_ms = NOW + 1000 + RETENTION_SLACK_MS + 20
    for policy in ("delete", "compact,delete"):
        found = decided(facts, **{**settings, "cleanup_policy": policy})
        assert late(found, by_ms)["retention"] == 0
        assert late(found, by_ms + 9)["retention"] == 9
    empty = decided(log([segment(0, 0)]), **settings)
    assert late(empty, by_ms + 9) == {"deleted": 0, "retention": 0}
    assert kinds_of(compacted(retention_ms=1000)) == (
        "superseded",
        "tombstone",
        "marker",
        "deleted",
    )
    assert kinds_of(compacted(cleanup_policy="delete", retention_ms=-1)) == ("deleted",)


@pytest.mark.parametrize(
    ("appended_ms", "counts_ms"), [(NOW, NOW), (0, 1000), (-1, NOW - 7), (None, NOW - 7)]
)
def test_records_that_had_expired_already_count_from_their_append(
    appended_ms: int | None, counts_ms: int
) -> None:
    """By the file's time where it is not known when that was."""
    known = {"with_summary": False} if appended_ms is None else {"append_last_ms": appended_ms}
    first = segment(0, mtime_ms=NOW - 7, largest_timestamp=5, **known)
    topic = compacted(cleanup_policy="delete", retention_ms=1000, file_delete_delay_ms=20)
    assert retention_deadline(first, topic) == (counts_ms + RETENTION_SLACK_MS + 20, "retention")


def test_what_is_kept_for_no_time_at_all_can_be_late() -> None:
    topic = compacted(cleanup_policy="delete", retention_ms=0)
    assert "retention" in kinds_of(topic)
    assert "retention" not in kinds_of(compacted(cleanup_policy="delete", retention_ms=-1))


@pytest.mark.parametrize(("oldest_ms", "counts"), [(0, False), (1, True)])
def test_s6_an_append_at_0_is_none(oldest_ms: int, counts: bool) -> None:
    facts = log([segment(0, append_first_ms=oldest_ms), segment(10, 0, append_first_ms=-1)])
    found = first_deadline(decided(facts))
    assert (found is not None) == counts
