"""What Lapse promises about a topic's records, as formulas: for docs and `lapse explain`.

Times count by the append clock. Slack is the time that steps around a decision may take: rolling
the active segment, noticing that a round is due, starting an engine that has gone to sleep. A round
is due half-way into each lag of Lapse's own settings; the other half is for the round itself and
the rounds before it. A promise without a bound names the setting that is missing.
"""

from __future__ import annotations

from typing import NamedTuple

from lapse.base.config import LONG_MAX, TopicConfig
from lapse.base.times import after_ms, exact_duration
from lapse.lifecycle.decide.deadline import ROLL_SLACK_MS

# Names of promises that other modules look up.
SUPERSEDED_IS_GONE = "a superseded value is gone"
TOMBSTONE_IS_GONE = "a tombstone is gone"
MARKER_IS_GONE = "a transaction's marker is gone"
DELETED_IS_GONE = "deleted records are in no file"
EXPIRED_IS_GONE = "an expired segment is gone"

RETENTION_SLACK_MS = 300_000  # log.retention.check.interval.ms: how often the owner looks
ROUND_SLACK_MS = 15_000  # log.cleaner.backoff.ms: the service's longest rest between two looks
START_SLACK_MS = 30_000  # a cold start of Spark: some seconds, and more on a machine that is busy
SLACK_MS = ROLL_SLACK_MS + ROUND_SLACK_MS + START_SLACK_MS


class Promise(NamedTuple):
    """One bound.

    Attributes:
        name: the event that is promised.
        formula: the bound, in words with the topic's numbers.
        ms: the sum of the formula; None where there is no bound.
    """

    name: str
    formula: str
    ms: int | None


_IN_OLD_FORMATS = Promise(
    "a tombstone in format v0 or v1 is gone",
    "no bound while records are written in a format before 0.11 (message.format.version, "
    "inter.broker.protocol.version): there is no room for a delete horizon",
    None,
)


def bounds_of(topic: TopicConfig) -> tuple[Promise, ...]:
    """The promises that hold for a topic."""
    deleted_ms = max(
        topic.physical_delete_max_lag_ms, after_ms(SLACK_MS, topic.file_delete_delay_ms)
    )
    lags = {"lapse.physical.delete.max.lag.ms, or slack and file.delete.delay.ms": deleted_ms}
    deleted = _at_most(DELETED_IS_GONE, "delete-records", lags)
    of_rounds = _of_compaction(topic) if topic.compacts else ()
    return (*of_rounds, deleted, *_of_retention(topic))


def _of_retention(topic: TopicConfig) -> list[Promise]:
    """Retention by age: it counts from a segment's last append or its earlier largest timestamp."""
    if not topic.deletes or topic.retention_ms < 0:
        return []
    lags = {
        "retention.ms": topic.retention_ms,
        "slack": RETENTION_SLACK_MS,
        "file.delete.delay.ms": topic.file_delete_delay_ms,
    }
    return [_at_most(EXPIRED_IS_GONE, "its last record", lags)]


def _of_compaction(topic: TopicConfig) -> list[Promise]:
    slack = {"slack": SLACK_MS, "file.delete.delay.ms": topic.file_delete_delay_ms}
    retention = {"delete.retention.ms": topic.delete_retention_ms}
    lag = {"lapse.tombstone.removal.max.lag.ms": topic.removal_lag_ms}
    return [
        Promise(
            "a superseded value stays",
            "at least append + min.compaction.lag.ms "
            f"({exact_duration(topic.min_compaction_lag_ms)})",
            topic.min_compaction_lag_ms,
        ),
        _superseded(topic, slack),
        Promise(
            "a tombstone stays",
            "at least the last replica's loss of what it deletes + delete.retention.ms "
            f"({exact_duration(topic.delete_retention_ms)})",
            topic.delete_retention_ms,
        ),
        _at_most(
            TOMBSTONE_IS_GONE,
            "the last replica's loss of what it deletes",
            {**retention, **lag, **slack},
        ),
        *([_IN_OLD_FORMATS] if topic.keeps_old_formats else []),
        _at_most(
            "a tombstone that another cleaner or a client has stamped is gone",
            "the first round of ours that covers it",
            {**retention, **lag, **slack},
        ),
        _at_most(
            MARKER_IS_GONE,
            "the loss of its last batch",
            {**lag, **retention, "slack of two rounds": 2 * SLACK_MS, **_without_slack(slack)},
        ),
    ]


def _superseded(topic: TopicConfig, slack: dict[str, int]) -> Promise:
    """Min lag counts from the segment's last append, max lag from its first."""
    name, since = SUPERSEDED_IS_GONE, "append of the newer value"
    if topic.max_compaction_lag_ms == LONG_MAX:
        return Promise(name, "no bound: max.compaction.lag.ms is not set", None)
    if topic.roll_time == "record":
        return Promise(name, "no bound: lapse.roll.time=record rolls no idle segment", None)
    rolled_ms = min(topic.segment_ms, topic.max_compaction_lag_ms)
    if after_ms(rolled_ms, topic.min_compaction_lag_ms) <= topic.max_compaction_lag_ms:
        lags = {"max.compaction.lag.ms": topic.max_compaction_lag_ms}
    else:
        lags = {
            "the lesser of segment.ms and max.compaction.lag.ms": rolled_ms,
            "min.compaction.lag.ms": topic.min_compaction_lag_ms,
        }
    return _at_most(name, since, {**lags, **slack})


def _at_most(name: str, since: str, parts: dict[str, int]) -> Promise:
    terms = [since, *(f"{part} ({exact_duration(ms)})" for part, ms in parts.items())]
    return Promise(name, "by " + " + ".join(terms), after_ms(0, *parts.values()))


def _without_slack(parts: dict[str, int]) -> dict[str, int]:
    return {name: ms for name, ms in parts.items() if name != "slack"}
