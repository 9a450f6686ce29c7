"""Settings as times."""

from __future__ import annotations

from lapse.testing.history.promise import Promise

SETTINGS = {
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": "100",
    "max.compaction.lag.ms": "5000",
    "segment.ms": "1000",
    "delete.retention.ms": "300",
    "file.delete.delay.ms": "70",
    "lapse.physical.delete.max.lag.ms": "4000",
}


def test_of_a_compacted_topic() -> None:
    assert Promise.of(SETTINGS, slack_ms=10) == Promise(
        compacts=True,
        min_lag_ms=100,
        delete_retention_ms=300,
        segment_ms=1000,
        superseded_gone_ms=5010,
        tombstone_gone_ms=5000 + 300 + 300 + 20,
        unlinked_ms=80,
        deleted_gone_ms=4010,
    )


def test_min_lag_may_reach_beyond_max_lag() -> None:
    settings = {**SETTINGS, "min.compaction.lag.ms": "4500"}
    assert Promise.of(settings, slack_ms=0).superseded_gone_ms == 5500


def test_of_a_topic_that_expires() -> None:
    settings = {"cleanup.policy": "delete", "retention.ms": "2000", "segment.ms": "500"}
    promise = Promise.of(settings, slack_ms=5)
    assert not promise.compacts
    assert (promise.retention_ms, promise.expired_gone_ms) == (2000, 2505)
    assert promise.superseded_gone_ms is None
    assert not promise.by_size
    assert Promise.of({**settings, "retention.bytes": "9"}, slack_ms=5).by_size
    forever = Promise.of({**settings, "retention.ms": "-1"}, slack_ms=5)
    assert (forever.retention_ms, forever.expired_gone_ms) == (None, None)


def test_for_ever_is_no_promise() -> None:
    """Kafka's default of max.compaction.lag.ms."""
    promise = Promise.of({"cleanup.policy": "compact"}, slack_ms=5)
    assert promise.superseded_gone_ms is None
    assert promise.tombstone_gone_ms is None


def test_without_slack_nothing_is_gone_by_any_time() -> None:
    promise = Promise.of(SETTINGS, slack_ms=None)
    assert (promise.min_lag_ms, promise.delete_retention_ms) == (100, 300)
    assert promise.superseded_gone_ms is promise.tombstone_gone_ms is None
    assert promise.unlinked_ms is promise.deleted_gone_ms is None
