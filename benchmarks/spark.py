"""Spark's own cost: a warm round of two small logs, and progress of a 1 GB log in one task.

    .venv/bin/python -m benchmarks.spark [--megabytes 1000] [--runs 10]

Writes `benchmarks/results/spark.json`.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.common import save
from lapse.base.clock import SystemClock
from lapse.base.config import topic_config
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.select import RoundOptions, decide
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round.plan import MapMemory, RoundPlan, make_plan
from lapse.lifecycle.round.progress import Progress
from lapse.lifecycle.round.run import receipts_of
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.records.builder import NewRecord, build_batch
from lapse.spark.rounds.engine import SparkEngine, open_engine
from lapse.spark.session.session import SessionOptions

RECORDS_A_BATCH = 5000
SMALL = {"a": 100_000, "b": 100_000}


def write_log(directory: LogDirectory, topic: str, n_bytes: int, segment_bytes: int) -> None:
    """Batches of the same keys with 100-byte values, then a sealed end."""
    settings = {"cleanup.policy": "compact", "internal.segment.bytes": str(segment_bytes)}
    log = directory.create_log(TopicPartition(topic, 0), topic_config(settings))
    now_ms = SystemClock().now_ms()
    count = min(RECORDS_A_BATCH, max(1, n_bytes // 1000))
    batch = build_batch([NewRecord(b"%08d" % i, b"v" * 100, now_ms) for i in range(count)])
    for n in range(max(1, n_bytes // len(batch))):
        log.append_raw((n * count).to_bytes(8, "big") + batch[8:], now_ms=now_ms)
    log.roll(now_ms)


def make(path: Path, topics: dict[str, int], segment_bytes: int) -> DirectoryOwner:
    env = LogEnv(RealFs(), SystemClock())
    directory = LogDirectory.open(path, env)
    for topic, n_bytes in topics.items():
        write_log(directory, topic, n_bytes, segment_bytes)
    directory.close()
    config = topic_config({"cleanup.policy": "compact"})
    configs = {TopicPartition(topic, 0): config for topic in topics}
    return DirectoryOwner(path, configs, env.fs, env.clock)


def plans_of(owner: DirectoryOwner, round_id: str) -> list[RoundPlan]:
    now_ms = SystemClock().now_ms()
    return [
        make_plan(
            decide(info, now_ms, RoundOptions(force=True)),
            round_id,
            Rules.LAPSE,
            MapMemory(1 << 30),
        )
        for info in owner.logs()
    ]


def small_rounds(engine: SparkEngine, owner: DirectoryOwner, runs: int) -> dict[str, object]:
    seconds = []
    for n in range(runs + 2):
        plans = plans_of(owner, f"small-{n}")
        start = time.perf_counter()
        receipts = list(receipts_of(engine.submit(plans)))
        if n >= 2:
            seconds.append(time.perf_counter() - start)
        assert all(r.error is None for r in receipts), receipts
    start = time.perf_counter()
    results = owner.commit(receipts)
    commit_s = time.perf_counter() - start
    assert all(r.error is None for r in results), results
    return {
        "logs": len(SMALL),
        "runs": runs,
        "seconds_best": min(seconds),
        "seconds_median": statistics.median(seconds),
        "seconds_worst": max(seconds),
        "commit_seconds": commit_s,
        "target_seconds": 0.5,
    }


def large_round(engine: SparkEngine, owner: DirectoryOwner) -> dict[str, object]:
    [plan] = plans_of(owner, "large")
    seen: list[tuple[float, int]] = []
    start = time.perf_counter()

    def on_progress(progress: Progress) -> None:
        seen.append((time.perf_counter() - start, progress.bytes_done))

    [receipt] = receipts_of(engine.submit([plan]), on_progress)
    seconds = time.perf_counter() - start
    assert receipt.error is None, receipt.error
    total = seen[-1][1]
    between = sorted({done for _, done in seen if 0 < done < total})
    return {
        "bytes": plan.bytes_to_read,
        "segments": len(plan.segments),
        "seconds": seconds,
        "map_seconds": receipt.seconds.map,
        "rewrite_seconds": receipt.seconds.rewrite,
        "tasks": 1,
        "intermediate_progress_values": len(between),
        "progress": [round(done / total, 3) for done in between],
        "target_values": 5,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000, help="size of the large log")
    parser.add_argument("--runs", type=int, default=10, help="warm rounds of the small logs")
    parser.add_argument("--master", default="local[*]")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="lapse-bench-"))
    try:
        start = time.perf_counter()
        engine = open_engine(SessionOptions(args.master, "lapse benchmark"))
        ready_s = time.perf_counter() - start
        with make(folder / "small", SMALL, 20_000) as owner:
            small = small_rounds(engine, owner, args.runs)
        topics = {"large": args.megabytes * 1_000_000}
        with make(folder / "large", topics, 64 << 20) as owner:
            large = large_round(engine, owner)
        engine.close()
    finally:
        shutil.rmtree(folder)
    save("spark", {"ready_seconds": ready_s, "small": small, "large": large})


if __name__ == "__main__":
    main()
