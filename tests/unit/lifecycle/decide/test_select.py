"""Which logs get a round, why, and in which order (SEMANTICS S-5 … S-9; L4, L6, L9)."""

from __future__ import annotations

import pytest

from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.deadline import next_look_ms
from lapse.lifecycle.decide.horizon import Stamp
from lapse.lifecycle.decide.select import Blocked, Decision, Due, LogInfo, Wish, decide, order
from lapse.lifecycle.decide.verdict import Rules
from lapse.log.facts import LogFacts, SegmentFacts
from tests.unit.lifecycle.decide.logs import DAY, NOW, compacted, log, segment

EXACT = Wish(rules=Rules.KAFKA_43)


def decided(
    facts: LogFacts, wish: Wish | None = None, stamps: tuple[Stamp, ...] = (), **settings: object
) -> Decision:
    return decide(LogInfo(facts, compacted(**settings), stamps), NOW, wish)


def sealed(*segments: SegmentFacts, **facts: object) -> LogFacts:
    """A log of these and an empty active one."""
    return log([*segments, segment(10 * len(segments) + segments[0].base_offset, 0)], **facts)


@pytest.mark.parametrize(
    ("clean", "dirty", "ratio", "due"),
    [
        (100, 101, "0.5", (Due.RATIO,)),
        (100, 100, "0.5", ()),  # S-7: strictly greater
        (0, 100, "0.5", (Due.RATIO,)),
        (0, 100, "1", ()),
        (100, 1, "0", (Due.RATIO,)),
        (100, 0, "0", ()),  # at least one byte
    ],
)
def test_s7_ratio(clean: int, dirty: int, ratio: str, due: tuple[Due, ...]) -> None:
    facts = sealed(segment(0, clean), segment(10, dirty), cleaner_checkpoint=10)
    assert decided(facts, min_cleanable_dirty_ratio=ratio).due == due


def test_a_partly_mapped_segment_alone_is_not_over_one_half() -> None:
    """S-5, E18: it counts as clean and as dirty."""
    facts = sealed(segment(0, 710), cleaner_checkpoint=5)
    assert decided(facts).bounds.ratio == 0.5
    assert decided(facts).due == ()


# --- max lag --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "due", "delay"), [(1001, (Due.MAX_LAG,), 1), (1000, (), 0), (999, (), 0)]
)
def test_s6_must_clean(age: int, due: tuple[Due, ...], delay: int) -> None:
    facts = sealed(
        segment(0, append_first_ms=NOW - 9 * DAY), segment(10, append_first_ms=NOW - age),
        cleaner_checkpoint=10,
    )  # fmt: skip
    found = decided(facts, max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1)
    assert (found.due, found.delay_ms) == (due, delay)
    assert found.must_clean_bytes == (100 if due else 0)


def test_s6_whose_clock() -> None:
    """Ours is the append clock; Kafka's the first batch's max timestamp, which producers set."""
    old_records = segment(0, append_first_ms=NOW, first_batch_max_timestamp=NOW - 5000)
    settings = {"max_compaction_lag_ms": 1000, "min_cleanable_dirty_ratio": 1}
    assert decided(sealed(old_records), **settings).due == ()
    assert decided(sealed(old_records), EXACT, **settings).due == (Due.MAX_LAG,)
    old_append = segment(0, append_first_ms=NOW - 5000, first_batch_max_timestamp=NOW)
    assert decided(sealed(old_append), **settings).due == (Due.MAX_LAG,)
    assert decided(sealed(old_append), EXACT, **settings).due == ()


@pytest.mark.parametrize("timestamp", [-1, 0])
def test_s6_no_timestamp_is_not_an_old_one(timestamp: int) -> None:
    facts = sealed(segment(0, append_first_ms=-1, first_batch_max_timestamp=timestamp))
    settings = {"max_compaction_lag_ms": 1000, "min_cleanable_dirty_ratio": 1}
    for wish in (None, EXACT):
        assert decided(facts, wish, **settings).due == ()


def test_s6_the_active_segment_is_not_looked_at() -> None:
    facts = log([segment(0, append_first_ms=NOW), segment(10, append_first_ms=NOW - 9 * DAY)])
    found = decided(facts, max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1)
    assert (found.due, found.delay_ms) == ((), 0)


def test_s9_min_lag_holds_a_must_clean_log_too() -> None:
    late = segment(0, append_first_ms=NOW - 9000, append_last_ms=NOW, largest_timestamp=NOW)
    found = decided(
        sealed(late), max_compaction_lag_ms=1000, min_compaction_lag_ms=1000,
        min_cleanable_dirty_ratio=1,
    )  # fmt: skip
    assert found.bounds.dirty_bytes == 0
    assert found.due == ()


# --- horizons -------------------------------------------------------------------------------------


def with_horizon(horizon_ms: int, horizon_bytes: int = 1) -> LogFacts:
    """A wholly clean log in which a tombstone waits."""
    return sealed(
        segment(0, horizon_earliest_ms=horizon_ms, horizon_bytes=horizon_bytes),
        cleaner_checkpoint=10,
    )


@pytest.mark.parametrize(
    ("passed_for", "horizon_bytes", "lag", "due"),
    [
        (-1, 100, 0, False),  # not passed: not at any price
        (0, 100, 10 * DAY, True),  # enough bytes wait
        (0, 50, 10 * DAY, False),  # not more than the ratio
        (0, 1, 0, True),
        (499, 1, 1000, False),
        (500, 1, 1000, True),  # half-way in, so that the removal is in time
    ],
)
def test_l4_an_idle_logs_expired_tombstones_get_their_round(
    passed_for: int, horizon_bytes: int, lag: int, due: bool
) -> None:
    settings = {"lapse_tombstone_removal_max_lag_ms": lag}
    facts = with_horizon(NOW - passed_for, horizon_bytes)
    found = decided(facts, **settings)
    assert found.due == ((Due.HORIZON,) if due else ())
    assert found.blocked is None
    assert decided(facts, EXACT, **settings).due == ()  # H-6: nothing triggers one in Kafka


