"""Which logs get a round, why, and in which order (S-1, S-5 … S-9; L3 … L6, L9 … L11)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lapse.base.config import LONG_MAX
from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.clock import Step
from lapse.lifecycle.decide.deadline import ROLL_SLACK_MS, next_look_ms
from lapse.lifecycle.decide.horizon import Stamp
from lapse.lifecycle.decide.select import (
    Blocked,
    Decision,
    Due,
    LogInfo,
    RoundKind,
    RoundOptions,
    decide,
    must_be_made,
    order,
)
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.plan import MapMemory, make_plan
from lapse.lifecycle.round.summarise import requests_due, wants_look
from lapse.log.facts import BadRange, CleanedTo, LogFacts, ReplicaFacts, SegmentFacts, StartMove
from lapse.log.summary import Begun, Ended
from tests.support.lifecycle.decide.logs import DAY, NOW, compacted, log, ours, segment

EXACT = RoundOptions(rules=Rules.KAFKA_43)


def decided(
    facts: LogFacts,
    wish: RoundOptions | None = None,
    stamps: tuple[Stamp, ...] | None = None,
    **settings: object,
) -> Decision:
    """Where no stamps are given, all horizons are of rounds of ours."""
    known = ours(facts) if stamps is None else stamps
    return decide(LogInfo(facts, compacted(**settings), known), NOW, wish)


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


def test_kip_354_the_bound_is_the_lag_and_not_the_lag_and_twice_the_difference() -> None:
    """KIP-354's note 1: producers may be off by D, the first at now + D, the second at now − D.

    Kafka counts M from the first one's time, so that the second waits for D + M + D by its own.
    """
    off, lag = 5000, 1000
    facts = sealed(segment(0, append_first_ms=NOW, first_batch_max_timestamp=NOW + off))
    config = compacted(max_compaction_lag_ms=lag, min_cleanable_dirty_ratio=1)

    def due_at(later_ms: int, wish: RoundOptions) -> bool:
        return bool(decide(LogInfo(facts, config), NOW + later_ms, wish).due)

    assert not due_at(lag, RoundOptions())
    assert due_at(lag + 1, RoundOptions())  # by the append clock
    assert not due_at(off + lag, EXACT)
    assert due_at(off + lag + 1, EXACT)


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


def test_s6_what_an_open_transaction_holds_is_no_part_of_what_must_be_cleaned() -> None:
    """The ratio that decides on the order of rounds (L6) is one: at most 1."""
    held = [segment(10 * n, 1000, append_first_ms=NOW - 9 * DAY) for n in range(2, 9)]
    facts = sealed(
        segment(0, 1, append_first_ms=NOW - 9 * DAY), segment(10, 2, append_first_ms=NOW - DAY),
        *held, last_stable_offset=25, cleaner_checkpoint=10,
    )  # fmt: skip
    found = decided(facts, max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1)
    assert (found.due, found.must_clean_bytes) == ((Due.MAX_LAG,), 2)
    assert found.must_clean_ratio == 2 / 3
    assert found.delay_ms == DAY - 1000
    kafka = decided(facts, EXACT, max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1)
    assert kafka.must_clean_bytes == 2 + 7000


def test_a_log_is_not_cleaned_for_what_no_round_reaches() -> None:
    held = segment(10, append_first_ms=NOW - 9 * DAY)
    facts = sealed(segment(0, append_first_ms=NOW), held, last_stable_offset=15)
    found = decided(facts, max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1)
    assert (found.due, found.must_clean_ratio) == ((), 0)


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
    slow = Stamp(NOW - 1010, NOW - 10, committed_ms=NOW - 999, end_offset=10)
    assert decided(facts, stamps=(slow,)).due == ()
    assert decided(facts, stamps=(slow,)).passed_until_ms == NOW - 11
    assert next_look_ms(decided(facts, stamps=(slow,))) == NOW + 1
    quick = Stamp(NOW - 1010, NOW - 10, committed_ms=NOW - 1000, end_offset=10)
    assert decided(facts, stamps=(quick,)).due == (Due.HORIZON,)
    assert decided(facts, EXACT, (slow,)).passed_until_ms == NOW


# --- blocked, forced, ordered ---------------------------------------------------------------------


def test_what_a_clock_stamped_and_noted_too_early_waits_for_as_much_longer() -> None:
    """ADR-11: it was 500 behind, and was set right 900 ago."""
    wish = RoundOptions(steps=(Step(NOW - 3000, NOW - 901, 500),))
    facts = with_horizon(NOW - 100)
    settings = compacted(delete_retention_ms=1000)
    assert decide(LogInfo(facts, settings), NOW).passed_until_ms == NOW
    assert decide(LogInfo(facts, settings), NOW, wish).passed_until_ms == NOW - 500
    assert decide(LogInfo(facts, settings), NOW + 100, wish).passed_until_ms == NOW + 100
    young = log([segment(0, largest_timestamp=NOW, append_last_ms=NOW - 1100), segment(10)])
    lag = compacted(min_compaction_lag_ms=1000)
    for now_ms, given, upper in (
        (NOW, RoundOptions(), 10), (NOW, wish, 0), (NOW + 98, wish, 0), (NOW + 100, wish, 10),
    ):  # fmt: skip
        assert decide(LogInfo(young, lag), now_ms, given).bounds.upper == upper


def test_s1_not_compacted_is_not_cleaned_even_by_force() -> None:
    for policy, words in (("delete", "delete"), ("", "(empty)")):
        found = decided(sealed(segment(0)), RoundOptions(force=True), cleanup_policy=policy)
        assert (found.due, found.blocked) == ((), Blocked.NOT_COMPACTED)
        assert found.detail == f"cleanup.policy is {words}"
    assert decided(sealed(segment(0)), cleanup_policy="compact,delete").due == (Due.RATIO,)


def test_what_we_do_not_handle_is_left_alone_with_the_reason() -> None:
    odd = segment(0, unhandled=("control batch at offset 3",))
    found = decided(sealed(odd, segment(10)), RoundOptions(force=True))
    assert (found.due, found.blocked) == ((), Blocked.UNHANDLED)
    assert found.detail == "control batch at offset 3"


def test_force_skips_ratio_and_lag_but_needs_something_to_do() -> None:
    half = sealed(segment(0), segment(10, 1), cleaner_checkpoint=10)
    assert decided(half).due == ()
    assert decided(half, RoundOptions(force=True)).due == (Due.FORCED,)
    clean = decided(sealed(segment(0), cleaner_checkpoint=10), RoundOptions(force=True))
    assert (clean.due, clean.blocked) == ((), Blocked.NOTHING_TO_DO)


def test_who_asks_gets_what_the_ratio_would_keep_waiting_and_no_more() -> None:
    """No lag that was promised is skipped; nothing is done where nothing is dirty."""
    half = sealed(segment(0), segment(10, 1), cleaner_checkpoint=10)
    asked, lag = RoundOptions(asked=True), {"min_compaction_lag_ms": 10 * DAY}
    assert decided(half, asked).due == (Due.ASKED,)
    assert not decided(half, asked, **lag).due + decided(half, asked, cleanup_policy="delete").due
    assert decided(half, RoundOptions(force=True), **lag).due != ()
    clean = decided(sealed(segment(0), cleaner_checkpoint=10), asked)
    assert clean.blocked is Blocked.NOTHING_TO_DO
    assert decided(with_horizon(NOW + DAY), asked).due == (), "a tombstone alone is not dirty"
    assert must_be_made(decided(half, asked)), "somebody waits"


@pytest.mark.parametrize(
    "unknown", [{"with_summary": False}, {"estimated": True}, {"commits": -1}], ids=str
)
def test_what_nobody_looked_through_is_not_decided_on(unknown: dict[str, object]) -> None:
    """Before anything that an estimate cannot know: that the log is not handled, or clean."""
    odd = segment(0, unhandled=("control batch at offset 3",))
    for segments in ([segment(10, **unknown)], [odd, segment(10, **unknown), segment(20)]):
        found = decided(sealed(*segments), RoundOptions(force=True))
        assert (found.due, found.blocked) == ((), Blocked.SUMMARIES)
        assert found.detail == "1 segments without summary are to be looked through"
        assert next_look_ms(found) is None
    assert decided(sealed(segment(10, **unknown)), cleanup_policy="delete").blocked is (
        Blocked.NOT_COMPACTED
    )


def test_the_active_segment_may_be_an_estimate() -> None:
    assert decided(log([segment(0), segment(10, estimated=True)])).due == (Due.RATIO,)


def late_trim(moved_ms: int = NOW - DAY, **facts: object) -> LogFacts:
    """A clean log whose start was moved into its second segment."""
    moves = (StartMove(13, moved_ms),)
    facts = {"log_start_offset": 13, "start_moves": moves, "cleaner_checkpoint": 20, **facts}
    return sealed(segment(0), segment(10), **facts)


LAG = {"lapse_physical_delete_max_lag_ms": 1000, "file_delete_delay_ms": 200}


def test_who_asks_does_not_wait_for_the_lag_of_deleted_records() -> None:
    young = late_trim(NOW - 1)
    assert decided(young, **LAG).due == ()
    assert decided(young, RoundOptions(asked=True), **LAG).due == (Due.DELETED,)


@pytest.mark.parametrize("policy", ["compact", "delete", "compact,delete", ""])
@pytest.mark.parametrize(("age", "due"), [(400, (Due.DELETED,)), (399, ())])
def test_l11_deleted_records_get_their_round_whatever_the_policy(
    policy: str, age: int, due: tuple[Due, ...]
) -> None:
    found = decided(late_trim(NOW - age), cleanup_policy=policy, **LAG)
    assert found.due == due
    if due:
        assert (found.kind, found.blocked) == (RoundKind.TRIM, None)
    else:
        assert found.blocked is not None
        assert next_look_ms(found) == NOW + 1
    assert decided(late_trim(NOW - age), EXACT, cleanup_policy=policy, **LAG).due == ()  # D-7


def test_l11_at_once_where_the_delay_leaves_no_room() -> None:
    settings = {"lapse_physical_delete_max_lag_ms": 200, "file_delete_delay_ms": 200}
    assert decided(late_trim(NOW), **settings).due == (Due.DELETED,)


def test_l11_a_move_from_the_future_is_not_waited_for() -> None:
    assert decided(late_trim(NOW + DAY), **LAG).due == (Due.DELETED,)
    assert decided(late_trim(NOW), **LAG).due == ()


def test_l11_the_active_segment_is_left_to_its_owner_to_roll() -> None:
    facts = log([segment(0), segment(10)], log_start_offset=13,
                start_moves=(StartMove(13, NOW - DAY),), cleaner_checkpoint=20)  # fmt: skip
    found = decided(facts, **LAG)
    assert (found.due, found.kind) == ((), RoundKind.CLEAN)
    assert next_look_ms(found) == NOW + ROLL_SLACK_MS


def test_l11_a_compaction_that_reaches_the_log_start_does_it_too() -> None:
    dirty = late_trim(cleaner_checkpoint=None)
    found = decided(dirty, min_cleanable_dirty_ratio=0, **LAG)
    assert (found.kind, found.due) == (RoundKind.CLEAN, (Due.RATIO, Due.DELETED))


def test_l11_a_compaction_that_does_not_reach_it_goes_first_and_the_trim_next() -> None:
    old = segment(0, horizon_earliest_ms=NOW - 9 * DAY, horizon_bytes=100)
    facts = late_trim(last_stable_offset=15, cleaner_checkpoint=13)
    facts = replace(facts, segments=(old, *facts.segments[1:]))
    found = decided(facts, **LAG)
    assert (found.bounds.upper, found.kind, found.due) == (10, RoundKind.CLEAN, (Due.HORIZON,))
    after = replace(facts, segments=(segment(0), *facts.segments[1:]))
    assert decided(after, **LAG).kind is RoundKind.TRIM


@pytest.mark.parametrize(
    ("odd", "blocked"),
    [
        ({"unhandled": ("unknown codec 7 at offset 12",)}, Blocked.UNHANDLED),
        ({"with_summary": False}, Blocked.SUMMARIES),
        ({"unreadable_from": 15}, Blocked.NOTHING_TO_DO),
    ],
)
def test_l11_what_cannot_be_rewritten_is_not_trimmed(
    odd: dict[str, object], blocked: Blocked
) -> None:
    facts = late_trim()
    broken = replace(facts, segments=(facts.segments[0], segment(10, **odd), facts.segments[2]))
    found = decided(broken, RoundOptions(force=True), **LAG)
    assert (found.due, found.blocked) == ((), blocked)


@pytest.mark.parametrize("unknown", [{"with_summary": False}, {"estimated": True}], ids=str)
@pytest.mark.parametrize("policy", ["delete", ""])
def test_l11_a_trim_needs_no_summary(policy: str, unknown: dict[str, object]) -> None:
    """Nobody looks through a log that is not compacted: a real Kafka's has estimates for ever."""
    facts = late_trim()
    foreign = replace(
        facts, segments=(facts.segments[0], segment(10, **unknown), facts.segments[2])
    )
    found = decided(foreign, cleanup_policy=policy, **LAG)
    assert (found.due, found.kind) == ((Due.DELETED,), RoundKind.TRIM)
    plan = make_plan(found, "r", Rules.LAPSE, MapMemory(1 << 20))
    assert [s.base_offset for s in plan.segments] == [10]


