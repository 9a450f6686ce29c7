"""Choosing among many logs: CPU time of deciding each and ordering those that are due.

    python -m benchmarks.selecting [--logs 100000] [--runs 5]

Each log has five segments with summaries, and nine of ten have nothing due, as in a house where
rounds are on time; every third one has tombstones that wait for their horizon. The facts are in
memory: what their owner does to tell them is not counted. The target is one second for a
hundred thousand.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from benchmarks.common import save
from lapse.base.config import TopicConfig, topic_config
from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.deadline import next_look_ms
from lapse.lifecycle.decide.select import LogInfo, decide, order
from lapse.log.facts import LogFacts, SegmentFacts
from lapse.log.summary import Summary

NOW = 1_700_000_000_000
DAY = 86_400_000
SEGMENTS = 5
SIZE = 1 << 20


def measure_selecting(count: int = 100_000, runs: int = 5) -> dict[str, Any]:
    """Seconds of CPU for all logs, best of some runs; `looking` is for the next looks of all."""
    topic = topic_config({"cleanup.policy": "compact", "max.compaction.lag.ms": str(7 * DAY)})
    infos = [log_of(number, topic) for number in range(count)]
    deciding = looking = float("inf")
    for _ in range(runs):
        started = time.thread_time()
        decisions = [decide(info, NOW) for info in infos]
        due = order(decisions)
        deciding = min(deciding, time.thread_time() - started)
        started = time.thread_time()
        for decision in decisions:
            next_look_ms(decision)
        looking = min(looking, time.thread_time() - started)
    return {
        "logs": count,
        "segments_a_log": SEGMENTS,
        "due": len(due),
        "cpu_seconds": round(deciding, 3),
        "microseconds_a_log": round(deciding / count * 1e6, 2),
        "next_look_cpu_seconds": round(looking, 3),
    }


def log_of(number: int, topic: TopicConfig) -> LogInfo:
    """A log of which the last sealed segment is dirty; every tenth has two such."""
    horizon_ms = NOW + DAY if number % 3 == 0 else -1
    segments = tuple(
        segment_of(n, horizon_ms if n == 1 else -1, active=n == SEGMENTS - 1)
        for n in range(SEGMENTS)
    )
    checkpoint = 10 * (SEGMENTS - (4 if number % 10 == 0 else 2))
    end = 10 * SEGMENTS
    facts = LogFacts(
        TopicPartition("topic", number), f"/logs/topic-{number}", 1, 0, end, end, end,
        checkpoint, segments, (),
    )  # fmt: skip
    return LogInfo(facts, topic)


def segment_of(number: int, horizon_ms: int, *, active: bool) -> SegmentFacts:
    written_ms = NOW - (SEGMENTS - number) * DAY
    summary = Summary(
        10 * number, SIZE, 10 * number + 10, written_ms, written_ms + DAY,
        first_batch_max_timestamp=written_ms, horizon_earliest_ms=horizon_ms,
        horizon_bytes=1000 if horizon_ms >= 0 else 0,
    )  # fmt: skip
    mtime_ms = written_ms + DAY
    return SegmentFacts(10 * number, SIZE, mtime_ms, 8, 12, mtime_ms, summary, active)


def main() -> None:
    parser = argparse.ArgumentParser(description="Choosing among many logs.")
    parser.add_argument("--logs", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    save("selecting", measure_selecting(options.logs, options.runs))


if __name__ == "__main__":
    main()
