"""All logs of a broker, counted; what is most urgent first, and only so much of it."""

from __future__ import annotations

import pytest

from lapse.base.config import topic_config
from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.lateness import RETENTION, SUPERSEDED, TOMBSTONE, Deadline
from lapse.lifecycle.decide.promises import SLACK_MS
from lapse.lifecycle.outlook import overview
from lapse.lifecycle.outlook.overview import (
    Ahead,
    LogSeen,
    Trouble,
    overview_of,
    together,
)

NOW = 1_700_000_000_000
COMPACTED = topic_config({"cleanup.policy": "compact", "max.compaction.lag.ms": "5000"})
UNBOUND = topic_config({"cleanup.policy": "compact"})
KEPT = topic_config({"cleanup.policy": "delete"})
LAG_MS = 5000 + SLACK_MS + COMPACTED.file_delete_delay_ms


def seen(name: str, *deadlines: tuple[int, str], **more: object) -> LogSeen:
    where = TopicPartition.parse(name)
    assert where is not None
    found = tuple(Deadline(*one) for one in deadlines)
    return LogSeen(where, COMPACTED, 100, found)._replace(**more)


def test_counts_are_of_all_logs() -> None:
    logs = [
        seen("a-0", (NOW + 5, SUPERSEDED), is_due=True, dirty_bytes=7, dirty_ratio=0.25),
        seen("a-1", (NOW - 5, TOMBSTONE), (NOW + 9, SUPERSEDED), dirty_bytes=1, dirty_ratio=0.5),
        seen("b-0", config=KEPT, size_bytes=50, is_held=True),
    ]
    found = overview_of(3, NOW, logs, [Trouble(True, "disk_full", "full")])
    assert (found.broker, found.logs, found.size_bytes) == (3, 3, 250)
    assert (found.topics_all, found.due, found.late) == (2, 1, 1)
    assert found.ahead == (Ahead("a-1", TOMBSTONE, NOW - 5), Ahead("a-0", SUPERSEDED, NOW + 5))
    a, b = found.topics
    assert (a.topic, a.policy, a.logs, a.size_bytes, a.dirty_bytes) == ("a", "compact", 2, 200, 8)
    assert (a.dirty_ratio, a.due, a.held, a.first) == (0.5, 1, 0, Ahead("a-1", TOMBSTONE, NOW - 5))
    assert (b.topic, b.policy, b.held, b.first) == ("b", "delete", 1, None)


def test_the_order_of_logs_is_of_no_account() -> None:
    """At one moment the first log by name is the first."""
    logs = [
        seen("a-1", (NOW + 5, SUPERSEDED), dirty_ratio=0.5),
        seen("a-0", (NOW + 5, TOMBSTONE), dirty_ratio=0.25),
    ]
    found = overview_of(1, NOW, logs)
    assert found == overview_of(1, NOW, reversed(logs))
    [topic] = found.topics
    assert (topic.dirty_ratio, topic.first) == (0.5, Ahead("a-0", TOMBSTONE, NOW + 5))


def test_late_is_what_is_over_not_what_is_due_now() -> None:
    logs = [seen(f"a-{n}", (NOW + n - 1, SUPERSEDED)) for n in range(3)]
    assert overview_of(1, NOW, logs).late == 1


def test_the_longest_wait_is_held_against_the_bound() -> None:
    """Other deadlines say nothing of it; without max.compaction.lag.ms there is no bound."""
    logs = [
        seen("a-0", (NOW + 400, SUPERSEDED)),
        seen("a-1", (NOW + 300, SUPERSEDED), (NOW - 10_000, TOMBSTONE)),
        seen("b-0", (NOW + 1, TOMBSTONE), config=UNBOUND),
        seen("c-0"),
    ]
    a, b, c = sorted(overview_of(1, NOW, logs).topics, key=lambda one: one.topic)
    assert (a.oldest_ms, a.lag_ms_max) == (NOW + 300 - LAG_MS, LAG_MS)
    assert (b.oldest_ms, b.lag_ms_max) == (None, None)
    assert (c.oldest_ms, c.lag_ms_max) == (None, LAG_MS)


def test_of_many_the_most_urgent_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the earliest deadline, then by how dirty they are."""
    monkeypatch.setattr(overview, "TOPICS_MAX", 3)
    monkeypatch.setattr(overview, "AHEAD_MAX", 1)
    logs = [
        seen("clean-0"),
        seen("later-0", (NOW + 2, RETENTION)),
        seen("dirty-0", dirty_ratio=0.9),
        seen("sooner-0", (NOW + 1, RETENTION)),
    ]
    found = overview_of(1, NOW, logs)
    assert [one.topic for one in found.topics] == ["sooner", "later", "dirty"]
    assert (found.topics_all, [one.log for one in found.ahead]) == (4, ["sooner-0"])


def test_topics_are_counted_as_the_cluster_has_them() -> None:
    """Brokers have different topics, and each tells only the most urgent."""
    brokers = [
        overview_of(number, NOW, [seen(f"{number}-{n}-0") for n in range(4)], topics_all=12)
        for number in range(3)
    ]
    assert [one.topics_all for one in brokers] == [12, 12, 12]
    assert together(brokers).topics_all == 12
    assert together(brokers[:1]).topics_all == 12, "one is away"
    assert overview_of(1, NOW, [seen("a-0"), seen("b-0")], topics_all=1).topics_all == 2


def test_of_several_brokers_a_topic_is_there_once() -> None:
    """A replica's log counts; its deadline is the same one, or an earlier one."""
    one = overview_of(1, NOW, [seen("a-0", (NOW + 400, SUPERSEDED), dirty_ratio=0.1, is_due=True)])
    other = overview_of(
        2, NOW + 1, [seen("a-0", (NOW + 401, SUPERSEDED)), seen("b-0", (NOW - 1, TOMBSTONE))],
        [Trouble(False, "x", "y")],
    )  # fmt: skip
    both = together([one, other])
    assert (both.now_ms, both.logs, both.size_bytes, both.due, both.late) == (NOW + 1, 3, 300, 1, 1)
    assert [(t.topic, t.logs, t.dirty_ratio) for t in both.topics] == [("b", 1, 0.0), ("a", 2, 0.1)]
    assert both.ahead == (Ahead("b-0", TOMBSTONE, NOW - 1), Ahead("a-0", SUPERSEDED, NOW + 400))
    assert both.troubles == (Trouble(False, "x", "y"),)
    assert both.topics[1].oldest_ms == NOW + 400 - LAG_MS
    assert together([]).topics == ()