@pytest.mark.parametrize(("base", "trimmed"), [(10, False), (0, True)])
def test_l11_l10_a_bad_place_holds_the_segment_it_is_in(base: int, trimmed: bool) -> None:
    bad = BadRange(base, base + 5, 7, "checksum", NOW - 9, 1, NOW + 50)
    found = decided(late_trim(bad=bad), **LAG)
    assert found.due == ((Due.DELETED,) if trimmed else ())
    if not trimmed:
        assert next_look_ms(found) == NOW + 50
        assert decided(late_trim(bad=replace(bad, next_try_ms=NOW)), **LAG).due == (Due.DELETED,)


def test_l11_force_waits_for_nothing() -> None:
    found = decided(late_trim(NOW), RoundOptions(force=True), cleanup_policy="delete", **LAG)
    assert (found.due, found.kind) == ((Due.DELETED,), RoundKind.TRIM)


def spent(append_last_ms: int, **facts: object) -> LogFacts:
    """A clean log with a marker of whose transaction nothing is left."""
    marker = Ended(7, 3, committed=True, alone=True)
    return sealed(
        segment(0, commits=1, ended=(marker,), append_last_ms=append_last_ms),
        **{"cleaner_checkpoint": 10, **facts},
    )  # fmt: skip


@pytest.mark.parametrize(("age", "due"), [(500, (Due.MARKERS,)), (499, ())])
def test_l4_spent_markers_get_their_round(age: int, due: tuple[Due, ...]) -> None:
    """KIP-534, case 2: the round that stamps their horizon, which nothing calls for in Kafka."""
    settings = {"lapse_tombstone_removal_max_lag_ms": 1000}
    found = decided(spent(NOW - age), **settings)
    assert (found.due, found.blocked, found.kind) == (due, None, RoundKind.CLEAN)
    if not due:
        assert next_look_ms(found) == NOW + 1
    assert decided(spent(NOW - age), EXACT, **settings).due == ()