def test_l4_defaults_to_delete_retention() -> None:
    facts = with_horizon(NOW - 2 * DAY)
    assert decided(facts, delete_retention_ms=4 * DAY).due == (Due.HORIZON,)
    assert decided(facts, delete_retention_ms=4 * DAY + 2).due == ()


def test_a_horizon_that_min_lag_holds_calls_for_no_round() -> None:
    """It could not remove anything, and the next look would call for it again."""
    held = segment(
        0, horizon_earliest_ms=NOW - 9 * DAY, horizon_bytes=100,
        largest_timestamp=NOW, append_last_ms=NOW,
    )  # fmt: skip
    facts = sealed(held, cleaner_checkpoint=5)
    assert decided(facts, min_compaction_lag_ms=1000).due == ()
    assert decided(facts, min_compaction_lag_ms=0).due == (Due.HORIZON,)


def test_a_horizon_waits_for_the_commit_of_its_round() -> None:
    facts = with_horizon(NOW - 10, 100)
    slow = Stamp(now_ms=NOW - 1010, horizon_ms=NOW - 10, committed_ms=NOW - 999)
    assert decided(facts, stamps=(slow,)).due == ()
    assert decided(facts, stamps=(slow,)).passed_until_ms == NOW - 11
    quick = Stamp(now_ms=NOW - 1010, horizon_ms=NOW - 10, committed_ms=NOW - 1000)
    assert decided(facts, stamps=(quick,)).due == (Due.HORIZON,)
    assert decided(facts, EXACT, (slow,)).passed_until_ms == NOW


# --- blocked, forced, ordered ---------------------------------------------------------------------


def test_not_compacted_is_not_cleaned_even_by_force() -> None:
    for policy, words in (("delete", "delete"), ("", "(empty)")):
        found = decided(sealed(segment(0)), Wish(force=True), cleanup_policy=policy)
        assert (found.due, found.blocked) == ((), Blocked.NOT_COMPACTED)
        assert found.detail == f"cleanup.policy is {words}"
    assert decided(sealed(segment(0)), cleanup_policy="compact,delete").due == (Due.RATIO,)


def test_what_we_do_not_handle_is_left_alone_with_the_reason() -> None:
    odd = segment(0, unhandled=("control batch at offset 3",))
    found = decided(sealed(odd, segment(10)), Wish(force=True))
    assert (found.due, found.blocked) == ((), Blocked.UNHANDLED)
    assert found.detail == "control batch at offset 3"


def test_force_skips_ratio_and_lag_but_needs_something_to_do() -> None:
    half = sealed(segment(0), segment(10, 1), cleaner_checkpoint=10)
    assert decided(half).due == ()
    assert decided(half, Wish(force=True)).due == (Due.FORCED,)
    clean = decided(sealed(segment(0), cleaner_checkpoint=10), Wish(force=True))
    assert (clean.due, clean.blocked) == ((), Blocked.NOTHING_TO_DO)


@pytest.mark.parametrize(
    "unknown", [{"with_summary": False}, {"estimated": True}, {"commits": -1}], ids=str
)
def test_what_nobody_looked_through_is_not_decided_on(unknown: dict[str, object]) -> None:
    """Before anything that an estimate cannot know: that the log is not handled, or clean."""
    odd = segment(0, unhandled=("control batch at offset 3",))
    for segments in ([segment(10, **unknown)], [odd, segment(10, **unknown), segment(20)]):
        found = decided(sealed(*segments), Wish(force=True))
        assert (found.due, found.blocked) == ((), Blocked.SUMMARIES)
        assert found.detail == "1 segments without summary are to be looked through"
        assert next_look_ms(found) is None
    assert decided(sealed(segment(10, **unknown)), cleanup_policy="delete").blocked is (
        Blocked.NOT_COMPACTED
    )


def test_the_active_segment_may_be_an_estimate() -> None:
    assert decided(log([segment(0), segment(10, estimated=True)])).due == (Due.RATIO,)


def named(name: str, dirty: int, late: int = 0) -> Decision:
    """A log of 1000 bytes, `dirty` of them dirty and the first `late` of these too old."""
    segments = [
        segment(0, 1000 - dirty),
        segment(10, late, append_first_ms=NOW - 9000 if late else NOW),
        segment(20, dirty - late, append_first_ms=NOW),
    ]
    facts = sealed(*segments, cleaner_checkpoint=10, partition=TopicPartition(name, 0))
    return decided(facts, max_compaction_lag_ms=1000)


def test_l6_must_clean_first_by_its_own_ratio_then_dirty_ratio() -> None:
    """S-8: Kafka takes the dirtiest, however long the others have waited."""
    logs = [named("a", 600), named("b", 300, 20), named("c", 900), named("d", 300, 40)]
    assert all(d.due for d in logs)
    names = [d.info.facts.partition.topic for d in order(logs)]
    assert names == ["d", "b", "c", "a"]
    kafka = [d.info.facts.partition.topic for d in order(logs, Rules.KAFKA_43)]
    assert kafka == ["c", "a", "b", "d"]


def test_order_leaves_out_what_is_not_due() -> None:
    assert order([named("a", 100), named("b", 600)]) == [named("b", 600)]
