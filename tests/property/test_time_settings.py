"""Every setting in milliseconds, over the whole range that Kafka allows (0 … 2^63-1).

A time and a lag together may lie beyond what 64 bits hold. Whatever the settings are, housekeeping
and rounds go on, everything that is told of a log can be told, and what has to stay for so long
does (C-1, H-1; "for ever" is a setting that people use).
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.base.config import TOPIC_SETTINGS, TopicConfig, topic_config
from lapse.base.errors import ConfigError
from lapse.base.ids import TopicPartition
from lapse.base.setting import LONG_MAX, Kind
from lapse.broker.http.log_rows import row_of, same_until_ms
from lapse.lifecycle.decide.deadline import next_look_ms
from lapse.lifecycle.decide.explain import explain
from lapse.lifecycle.decide.lateness import deadlines_of, overdue_ms
from lapse.lifecycle.decide.promises import bounds_of
from lapse.lifecycle.decide.select import decide
from lapse.lifecycle.outlook.due import due_since_ms
from lapse.lifecycle.status.reports import read_queue, read_reports
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.testing.clock import ManualClock
from tests.conftest import scaled_count
from tests.simulation.house import House
from tests.support.lifecycle.rounds import NOW, Unsynced, records_in, write

TP = TopicPartition("t", 0)
IN_MS = [s for s in TOPIC_SETTINGS if s.name.endswith(".ms") and s.kind is Kind.LONG]
EDGES = [
    0, 1, 1000, 60_000, 1 << 31, LONG_MAX // 2, LONG_MAX - 2 * NOW, LONG_MAX - NOW - 1,
    LONG_MAX - NOW, LONG_MAX - NOW + 1, LONG_MAX - 1, LONG_MAX,
]  # fmt: skip
TICKS_MS = (1000, 1000, 5000, 90_000, 10_000_000, 1_000_000_000_000)


@st.composite
def configs(draw: st.DrawFn) -> TopicConfig:
    """Any values at all that Kafka would take together."""
    some = draw(st.sets(st.sampled_from([s.name for s in IN_MS]), min_size=1, max_size=6))
    values = {
        "cleanup.policy": draw(st.sampled_from(["compact", "compact,delete"])),
        "message.timestamp.type": draw(st.sampled_from(["CreateTime", "LogAppendTime"])),
        "internal.segment.bytes": "300",
        "min.cleanable.dirty.ratio": draw(st.sampled_from(["0.01", "1"])),
        "lapse.roll.time": draw(st.sampled_from(["clock", "record"])),
    }
    for name in sorted(some):
        values[name] = str(draw(st.one_of(st.sampled_from(EDGES), st.integers(0, LONG_MAX))))
    try:
        return topic_config(values)
    except ConfigError:  # 0 where at least 1 is wanted; min lag above max lag
        values |= dict.fromkeys(some, "1000")
        return topic_config(values)


def told_of(house: House, now_ms: int) -> None:
    """Everything that people, metrics and views are told of the log."""
    [info] = house.owner.logs()
    decision = decide(info, now_ms)
    explain(decision)
    row, until = row_of(decision), same_until_ms(decision)
    assert row.delay_ms(now_ms) >= 0
    assert until >= now_ms
    moments = [next_look_ms(decision), due_since_ms(decision), decision.stamp_ms]
    deadlines = deadlines_of(decision)
    moments += [deadline.ms for deadline in deadlines]
    assert all(
        0 <= late <= LONG_MAX for late in overdue_ms(info.config, deadlines, now_ms).values()
    )
    moments += [promise.ms for promise in bounds_of(info.config)]
    assert all(ms is None or -LONG_MAX <= ms <= LONG_MAX for ms in moments), moments


@settings(max_examples=scaled_count(400), deadline=None)
@given(configs())
def test_no_setting_stops_the_work_or_lets_a_tombstone_go_early(config: TopicConfig) -> None:
    with TemporaryDirectory() as name:
        lives(Path(name), config)


def is_due(config: TopicConfig, now_ms: int) -> bool:
    """Whether a round has to have taken out what is superseded: all of it is as old as `NOW`."""
    age_ms = now_ms - NOW
    is_dirty = config.min_cleanable_dirty_ratio < 1 or age_ms > config.max_compaction_lag_ms
    return is_dirty and age_ms > config.min_compaction_lag_ms


def lives(path: Path, config: TopicConfig) -> None:
    clock = ManualClock(NOW)
    directory = LogDirectory.open(path, LogEnv(Unsynced(), clock))
    directory.create_log(TP, config)
    directory.close()
    house = House(path, {TP: config}, clock)
    write(house.log(TP), [("k", "v"), ("k", None), ("other", "v")], NOW)
    house.log(TP).roll(NOW)
    gone_ms: int | None = None  # since when no file has the value
    for ms in TICKS_MS:
        clock.advance(ms)
        now_ms = clock.now_ms()
        house.tick()
        assert read_queue(path) is None or read_queue(path).held == (), read_queue(path)
        assert not [r.error for r in read_reports(path) if r.error]
        told_of(house, now_ms)
        left = records_in(path / str(TP))
        assert 0 not in left or not is_due(config, now_ms), "the value is superseded for long"
        expires = config.deletes and 0 <= config.retention_ms <= now_ms - NOW
        if 0 not in left and gone_ms is None:
            gone_ms = now_ms
        if gone_ms is not None and 1 not in left and not expires:
            assert now_ms - NOW >= config.delete_retention_ms
        assert 2 in left or expires
    house.restart()
    house.owner.close()