def test_l4_markers_above_the_bound_call_for_nothing() -> None:
    found = decided(spent(NOW - 9 * DAY, last_stable_offset=5, cleaner_checkpoint=None))
    assert (found.due, found.blocked) == ((), Blocked.NOTHING_TO_DO)


def test_outcomes_of_transactions_open_at_the_bound() -> None:
    facts = sealed(
        segment(0, begun=(Begun(7, 4), Begun(8, 5))),
        segment(10, largest_timestamp=NOW, append_last_ms=NOW, commits=1, aborts=1,
                ended=(Ended(7, 12, committed=True), Ended(8, 13, committed=False))),
    )  # fmt: skip
    for wish in (None, EXACT):
        found = decided(facts, wish, min_compaction_lag_ms=1000)
        assert (found.bounds.upper, found.outcomes) == (10, ((7, True), (8, False)))
    assert decided(sealed(segment(0))).outcomes == ()


def replicated(*cleaned_to: int) -> tuple[ReplicaFacts, ...]:
    """Replicas that had cleaned so far two days ago."""
    return tuple(
        ReplicaFacts(n, (CleanedTo(offset, NOW - 2 * DAY),), NOW)
        for n, offset in enumerate(cleaned_to)
    )


@pytest.mark.parametrize(
    ("replicas", "below", "due"),
    [
        ((), LONG_MAX, (Due.HORIZON,)),
        ((10, 10), 10, (Due.HORIZON,)),
        ((10, 1), 1, (Due.HORIZON,)),
        ((10, 0), 0, ()),  # one was never cleaned
    ],
)
def test_l3_tombstones_wait_for_the_slowest_replica(
    replicas: tuple[int, ...], below: int, due: tuple[Due, ...]
) -> None:
    facts = replace(with_horizon(NOW - 9 * DAY), replicas=replicated(*replicas))
    found = decided(facts)
    assert (found.due, found.removable_below) == (due, below)
    assert decided(facts, EXACT).removable_below == LONG_MAX
    if not due:
        assert found.blocked is Blocked.NOTHING_TO_DO


