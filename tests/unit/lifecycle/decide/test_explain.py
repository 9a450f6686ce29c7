"""The binding rule in words, with a word for scripts and the time it clears."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lapse.lifecycle.decide.clock import ClockRecord, judge_clock
from lapse.lifecycle.decide.explain import RULES, Context, Explanation, explain
from lapse.lifecycle.decide.select import Decision, LogInfo, RoundOptions, decide
from lapse.lifecycle.decide.verdict import Rules
from lapse.log.facts import BadRange, CleanedTo, LogFacts, ReplicaFacts, SegmentFacts, StartMove
from lapse.log.summary import Begun, Ended
from tests.support.lifecycle.decide.logs import DAY, NOW, compacted, log, ours, segment

THEN = NOW - 60_000  # 2023-11-14 22:12:20Z


def decided(facts: LogFacts, **settings: object) -> Decision:
    return decide(LogInfo(facts, compacted(**settings), ours(facts)), NOW)


def reason(facts: LogFacts, **settings: object) -> Explanation:
    found = explain(decided(facts, **settings))
    assert found.rule in RULES
    return found


def sealed(*segments: SegmentFacts, **facts: object) -> LogFacts:
    return log([*segments, segment(10 * len(segments), 0)], **facts)


DIRTY = sealed(segment(0))
CLEAN = sealed(segment(0), cleaner_checkpoint=10)
AWAY = (ReplicaFacts(2, (), 0),)
BAD = BadRange(10, 15, 77, "checksum does not match", THEN, 3, NOW + 50)


@pytest.mark.parametrize(
    ("facts", "settings", "rule", "until", "words"),
    [
        (DIRTY, {"cleanup_policy": "delete"}, "policy", None, "cleanup.policy is delete"),
        (sealed(segment(0, with_summary=False)), {}, "summaries", None, "1 segments without"),
        (sealed(segment(0, unhandled=("unknown codec 7 at offset 3",))), {}, "unhandled", None,
         "unknown codec 7 at offset 3"),
        (DIRTY, {}, "due", None, "due: dirty ratio 1.00 is above min.cleanable.dirty.ratio 0.5"),
        (log([segment(0, append_first_ms=NOW - 300)]), {"segment_ms": 1000}, "active-segment",
         NOW + 700, "all that is dirty is in the active segment (100 B)"),
        (log([segment(0)]), {"lapse_roll_time": "record"}, "active-segment", None, "active"),
        (log([segment(0), segment(10)], last_stable_offset=3), {}, "open-transaction", None,
         "an open transaction holds the log from 3 on"),
        (log([segment(0), segment(10)], last_stable_offset=3, high_watermark=3, replicas=AWAY), {},
         "uncommitted", None, "what follows offset 3 is not on all in-sync replicas yet"),
        (log([segment(0), segment(10)], last_stable_offset=3, high_watermark=5, replicas=AWAY), {},
         "open-transaction", None, "an open transaction holds the log from 3 on"),
        (sealed(segment(0, begun=(Begun(7, 4),), append_first_ms=THEN)), {}, "open-transaction",
         None, ("a transaction of producer 7 without marker holds the log from 4 on, since "
         "2023-11-14 22:12:20Z")),
        (sealed(segment(0, largest_timestamp=NOW - 300, append_last_ms=NOW - 300)),
         {"min_compaction_lag_ms": 1000}, "min-lag", NOW + 700,
         "segment 0 is younger than min.compaction.lag.ms"),
        (sealed(segment(0, largest_timestamp=NOW + DAY, append_last_ms=NOW - 300)),
         {"min_compaction_lag_ms": 1000}, "min-lag", NOW + 700, "is not followed"),
        (sealed(segment(0, largest_timestamp=NOW + DAY, append_last_ms=-1)),
         {"min_compaction_lag_ms": 1000}, "future-timestamp", NOW + DAY + 1000,
         "segment 0 has a timestamp from the future, 2023-11-15 22:13:20Z"),
        (sealed(segment(0), segment(10, append_first_ms=NOW - 400), cleaner_checkpoint=10),
         {"max_compaction_lag_ms": 1000}, "ratio", NOW + 601,
         "dirty ratio 0.50 is not above min.cleanable.dirty.ratio 0.5"),
        (sealed(segment(0), segment(10), cleaner_checkpoint=10), {}, "ratio", None,
         "max.compaction.lag.ms is not set"),
        (sealed(segment(0), segment(10), cleaner_checkpoint=10, bad=BAD), {}, "bad-range",
         NOW + 50, ("segment 10 cannot be read at byte 77 (offset 15: checksum does not match); "
         "3 tries since 2023-11-14 22:12:20Z")),
        (sealed(segment(0, unreadable_from=4)), {}, "bad-range", None,
         "segment 0 cannot be read from offset 4 on; it is about to be looked through again"),
        (sealed(segment(0), segment(10, unreadable_from=14), cleaner_checkpoint=10, bad=BAD), {},
         "bad-range", NOW + 50, "segment 10 cannot be read at byte 77"),
        (sealed(segment(0, unreadable_from=4), bad=replace(BAD, segment_base=0, first_offset=10)),
         {}, "bad-range", NOW + 50, "segment 0 cannot be read from offset 4 on"),
        (sealed(segment(0), segment(10), bad=BAD), {}, "due", None,
         "; not from 10 on: segment 10 cannot be read at byte 77"),
        (CLEAN, {}, "clean", None, "clean"),
        (sealed(segment(0, horizon_earliest_ms=NOW + 70), cleaner_checkpoint=10),
         {"lapse_tombstone_removal_max_lag_ms": 60}, "clean", NOW + 100, "tombstones wait"),
        (sealed(segment(0, ended=(Ended(7, 3, True, True),), append_last_ms=NOW),
                cleaner_checkpoint=10),
         {"lapse_tombstone_removal_max_lag_ms": 60}, "clean", NOW + 30, "markers of transactions"),
        (sealed(segment(0, tombstones=1, append_last_ms=NOW), cleaner_checkpoint=10),
         {"lapse_tombstone_removal_max_lag_ms": 60}, "clean", NOW + 30,
         "tombstones that no round has stamped wait for that"),
        (sealed(segment(0, tombstones=1), cleaner_checkpoint=10), {}, "due", None,
         "due: tombstones that no round has stamped"),
    ],
)  # fmt: skip
def test_the_binding_rule(
    facts: LogFacts, settings: dict[str, object], rule: str, until: int | None, words: str
) -> None:
    found = reason(facts, **settings)
    assert (found.rule, found.until_ms) == (rule, until)
    assert words in found.text


def test_s3b_under_kafkas_rules_the_future_timestamp_binds() -> None:
    """E17; with us the append clock bounds it (L9)."""
    odd = sealed(segment(0, largest_timestamp=NOW + DAY, append_last_ms=NOW - DAY))
    info = LogInfo(odd, compacted(min_compaction_lag_ms=1000))
    exact = decide(info, NOW, RoundOptions(rules=Rules.KAFKA_43))
    found = explain(exact, Context(rules=Rules.KAFKA_43))
    assert (found.rule, found.until_ms) == ("future-timestamp", NOW + DAY + 1000)
    assert explain(decide(info, NOW)).rule == "due"


def test_l3_the_replica_that_is_waited_for() -> None:
    replicas = (
        ReplicaFacts(1, (CleanedTo(10, 0),), 0),
        ReplicaFacts(2, (CleanedTo(10, NOW - DAY + 70),), 0),
    )
    facts = sealed(segment(0, horizon_earliest_ms=5), cleaner_checkpoint=10, replicas=replicas)
    found = reason(facts)
    assert (found.rule, found.until_ms) == ("replica", NOW + 70)
    assert "until replica 2 has cleaned" in found.text


def test_l3_since_when_the_replica_that_is_waited_for_is_away() -> None:
    away = ReplicaFacts(2, (), 1_700_000_000_000)
    facts = sealed(segment(0, horizon_earliest_ms=5), cleaner_checkpoint=10, replicas=(away,))
    words = "replica 2 (not in sync since 2023-11-14 22:13:20Z; while its broker is away it is wait"
    assert words in reason(facts).text


def test_l11_deleted_records_are_told_of_whatever_the_policy() -> None:
    facts = sealed(
        segment(0), cleaner_checkpoint=10, log_start_offset=3, start_moves=(StartMove(3, NOW),)
    )
    lags = {"lapse_physical_delete_max_lag_ms": 1000, "file_delete_delay_ms": 200}
    for policy, rule in (("delete", "policy"), ("compact", "clean")):
        found = reason(facts, cleanup_policy=policy, **lags)
        assert (found.rule, found.until_ms) == (rule, NOW + 400)
        assert found.text.endswith("; deleted records are still in segment 0")
    late = replace(facts, start_moves=(StartMove(3, NOW - DAY),))
    assert reason(late, cleanup_policy="delete", **lags).text == (
        "due: records below 3 were deleted and are still in a file"
    )


def test_what_a_decision_does_not_know_is_told_with_it() -> None:
    due = decided(DIRTY)
    waiting = explain(due, Context(waiting_behind=3))
    assert waiting.rule == "waiting"
    assert waiting.text.startswith("waiting behind 3 logs; due: dirty ratio 1.00")
    back = explain(due, Context(setback_until_ms=NOW + 9, setback_reason="disk full"))
    assert (back.rule, back.until_ms) == ("backoff", NOW + 9)
    assert back.text.startswith("its last round came to nothing (disk full); due: ")
    assert explain(due, Context(setback_until_ms=NOW)).rule == "due"
    paused = explain(due, Context(waiting_behind=3, paused="paused", paused_until_ms=NOW + 9))
    assert (paused.rule, paused.until_ms) == ("paused", NOW + 9)
    assert paused.text.startswith("paused; due: dirty ratio 1.00")
    held = judge_clock(ClockRecord(NOW, 1.0), NOW + DAY, 1.0, 1000)
    assert explain(due, Context(clock=held)).rule == "clock"
    assert "lapse.clock.jump.max.ms=1000" in explain(due, Context(clock=held)).text
    right = judge_clock(ClockRecord(NOW, 1.0), NOW + 5, 1.0, 1000)
    assert explain(due, Context(clock=right)).rule == "due"
    # None of which matters to a log that has no round due.
    assert explain(decided(CLEAN), Context(waiting_behind=3, setback_until_ms=NOW + 9)).rule == (
        "clean"
    )


def test_a_moment_gone_by_is_no_news() -> None:
    assert reason(log([segment(0, append_first_ms=NOW - 5000)]), segment_ms=1000).until_ms is None


def test_a_moment_that_is_now_is_gone_by() -> None:
    due = decided(DIRTY)
    for at_ms, told_ms in ((NOW, None), (NOW + 1, NOW + 1)):
        assert explain(due, Context(paused="paused", paused_until_ms=at_ms)).until_ms == told_ms


def test_how_late_a_log_is_and_what_it_holds_all_the_same() -> None:
    late = sealed(segment(0, append_first_ms=NOW - 1500), segment(10, begun=(Begun(7, 15),)))
    found = reason(late, max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1)
    assert found.text == (
        "due: records are 500 ms past max.compaction.lag.ms; "
        "not from 10 on: a transaction of producer 7 without marker holds the log from 15 on, "
        "since 2023-11-13 22:13:20Z"
    )


def test_a_transaction_of_the_first_millisecond_of_all_is_dated() -> None:
    held = sealed(segment(0, begun=(Begun(7, 4),), append_first_ms=0))
    assert reason(held).text.endswith(", since 1970-01-01 00:00:00Z")
    unknown = sealed(segment(0, begun=(Begun(7, 4),), append_first_ms=-1))
    assert reason(unknown).text.endswith("holds the log from 4 on")


def test_s3b_what_has_the_time_of_now_is_not_from_the_future() -> None:
    fresh = sealed(segment(0, largest_timestamp=NOW, append_last_ms=NOW))
    found = reason(fresh, min_compaction_lag_ms=1000)
    assert (found.rule, found.until_ms) == ("min-lag", NOW + 1000)
    assert found.text == "segment 0 is younger than min.compaction.lag.ms"


def test_a_time_beyond_all_calendars_is_told_in_milliseconds() -> None:
    odd = sealed(segment(0, largest_timestamp=1 << 62, append_last_ms=NOW))
    assert f"{1 << 62} ms, is not followed" in reason(odd, min_compaction_lag_ms=1000).text


def test_an_active_segment_without_a_summary_has_no_moment_to_be_rolled() -> None:
    found = reason(log([segment(0, with_summary=False)]), segment_ms=2 * NOW)
    assert (found.rule, found.until_ms) == ("active-segment", None)


def test_an_active_segment_that_is_clean_to_its_end_is_clean() -> None:
    assert reason(log([segment(0)], cleaner_checkpoint=10)).rule == "clean"


def test_the_first_thing_that_a_clean_log_waits_for() -> None:
    """A horizon of ours that passes tomorrow, and tombstones that must be stamped before."""
    facts = sealed(
        segment(0, horizon_earliest_ms=NOW + DAY), segment(10, tombstones=1, append_last_ms=NOW),
        cleaner_checkpoint=20,
    )  # fmt: skip
    found = reason(facts, lapse_tombstone_removal_max_lag_ms=1000)
    assert (found.until_ms, found.text) == (
        NOW + 500, "clean; tombstones that no round has stamped wait for that",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("version", "sealed_facts", "active_facts", "kept"),
    [
        ("0.10.2", {"old_format": 1, "tombstones": 1}, {}, True),
        ("3.0", {"old_format": 1, "tombstones": 1}, {}, False),
        ("0.10.2", {"old_format": 1}, {}, False),
        ("0.10.2", {"tombstones": 1, "horizon_earliest_ms": NOW + 9}, {}, False),
        ("0.10.2", {}, {"old_format": 1, "tombstones": 1}, False),
    ],
)
def test_tombstones_of_old_formats_stay_and_it_is_said(
    version: str, sealed_facts: dict[str, int], active_facts: dict[str, int], kept: bool
) -> None:
    facts = log([segment(0, **sealed_facts), segment(10, 0, **active_facts)],
                cleaner_checkpoint=10)  # fmt: skip
    found = reason(facts, message_format_version=version)
    assert ("tombstones of old formats" in found.text) == kept


def test_l3_what_expires_at_this_moment_waits_for_the_replica() -> None:
    behind = (ReplicaFacts(2, (CleanedTo(10, NOW - DAY + 70),), NOW),)
    for horizon_ms, rule in ((NOW, "replica"), (NOW + 1, "clean")):
        held = segment(0, horizon_earliest_ms=horizon_ms)
        facts = sealed(held, cleaner_checkpoint=10, replicas=behind)
        assert reason(facts).rule == rule


def test_a_ratio_that_is_not_reached_waits_for_the_oldest_append() -> None:
    """Of those that are known: 0 is no time, as in Kafka."""
    for oldest_ms, until_ms in ((1, NOW + 2), (0, 2 * NOW - 5 + 1)):
        facts = sealed(
            segment(0, 1000), segment(10, append_first_ms=oldest_ms),
            segment(20, append_first_ms=NOW - 5), cleaner_checkpoint=10,
        )  # fmt: skip
        found = reason(facts, max_compaction_lag_ms=NOW)
        assert (found.rule, found.until_ms) == ("ratio", until_ms)


def test_tombstones_of_old_formats_are_looked_for_in_every_sealed_segment() -> None:
    facts = sealed(
        segment(0), segment(10, old_format=1, tombstones=1), segment(20), cleaner_checkpoint=30
    )
    assert "tombstones of old formats" in reason(facts, message_format_version="0.10.2").text
