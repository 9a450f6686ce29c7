"""One huge log of unique keys, cleaned by the split plan: on Spark, or in processes without it.

    python -m benchmarks.split --records 100000000 --memory 768m --workers 2 --folder /big/disk
    python -m benchmarks.split --engine processes …

Says seconds of wall and CPU time for each stage, and the most memory that all processes had at once
(`benchmarks.processes`), whatever they are: this one, Java, Spark's Python daemon and its workers.
Spark's start and its first job are told apart.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import MIB, save
from benchmarks.processes import Memory, Stages
from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.cli.options import byte_size
from lapse.cli.task_memory import memory_of
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.choice import split_for
from lapse.lifecycle.round.plan import PlanSegment, RoundPlan
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.run import receipts_of
from lapse.lifecycle.round.split.drive import run_split
from lapse.lifecycle.round.split.requests import Answer, Stage
from lapse.lifecycle.round.split.rounds import Job
from lapse.lifecycle.round.split.stages import (
    decode_answer,
    decode_request,
    encode,
    run_request,
)
from lapse.lifecycle.warm_up import warm_up
from lapse.records.batch_writer import Bytes, RecordFields, no_headers, write_batch
from lapse.records.builder import BatchSpec
from lapse.spark.session.session import SessionOptions

NOW_MS = 1_700_000_000_000
KEY_BYTES = 16
BATCH_RECORDS = 500


def measure_split(
    folder: Path, records: int, value_bytes: int, memory_bytes: int, workers: int, engine: str
) -> dict[str, Any]:
    """Write the log, clean it, and say what that took."""
    segments = list(write_log(folder, records, value_bytes))
    unsized = _plan(folder, segments)

    def sized() -> RoundPlan:
        """Once all processes run, as `lapse clean` does it."""
        memory = memory_of(memory_bytes, workers, f"local[{workers}]")
        return replace(unsized, split=split_for(records, memory.bytes))

    plan, receipt, stages, memory = _ENGINES[engine](sized, workers)
    if receipt.error is not None:
        raise SystemExit(receipt.error)
    assert plan.split is not None
    return {
        "engine": engine,
        "records": records,
        "log_mib": sum(s.size for s in segments) // MIB,
        "segments": len(segments),
        "split": {name: getattr(plan.split, name) for name in plan.split.__slots__},
        "map_entries": receipt.map_entries,
        "seconds": stages.told,
        "peak_mib": memory.peak_mib,
    }


def in_processes(sized: Callable[[], RoundPlan], workers: int) -> Measured:
    """A pool of workers, forked from a process that has its kernels loaded."""
    warm_up(RealFs())
    stages, numbers = Stages(), iter(range(1 << 30))
    with multiprocessing.get_context("fork").Pool(workers) as pool, Memory() as memory:

        def run_job(job: Job) -> Sequence[Answer[Any]]:
            with stages.stage(job.stage.value):
                asked = [
                    (job.stage, encode(request), f"{job.stage.value}-{next(numbers)}")
                    for request in job.requests
                ]
                told = pool.starmap(_run, asked, chunksize=1)
                return [decode_answer(job.stage, answer) for answer in told]

        with stages.stage("all"):
            plan = sized()
            receipt = run_split(plan, "last", RealFs(), SystemClock(), run_job, 8 * workers)
    return plan, receipt, stages, memory


def on_spark(sized: Callable[[], RoundPlan], workers: int) -> Measured:
    """The engine of `lapse clean`, warm."""
    from lapse.spark.rounds.engine import open_engine  # noqa: PLC0415  (no Spark unless asked for)

    stages = Stages()
    with stages.stage("spark's start and first job"):
        engine = open_engine(SessionOptions(f"local[{workers}]"))
    run_job = engine._run_job

    def timed(job: Any, run: Any, on_wait: Any) -> Any:
        with stages.stage(job.description.partition("split: ")[2].partition(" ")[0]):
            return run_job(job, run, on_wait)

    engine._run_job = timed  # type: ignore[method-assign]
    try:
        plan = sized()
        with Memory() as memory, stages.stage("all"):
            [receipt] = receipts_of(engine.submit([plan]))
    finally:
        engine.close()
    return plan, receipt, stages, memory


def _run(stage: Stage, data: bytes, attempt_id: str) -> bytes:
    request = decode_request(stage, data)
    return encode(run_request(stage, request, attempt_id, RealFs(), SystemClock()))


Measured = tuple[RoundPlan, Receipt, Stages, Memory]
_ENGINES: dict[str, Callable[[Callable[[], RoundPlan], int], Measured]] = {
    "spark": on_spark,
    "processes": in_processes,
}


def write_log(
    folder: Path, records: int, value_bytes: int, segment_bytes: int = 1 << 30
) -> Iterator[PlanSegment]:
    """Segments of records with a key each that no other has, in an order like any other's."""
    folder.mkdir(parents=True)
    value = bytes(range(256)) * (value_bytes // 256 + 1)
    offset = 0
    while offset < records:
        base, size = offset, 0
        path = folder / f"{base:020d}.log"
        with path.open("wb") as file:
            while offset < records and size < segment_bytes - MIB:
                batch = _batch(offset, min(BATCH_RECORDS, records - offset), value[:value_bytes])
                size += file.write(batch)
                offset += BATCH_RECORDS
        yield PlanSegment(base, size, path.stat().st_mtime_ns, 8, 12, NOW_MS, NOW_MS, False)


def _batch(offset: int, count: int, value: bytes) -> bytearray:
    keys = np.zeros((count, 2), "<u8")
    keys[:, 0] = np.arange(offset, offset + count)
    places = np.arange(count, dtype=np.int64) * KEY_BYTES
    fields = RecordFields(
        Bytes(np.frombuffer(keys.tobytes(), np.uint8), places, np.full(count, KEY_BYTES, np.int64)),
        Bytes.same(value, count), no_headers(count), np.full(count, NOW_MS, np.int64),
        np.zeros(count, np.bool_),
    )  # fmt: skip
    batch = write_batch(fields, BatchSpec())
    batch[:8] = offset.to_bytes(8, "big")  # which no checksum covers
    return batch


def _plan(folder: Path, segments: Sequence[PlanSegment]) -> RoundPlan:
    end = 1 << 62
    return RoundPlan(
        round_id="measured", partition=TopicPartition("huge", 0), dir=str(folder), generation=0,
        now_ms=NOW_MS, rules=Rules.LAPSE, dirty=0, upper=end, segments=tuple(segments),
        guarded_last_offsets=(), end_guard=end, horizon_ms=NOW_MS + 1, passed_until_ms=NOW_MS,
        segment_bytes=1 << 30, segment_index_bytes=10 << 20, index_interval_bytes=4096,
        map_entries_max=0, due=("measured",),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="where the log is written")
    parser.add_argument("--records", type=int, default=100_000_000)
    parser.add_argument("--value-bytes", type=int, default=8)
    parser.add_argument("--memory", default="768m", help="of all processes together")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engine", choices=_ENGINES, default="spark")
    args = parser.parse_args()
    folder = args.folder / f"split-{os.getpid()}" / "huge-0"
    memory_bytes = byte_size("--memory", args.memory)
    try:
        found = measure_split(
            folder, args.records, args.value_bytes, memory_bytes, args.workers, args.engine
        )
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)
    save(f"split-{args.engine}", {**found, "memory": args.memory, "workers": args.workers})


if __name__ == "__main__":
    main()
