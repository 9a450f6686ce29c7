"""A plan holds all a task decides by, and travels as JSON."""

from __future__ import annotations

import msgspec
import pytest

from lapse.base.times import FOREVER_MS
from lapse.lifecycle.decide.select import LogInfo, RoundOptions, decide
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.choice import Load, choose
from lapse.lifecycle.round.map_size import entries_within
from lapse.lifecycle.round.plan import MapMemory, PlanSegment, RoundPlan, load_of, make_plan
from lapse.log.facts import LogFacts, ProducerLast
from tests.support.lifecycle.decide.logs import NOW, compacted, log, segment

MEMORY = MapMemory(1 << 20)


def planned(facts: LogFacts, rules: Rules = Rules.LAPSE, **settings: object) -> RoundPlan:
    decision = decide(LogInfo(facts, compacted(**settings)), NOW, RoundOptions(rules=rules))
    return make_plan(decision, "r7", rules, MEMORY)


LOG = log(
    [
        segment(0, mtime_ms=5, append_first_ms=70, append_last_ms=80),
        segment(10, append_first_ms=-1, append_last_ms=-1, append_estimated=True),
        segment(20, append_estimated=True),
        segment(30),
    ],
    cleaner_checkpoint=10,
    high_watermark=37,
    generation=4,
    producers=(ProducerLast(9, 0, 25, NOW), ProducerLast(7, 2, 14, NOW)),
)


def test_what_a_plan_says() -> None:
    plan = planned(LOG, delete_retention_ms=500, segment_bytes=2 << 20, index_interval_bytes=9)
    assert (plan.round_id, plan.name, plan.dir, plan.generation) == ("r7", "t-0", "/logs/t-0", 4)
    assert (plan.now_ms, plan.horizon_ms) == (NOW, NOW + 500)  # H-2: retention in force now
    assert (plan.dirty, plan.upper, plan.passed_until_ms) == (10, 30, NOW)
    assert plan.guarded_last_offsets == (14, 25)  # B-3
    assert (plan.limits.segment_bytes, plan.index_interval_bytes) == (2 << 20, 9)
    assert plan.due == ("dirty ratio",)
    assert plan.bytes_to_read == 300


def test_sealed_segments_only_clean_ones_too() -> None:
    """G-1: from the first segment of the log on."""
    plan = planned(LOG)
    assert [s.base_offset for s in plan.segments] == [0, 10, 20]
    first, second, third = plan.segments
    assert first.mtime_ns == 5_000_000
    assert (first.append_first_ms, first.append_last_ms, first.append_estimated) == (70, 80, False)
    assert (second.append_first_ms, second.append_estimated) == (-1, True)
    assert third.append_estimated
    assert (first.sizes.size, first.sizes.index_bytes, first.sizes.time_index_bytes) == (100, 8, 12)


def test_segments_above_the_bound_are_not_read() -> None:
    held = log(LOG.segments, last_stable_offset=22)
    assert [s.base_offset for s in planned(held).segments] == [0, 10]


def test_l18_the_end_that_is_guarded() -> None:
    """B-4: the round's bound in Kafka 4.3, the high watermark in 4.4 and with us."""
    assert planned(LOG).end_guard == 37
    assert planned(LOG, Rules.KAFKA_43).end_guard == 30


def test_a_plan_survives_json() -> None:
    for rules in Rules:
        plan = planned(LOG, rules)
        assert msgspec.json.decode(msgspec.json.encode(plan), type=RoundPlan) == plan


@pytest.mark.parametrize(
    ("slots", "load_factor", "entries"),
    [
        (5_592_405, 0.9, 5_033_164),
        (4, 0.75, 3),
        (10, 0.9, 9),
        (4, 1.0, 4),
        (1, 0.5, 1),
        (0, 0.9, 1),
    ],
)
def test_m5_kafkas_map_holds_so_many(slots: int, load_factor: float, entries: int) -> None:
    """C-5: 128 MiB are 5 033 164 keys; a map for none would never get anywhere."""
    memory = MapMemory(24 * slots + 23, load_factor)
    assert memory.entries(Rules.KAFKA_43, Load(100, 1)) == entries


def test_a_horizon_beyond_the_end_of_time_is_none_under_kafkas_rules() -> None:
    """Its sum overflows, so it stamps nothing; ours never comes."""
    for retention_ms in (FOREVER_MS, FOREVER_MS - NOW + 1):
        assert planned(LOG, Rules.KAFKA_43, delete_retention_ms=retention_ms).horizon_ms == -1
        assert planned(LOG, delete_retention_ms=retention_ms).horizon_ms == FOREVER_MS
    last = planned(LOG, Rules.KAFKA_43, delete_retention_ms=FOREVER_MS - NOW)
    assert last.horizon_ms == FOREVER_MS


def test_nobody_is_taken_to_have_kept_create_times_who_does_not_say_so() -> None:
    """L15: what an old plan's JSON lacks must not let a time pass for the producer's."""
    assert not PlanSegment(0, 1, 2, 3, 4, 5, 6, append_estimated=False).create_times_kept


def test_our_map_may_hold_what_fits_beside_the_rest() -> None:
    memory = MapMemory(1 << 20)
    assert memory.entries(Rules.LAPSE, Load(0, 0)) == entries_within(1 << 20) == 27_033
    beside = 400 * 136 + 2000 // 2
    assert memory.entries(Rules.LAPSE, Load(2000, 400)) == entries_within((1 << 20) - beside)
    assert MapMemory(1).entries(Rules.LAPSE, Load(0, 10**9)) == 9011, "as every map"


def test_what_the_map_leaves_is_for_inflated_batches() -> None:
    """Not under Kafka's rules, where the memory is the size of Kafka's map."""
    load = load_of(LOG, 10, 30)
    assert planned(LOG).kept_bytes_max == choose(load, MEMORY.bytes).spare_bytes > 700_000
    assert planned(LOG, Rules.KAFKA_43).kept_bytes_max == 0