def test_l3_by_time_too_and_looked_at_again_when_it_has_come() -> None:
    replicas = (ReplicaFacts(1, (CleanedTo(10, NOW - DAY + 70),), NOW),)
    facts = replace(with_horizon(NOW - 9 * DAY), replicas=replicas)
    assert decided(facts).due == ()
    assert next_look_ms(decided(facts)) == NOW + 70
    assert decide(LogInfo(facts, compacted(), ours(facts)), NOW + 70).due == (Due.HORIZON,)


def test_l3_replica_cleaned_to_may_be_told_to_a_tool() -> None:
    facts = with_horizon(NOW - 9 * DAY)
    for rules in Rules:
        found = decided(facts, RoundOptions(rules=rules, removable_below=0))
        assert (found.due, found.removable_below) == ((), 0)
    assert decided(facts, RoundOptions(removable_below=4)).due == (Due.HORIZON,)
    both = replace(facts, replicas=replicated(10, 3))
    assert decided(both, RoundOptions(removable_below=4)).removable_below == 3
    assert decided(both, RoundOptions(removable_below=2)).removable_below == 2


def test_l10_a_bad_place_stops_what_is_above_it_and_nothing_else() -> None:
    bad = BadRange(20, 25, 7, "checksum", NOW - 9, 1, NOW + 50)
    facts = sealed(
        segment(0, horizon_earliest_ms=NOW - 9 * DAY, horizon_bytes=1), segment(10),
        segment(20, horizon_earliest_ms=NOW - 9 * DAY, horizon_bytes=999), bad=bad,
    )  # fmt: skip
    found = decided(facts)
    assert (found.bounds.upper, found.removal.bytes) == (20, 1)
    assert found.due == (Due.RATIO, Due.HORIZON)
    above = decided(replace(facts, cleaner_checkpoint=20, segments=facts.segments[2:]))
    assert (above.due, above.blocked) == ((), Blocked.NOTHING_TO_DO)
    assert next_look_ms(above) == NOW + 50
    after = decide(LogInfo(facts, compacted(), ours(facts)), NOW + 50)
    assert (after.bounds.upper, after.removal.bytes) == (30, 1000)


