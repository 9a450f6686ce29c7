"""Facts of made-up logs, for decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lapse.base.config import LONG_MAX, TopicConfig, topic_config
from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.horizon import Stamp
from lapse.lifecycle.decide.select import Decision, LogInfo, decide
from lapse.log.facts import LogFacts, SegmentFacts
from lapse.log.summary import Summary

NOW = 1_700_000_000_000
DAY = 86_400_000


PROMISED = {
    "max_compaction_lag_ms": 5000, "segment_ms": 100_000, "delete_retention_ms": 300,
    "file_delete_delay_ms": 20, "lapse_tombstone_removal_max_lag_ms": 70,
    "lapse_physical_delete_max_lag_ms": 90_000,
}  # fmt: skip


def compacted(**settings: object) -> TopicConfig:
    """A compacted topic's settings, `_` for `.` in names."""
    names = {name.replace("_", "."): str(value) for name, value in settings.items()}
    return topic_config({"cleanup.policy": "compact", **names})


def segment(base: int, size: int = 100, **facts: Any) -> SegmentFacts:
    """A sealed segment written to a day ago; names of Summary fields go into its summary."""
    inner = {name: facts.pop(name) for name in list(facts) if name in Summary.__slots__}
    summary = None
    if facts.pop("with_summary", True):
        summary = replace(
            Summary(base, size, base + 10, NOW - DAY, NOW - DAY),
            **{"first_batch_max_timestamp": NOW - DAY, **inner},
        )
    made = SegmentFacts(base, size, NOW - DAY, 8, 12, NOW - DAY, summary, False)
    return replace(made, **facts)


def stamped(*horizons_ms: int) -> tuple[Stamp, ...]:
    """Rounds of ours that set these horizons, in any batch; all committed long ago."""
    return tuple(Stamp(ms - 1, ms, ms - 1, 0, LONG_MAX) for ms in horizons_ms)


def ours(facts: LogFacts) -> tuple[Stamp, ...]:
    """Rounds of ours that set the horizons which the summaries of a log tell."""
    told = {s.summary.horizon_earliest_ms for s in facts.segments if s.summary is not None}
    return stamped(*sorted(told - {-1}))


def log(segments: Sequence[SegmentFacts], **facts: Any) -> LogFacts:
    """A log whose last segment is the active one; its ends are ten past that."""
    last = segments[-1].base_offset + 10
    made = LogFacts(
        partition=TopicPartition("t", 0),
        dir="/logs/t-0",
        generation=1,
        log_start_offset=segments[0].base_offset,
        log_end_offset=last,
        high_watermark=last,
        last_stable_offset=last,
        cleaner_checkpoint=None,
        segments=(*segments[:-1], replace(segments[-1], active=True)),
        producers=(),
    )
    return replace(made, **facts)


def decided(
    facts: LogFacts, now_ms: int = NOW, stamps: tuple[Stamp, ...] | None = None, **more: object
) -> Decision:
    """What is decided of a log with all promises; its stamps are ours unless given."""
    known = ours(facts) if stamps is None else stamps
    return decide(LogInfo(facts, compacted(**{**PROMISED, **more}), known), now_ms)
