"""Since when a round is due; what it frees."""

from __future__ import annotations

import pytest

from lapse.lifecycle.decide.select import Due
from lapse.lifecycle.outlook.due import bytes_to_free, due_since_ms
from lapse.log.facts import StartMove
from tests.support.lifecycle.decide.logs import (
    DAY,
    NOW,
    decided,
    log,
    segment,
)

HELD = [segment(0, horizon_earliest_ms=NOW + 40, horizon_bytes=30), segment(10)]


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
