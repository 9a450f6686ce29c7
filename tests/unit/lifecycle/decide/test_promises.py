"""The bounds as formulas."""

from __future__ import annotations

import pytest

from lapse.base.config import TopicConfig
from lapse.lifecycle.decide.promises import RETENTION_SLACK_MS, SLACK_MS, Promise, bounds_of
from tests.support.lifecycle.decide.logs import compacted

SETTINGS = {
    "max_compaction_lag_ms": 5000, "segment_ms": 100_000, "delete_retention_ms": 300,
    "file_delete_delay_ms": 20, "lapse_tombstone_removal_max_lag_ms": 70,
    "lapse_physical_delete_max_lag_ms": 90_000,
}  # fmt: skip


def promised(topic: TopicConfig) -> dict[str, Promise]:
    return {promise.name: promise for promise in bounds_of(topic)}


def test_sums_of_a_compacted_topic() -> None:
    stamped = 300 + 70 + SLACK_MS + 20
    found = {name: p.ms for name, p in promised(compacted(**SETTINGS)).items()}
    assert found == {
        "a superseded value stays": 0,
        "a superseded value is gone": 5000 + SLACK_MS + 20,
        "a tombstone stays": 300,
        "a tombstone is gone": stamped,
        "a tombstone that another cleaner or a client has stamped is gone": stamped,
        "a transaction's marker is gone": 70 + 300 + 2 * SLACK_MS + 20,
        "deleted records are in no file": 90_000,
    }


def test_the_formula_names_each_setting_with_its_value() -> None:
    assert promised(compacted(**SETTINGS))["a superseded value is gone"].formula == (
        "by append of the newer value + max.compaction.lag.ms (5 s) + slack (46 s) + "
        "file.delete.delay.ms (20 ms)"
    )


@pytest.mark.parametrize(
    ("settings", "lag"),
    [
        ({"min_compaction_lag_ms": 1000, "segment_ms": 4000}, 5000),
        ({"min_compaction_lag_ms": 1001, "segment_ms": 4000}, 5001),
        ({"min_compaction_lag_ms": 5000}, 10_000),  # min lag counts from the last append (S-9)
    ],
)
def test_s9_a_min_lag_may_take_longer(settings: dict[str, int], lag: int) -> None:
    found = promised(compacted(**{**SETTINGS, **settings}))
    assert found["a superseded value is gone"].ms == lag + SLACK_MS + 20
    assert found["a superseded value stays"].ms == settings["min_compaction_lag_ms"]


@pytest.mark.parametrize(
    ("settings", "lacks"),
    [
        ({"max_compaction_lag_ms": (1 << 63) - 1}, "max.compaction.lag.ms is not set"),
        ({"lapse_roll_time": "record"}, "lapse.roll.time=record rolls no idle segment"),
    ],
)
def test_where_there_is_no_bound_it_says_which_setting_lacks(
    settings: dict[str, object], lacks: str
) -> None:
    found = promised(compacted(**{**SETTINGS, **settings}))["a superseded value is gone"]
    assert (found.ms, found.formula) == (None, f"no bound: {lacks}")


def test_without_compact_deleted_records_and_expired_ones_are_promised() -> None:
    found = promised(compacted(cleanup_policy="delete", retention_ms=500, file_delete_delay_ms=20))
    assert list(found) == ["deleted records are in no file", "an expired segment is gone"]
    assert found["an expired segment is gone"].ms == 500 + RETENTION_SLACK_MS + 20
    for_ever = promised(compacted(cleanup_policy="delete", retention_ms=-1))
    assert list(for_ever) == ["deleted records are in no file"]


def test_no_promise_is_shorter_than_what_it_takes() -> None:
    short = compacted(lapse_physical_delete_max_lag_ms=0, file_delete_delay_ms=60_000)
    assert promised(short)["deleted records are in no file"].ms == 60_000 + SLACK_MS


def test_an_old_format_bounds_no_tombstone() -> None:
    """KIP-32: it has no room for a horizon, and it is kept."""
    name = "a tombstone in format v0 or v1 is gone"
    assert name not in promised(compacted(**SETTINGS))
    found = promised(compacted(**SETTINGS, message_format_version="0.10.2"))
    assert (found[name].ms, "message.format.version" in found[name].formula) == (None, True)


@pytest.mark.parametrize(("retention_ms", "promised"), [(-1, False), (0, True)])
def test_a_retention_of_nothing_is_a_promise_too(retention_ms: int, promised: bool) -> None:
    topic = compacted(cleanup_policy="delete", retention_ms=retention_ms)
    names = [p.name for p in bounds_of(topic)]
    assert (len(names) == 2) == promised