def test_s12_kafka_gives_up_a_log_that_it_cannot_read() -> None:
    facts = sealed(segment(0), segment(10, unreadable_from=14))
    assert decided(facts).due == (Due.RATIO,)
    found = decided(facts, EXACT)
    assert (found.due, found.blocked) == ((), Blocked.UNHANDLED)
    assert found.detail == "unreadable at offset 14: Kafka gives up the log"
    # Unless its round does not come that far.
    assert decided(replace(facts, last_stable_offset=10), EXACT).due == (Due.RATIO,)


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


def test_l6_what_must_be_cleaned_goes_first_then_deleted_records_then_dirt() -> None:
    trim = decided(late_trim(partition=TopicPartition("t", 0)), **LAG)
    found = order([named("a", 900), trim, named("b", 300, 20)])
    assert [d.info.facts.partition.topic for d in found] == ["b", "t", "a"]


def test_order_leaves_out_what_is_not_due() -> None:
    assert order([named("a", 100), named("b", 600)]) == [named("b", 600)]


# --- what could not be read is looked through again (L10) -----------------------------------------


def bad_at(base: int, next_try_ms: int) -> BadRange:
    return BadRange(base, base + 5, 7, "checksum", NOW - 9, 1, next_try_ms)


@pytest.mark.parametrize(
    ("bad", "settings", "again"),
    [
        (None, {}, 10),  # nobody has noted it yet, or its file is another one now
        (bad_at(10, NOW + 1), {}, None),
        (bad_at(10, NOW), {}, 10),
        (bad_at(0, NOW + 1), {}, None),  # rounds stay below that one anyway
        (bad_at(20, NOW + 1), {}, 10),
        (None, {"cleanup_policy": "delete"}, None),
    ],
)
def test_l10_a_segment_that_could_not_be_read_is_looked_through_again(
    bad: BadRange | None, settings: dict[str, object], again: int | None
) -> None:
    odd = segment(10, unreadable_from=15)
    facts = sealed(segment(0), odd, segment(20), cleaner_checkpoint=10, bad=bad)
    found = decided(facts, **settings)
    assert found.look_again == again
    assert decided(facts, EXACT, **settings).look_again is None
    if bad is not None and bad.next_try_ms > NOW:
        assert next_look_ms(found) == bad.next_try_ms
    asked = [request.base_offset for request in requests_due([found], records=True)]
    assert asked == ([] if again is None else [again])
    assert wants_look(found) is (again is not None)


def test_l10_a_log_that_is_not_compacted_looks_again_for_its_trim() -> None:
    facts = late_trim(cleaner_checkpoint=None)
    odd = segment(10, unreadable_from=15)
    broken = replace(facts, segments=(facts.segments[0], odd, facts.segments[2]))
    assert decided(broken, cleanup_policy="delete", **LAG).look_again == 10


def test_what_no_round_need_read_is_looked_into_by_tasks() -> None:
    """Headers tell of no tombstone: nobody would ever find those of the clean part."""
    unknown = [segment(n, estimated=True) for n in (0, 10, 20)]
    found = decided(sealed(*unknown, cleaner_checkpoint=15))
    requests = requests_due([found], records=False)
    assert [(r.base_offset, r.records) for r in requests] == [(0, True), (10, False), (20, False)]
    assert [r.records for r in requests_due([found], records=True)] == [True] * 3
    assert requests_due([decided(found.info.facts, cleanup_policy="delete")], records=True) == []
