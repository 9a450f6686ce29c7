"""L4: tombstones in the clean part that have no horizon of a Lapse round (select)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lapse.lifecycle.decide.deadline import next_look_ms
from lapse.lifecycle.decide.select import Blocked, Due, RoundKind, RoundOptions
from lapse.log.facts import LogFacts, SegmentFacts
from tests.support.lifecycle.decide.logs import DAY, NOW, segment, stamped
from tests.unit.lifecycle.decide.test_select import EXACT, decided, sealed


def unstamped(age_ms: int = 500, **facts: object) -> SegmentFacts:
    return segment(0, **{"tombstones": 1, "append_last_ms": NOW - age_ms, **facts})


STAMP_LAG = {"lapse_tombstone_removal_max_lag_ms": 1000}


@pytest.mark.parametrize(("age", "due"), [(500, (Due.TOMBSTONES,)), (499, ())])
def test_l4_clean_tombstones_without_horizon_get_their_round(
    age: int, due: tuple[Due, ...]
) -> None:
    """A Kafka before 3.1 leaves them behind, and an idle log gets no round in Kafka (H-6)."""
    found = decided(sealed(unstamped(age), cleaner_checkpoint=10), **STAMP_LAG)
    assert (found.due, found.blocked, found.kind) == (due, None, RoundKind.CLEAN)
    assert next_look_ms(found) == (None if due else NOW + 1)
    kafka = decided(sealed(unstamped(age), cleaner_checkpoint=10), EXACT, **STAMP_LAG)
    assert (kafka.due, kafka.blocked) == ((), Blocked.NOTHING_TO_DO)


@pytest.mark.parametrize(
    ("facts", "settings", "due"),
    [
        (sealed(unstamped(tombstones=0), cleaner_checkpoint=10), {}, False),
        (sealed(unstamped(tombstones=-1), cleaner_checkpoint=10), {}, False),  # not looked into
        (sealed(unstamped(horizon_earliest_ms=NOW + DAY, horizon_bytes=9),
                cleaner_checkpoint=10), {}, False),  # a round of ours will come by it
        (sealed(unstamped(), cleaner_checkpoint=9), {"min_cleanable_dirty_ratio": 1}, False),
        (sealed(unstamped(tombstones=0, valued_tombstones=True), cleaner_checkpoint=10), {}, True),
        (sealed(unstamped(append_last_ms=-1), cleaner_checkpoint=10), {}, True),  # by its mtime
        (sealed(unstamped(age_ms=0), segment(10, tombstones=1), cleaner_checkpoint=20), {}, True),
        (sealed(segment(0), segment(10, tombstones=1, unreadable_from=15),
                cleaner_checkpoint=20), {}, False),  # no round reaches it
    ],
)  # fmt: skip
def test_l4_which_tombstones_these_are(
    facts: LogFacts, settings: dict[str, object], due: bool
) -> None:
    found = decided(facts, **STAMP_LAG, **settings)
    assert (Due.TOMBSTONES in found.due) is due


def test_l1_l2_a_horizon_that_nobody_of_ours_set_is_none() -> None:
    """It is set anew by a round of its own, be it passed or a hundred years ahead."""
    for horizon_ms in (NOW - DAY, NOW + 36_500 * DAY):
        odd = sealed(unstamped(horizon_earliest_ms=horizon_ms, horizon_bytes=9),
                     segment(10), cleaner_checkpoint=20)  # fmt: skip
        vouched = stamped(horizon_ms)
        assert Due.TOMBSTONES not in decided(odd, stamps=vouched, **STAMP_LAG).due
        elsewhere = replace(vouched[0], first_offset=10)
        another = replace(vouched[0], horizon_ms=horizon_ms + 1)
        partly = replace(vouched[0], end_offset=-1)  # of a ledger that does not say how far
        for stamp in ((), (elsewhere,), (another,), (partly,)):
            found = decided(odd, stamps=stamp, **STAMP_LAG)
            assert Due.TOMBSTONES in found.due
            assert found.tombstones_due_ms is not None
        kafka = decided(odd, EXACT, stamps=(), **STAMP_LAG)
        assert kafka.tombstones_due_ms is None


def test_l4_force_waits_for_no_tombstone() -> None:
    young = sealed(unstamped(0), cleaner_checkpoint=10)
    assert decided(young, RoundOptions(force=True), **STAMP_LAG).due == (Due.TOMBSTONES, Due.FORCED)
