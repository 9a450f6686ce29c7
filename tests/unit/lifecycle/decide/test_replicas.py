"""Tombstones wait until every replica lost what they cover (L3, H-9)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.base.config import LONG_MAX
from lapse.lifecycle.decide.horizon import Stamp, passed_until
from lapse.lifecycle.decide.replicas import (
    Removable,
    next_removable_ms,
    removable_below,
)
from lapse.log.facts import CleanedTo, ReplicaFacts

RETENTION = 100


def replica(node_id: int, *cleaned: tuple[int, int], **facts: object) -> ReplicaFacts:
    """A replica that had cleaned to an offset at a time, and was last seen at 1000."""
    return ReplicaFacts(node_id, tuple(CleanedTo(*c) for c in cleaned), 1000, **facts)


def test_alone_nobody_is_waited_for() -> None:
    assert removable_below([], 1000, RETENTION) == Removable(LONG_MAX, None)


@pytest.mark.parametrize(
    ("now", "offset", "node"),
    [
        (99, 0, 1),
        (100, 0, 2),  # 1 had cleaned to 10 at 0; 2 to nothing
        (149, 0, 2),
        (150, 5, 2),  # by time: 2 cleaned to 5 at 50
        (299, 5, 2),
        (300, 10, 1),  # 2 is at 30, and 1 went on only at 250
        (350, 20, 1),
    ],
)
def test_by_offset_and_by_time_the_slowest_decides(now: int, offset: int, node: int) -> None:
    two = [replica(1, (10, 0), (20, 250)), replica(2, (5, 50), (30, 200))]
    assert removable_below(two, now, RETENTION) == Removable(offset, node)


def test_one_that_was_never_cleaned_holds_everything() -> None:
    found = removable_below([replica(1, (50, 0)), replica(2)], 10_000, RETENTION)
    assert found == Removable(0, 2)


def test_h9_an_absent_one_holds_what_it_has_not_cleaned_past() -> None:
    """E10: in Kafka the tombstone goes, and the erased value comes back with the replica."""
    leader, away = replica(1, (10, 0), (90, 100)), replica(2, (10, 0))
    assert removable_below([leader, away], 10_000, RETENTION).offset == 10
    back = replica(2, (10, 0), (90, 10_000))  # it returned, and cleaned
    assert removable_below([leader, back], 10_099, RETENTION).offset == 10
    assert removable_below([leader, back], 10_100, RETENTION).offset == 90


def test_one_that_left_the_count_is_not_waited_for() -> None:
    gone = replica(2, (10, 0), counted=False)
    assert removable_below([replica(1, (90, 0)), gone], 1000, RETENTION) == Removable(90, 1)


def test_where_none_counts_nothing_goes() -> None:
    assert removable_below([replica(1, (90, 0), counted=False)], 1000, RETENTION).offset == 0


def test_next_removable_is_when_a_commit_becomes_old_enough() -> None:
    two = [replica(1, (10, 0), (20, 250)), replica(2, (5, 50)), replica(3, (9, 1), counted=False)]
    assert next_removable_ms(two, 99, RETENTION) == 100
    assert next_removable_ms(two, 100, RETENTION) == 150
    assert next_removable_ms(two, 150, RETENTION) == 350
    assert next_removable_ms(two, 350, RETENTION) is None


# --- the slow obvious twin: of one tombstone, as L3 says it -----------------------------------


def cleaned_past_ms(one: ReplicaFacts, offset: int) -> int | None:
    """When a replica had lost all that a tombstone at `offset` deletes."""
    return min((c.at_ms for c in one.cleaned if c.offset > offset), default=None)


def may_go(
    offset: int, horizon_ms: int, replicas: list[ReplicaFacts], now_ms: int, retention_ms: int
) -> bool:
    """Whether now ≥ max(horizon, t_all + delete.retention.ms)."""
    times = [cleaned_past_ms(r, offset) for r in replicas if r.counted]
    if replicas and (not times or None in times):
        return False
    t_all = max((t for t in times if t is not None), default=-retention_ms)
    return now_ms >= max(horizon_ms, t_all + retention_ms)


steps = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 60)), max_size=5)


@st.composite
def many_replicas(draw: st.DrawFn) -> list[ReplicaFacts]:
    made = []
    for node_id in range(draw(st.integers(0, 4))):
        offset = at = 0
        cleaned = []
        for more, later in draw(steps):
            offset, at = offset + more, at + later
            cleaned.append((offset, at))
        made.append(replica(node_id, *cleaned, counted=draw(st.integers(0, 4)) > 0))
    return made


@given(many_replicas(), st.integers(0, 500), st.integers(0, 120), st.integers(0, 200))
def test_as_the_twin_tombstone_by_tombstone(
    replicas: list[ReplicaFacts], now: int, retention: int, horizon: int
) -> None:
    below = removable_below(replicas, now, retention).offset
    for offset in range(110):
        ours = horizon <= passed_until(now, []) and offset < below
        assert ours == may_go(offset, horizon, replicas, now, retention)


@given(many_replicas(), st.integers(0, 500), st.integers(1, 120), st.data())
def test_with_rounds_that_took_long_nothing_goes_before_either_says_so(
    replicas: list[ReplicaFacts], now: int, retention: int, choose: st.DataObject
) -> None:
    """Both tests of one tombstone: its horizon by `passed_until`, its offset by the replicas."""
    stamped_ms = choose.draw(st.integers(0, 300))
    stamp = Stamp(stamped_ms, stamped_ms + retention, stamped_ms + choose.draw(st.integers(0, 90)))
    below = removable_below(replicas, now, retention).offset
    passed = passed_until(now, [stamp])
    for offset in range(0, 110, 7):
        if stamp.horizon_ms <= passed and offset < below:
            assert may_go(offset, stamp.horizon_ms, replicas, now, retention)
            assert now >= stamp.committed_ms + retention


@given(many_replicas(), st.integers(0, 500), st.integers(0, 120))
def test_no_moment_of_change_is_missed(
    replicas: list[ReplicaFacts], now: int, retention: int
) -> None:
    before = removable_below(replicas, now, retention)
    after = next_removable_ms(replicas, now, retention)
    last = after - 1 if after is not None else now + 1000
    assert removable_below(replicas, last, retention) == before
