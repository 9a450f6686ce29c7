"""Rounds on Spark: the same bytes as in this process, one job for all, and dying workers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.accumulators import _accumulatorRegistry

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.progress import Progress, work_bytes
from lapse.lifecycle.round.receipt import Receipt, attempt_dir
from lapse.lifecycle.round.run import receipts_of
from lapse.log.directory import LogDirectory
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.spark.rounds.engine import Job, SparkEngine
from lapse.spark.rounds.task import encode_bin, run_bins
from lapse.testing.clock import ManualClock
from tests.spark.processes import needs_proc, worker_pids
from tests.support.lifecycle.rounds import (
    NOW,
    Pair,
    compacted,
    env_of,
    make_logs,
    overwritten,
    plan_of,
    records_in,
)


def quiet(_: Progress) -> None:
    """Nobody watches."""


@contextmanager
def owning(
    path: Path, topics: dict[str, Sequence[Pair]], **settings: object
) -> Iterator[DirectoryOwner]:
    clock = ManualClock(NOW)
    configs = make_logs(path, topics, compacted(**settings), clock)
    with DirectoryOwner(path, configs, RealFs(), clock) as owner:
        yield owner


def plans_of(owner: DirectoryOwner, prefix: str) -> list[RoundPlan]:
    """Small plans, whatever they take."""
    plans = [plan_of(info, f"{prefix}{n}", NOW) for n, info in enumerate(owner.logs())]
    return [replace(plan, split=None) for plan in plans]


def files_of(plan: RoundPlan, receipt: Receipt) -> dict[str, bytes]:
    """What an attempt left for the commit."""
    folder = attempt_dir(Path(plan.dir), plan.round_id, receipt.attempt_id)
    names = {f"{g.base_offset:020d}-{f.kind}" for g in receipt.groups for f in g.files}
    return {name: (folder / name).read_bytes() for name in names}


def test_many_logs_come_out_as_inline_byte_for_byte(tmp_path: Path, engine: SparkEngine) -> None:
    """Values superseded, tombstones stamped, in logs of several segments; all in one job."""
    topics = {
        f"t{n}": [*overwritten(keys=5 + n, times=8), *((f"k{i}", None) for i in range(n % 4))]
        for n in range(12)
    }
    with owning(tmp_path / "data", topics) as owner:
        plans = plans_of(owner, "spark-")
        run = engine.submit(plans)
        receipts = {r.name: r for r in receipts_of(run)}
        again = [replace(plan, round_id=plan.round_id.replace("spark", "here")) for plan in plans]
        inline = {
            r.name: r for r in receipts_of(InlineEngine(RealFs(), SystemClock()).submit(again))
        }
        for there, here in zip(plans, again, strict=True):
            receipt, expected = receipts[there.name], inline[here.name]
            assert receipt.error is None
            assert receipt.groups == expected.groups != ()
            assert files_of(there, receipt) == files_of(here, expected)
            assert receipt.pid != os.getpid() == expected.pid
        assert len(run.job_ids) == 1
        results = owner.commit([receipts[plan.name] for plan in plans])
        assert [r.error for r in results] == [None] * 12
    for topic, pairs in topics.items():
        assert dict(records_in(tmp_path / "data" / f"{topic}-0").values()) == dict(pairs)


def test_fifty_small_logs_share_a_job_and_few_tasks(
    tmp_path: Path, engine: SparkEngine, session: object
) -> None:
    topics = {f"t{n:02d}": overwritten(keys=3, times=20) for n in range(50)}
    with owning(tmp_path / "data", topics) as owner:
        plans = plans_of(owner, "r")
        run = engine.submit(plans)
        receipts = list(receipts_of(run))
        assert sorted(r.name for r in receipts) == sorted(plan.name for plan in plans)
        assert all(r.error is None for r in receipts)
        (job_id,) = run.job_ids
        status = engine._spark.statusTracker()
        (stage,) = status.getJobInfo(job_id).stageIds
        assert status.getStageInfo(stage).numTasks < 10
        assert len({r.attempt_id for r in receipts}) == 50
        assert all(r.error is None for r in owner.commit(receipts))


def test_receipts_come_as_tasks_end(tmp_path: Path, engine: SparkEngine) -> None:
    """So that the owner commits some while others are made."""
    topics = {f"t{n:02d}": overwritten(keys=3, times=20) for n in range(40)}  # five tasks of eight
    with owning(tmp_path / "data", topics) as owner:
        plans = plans_of(owner, "r")
        slow = [replace(p, io_bytes_per_second=2 * p.bytes_to_read / 0.1) for p in plans]
        known = len(_accumulatorRegistry)
        begun, job_ids = [], []
        run = engine.submit(slow)
        for receipt in receipts_of(run):
            assert receipt.error is None
            begun.append(sum(Path(p.dir, ".lapse", p.round_id).exists() for p in plans))
            job_ids.append(run.job_ids)
        assert len(begun) == len(plans)
        assert begun[0] < len(plans) - 4
        assert len(set(job_ids)) == len(job_ids[0]) == 1
        assert len(_accumulatorRegistry) == known


def test_two_attempts_at_once_do_not_meet(tmp_path: Path, engine: SparkEngine) -> None:
    """The same plan twice in one job: own folders, same bytes."""
    with owning(tmp_path / "data", {"a": overwritten(times=30)}) as owner:
        [plan] = plans_of(owner, "r")
        bins = [[plan], [plan]]
        job = Job("twice", run_bins, [encode(b) for b in bins])
        collected = engine._driver.submit(engine._collect, "twice", job).result()
        first, second = decode(collected)
        assert first.attempt_id != second.attempt_id
        assert first.groups == second.groups != ()
        assert files_of(plan, first) == files_of(plan, second)
        [result] = owner.commit([second])
        assert result.error is None


def encode(plans: Sequence[RoundPlan]) -> bytes:
    return encode_bin(plans)


def decode(collected: Sequence[bytes]) -> list[Receipt]:
    import msgspec  # noqa: PLC0415

    return [msgspec.json.decode(data, type=Receipt) for data in collected]


def test_one_bad_log_fails_alone(tmp_path: Path, engine: SparkEngine) -> None:
    with owning(tmp_path / "data", {"a": overwritten(), "b": overwritten()}) as owner:
        plans = plans_of(owner, "r")
        segment = tmp_path / "data" / "a-0" / f"{0:020d}.log"
        segment.write_bytes(segment.read_bytes()[:-1])
        bad, good = receipts_of(engine.submit(plans))
        assert bad.error is not None
        assert "shorter than planned" in bad.error
        assert good.error is None


# --- one large log -------------------------------------------------------------------------------

BIG = TopicPartition("big", 0)


def make_big_log(path: Path, n_bytes: int, segment_bytes: int) -> None:
    """One log of so many bytes, each batch the same 5000 keys."""
    config = compacted(segment_bytes=segment_bytes, internal_segment_bytes=segment_bytes)
    records = [NewRecord(b"%08d" % i, b"v" * 85, NOW) for i in range(5000)]
    batch = build_batch(records, BatchSpec(codec=Codec.NONE))
    directory = LogDirectory.open(path, env_of(ManualClock(NOW)))
    log = directory.create_log(BIG, config)
    while log.log_end_offset * (len(batch) / 5000) < n_bytes:
        at = log.log_end_offset.to_bytes(8, "big")  # the CRC does not cover it
        log.append_raw(at + batch[8:], now_ms=NOW)
    log.roll(NOW)
    directory.close()


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DirectoryOwner]:
    path = tmp_path_factory.mktemp("big") / "data"
    make_big_log(path, 400 << 20, 16 << 20)
    with DirectoryOwner(path, {BIG: compacted()}, RealFs(), ManualClock(NOW)) as owner:
        yield owner


def test_progress_of_one_task_moves_on_the_way(big: DirectoryOwner, engine: SparkEngine) -> None:
    [plan] = plans_of(big, "progress")
    seen: list[Progress] = []
    [receipt] = receipts_of(engine.submit([plan]), seen.append)
    assert receipt.error is None
    done = [p.bytes_done for p in seen]
    assert done == sorted(done)
    assert {p.bytes_total for p in seen} == {work_bytes(plan)}
    assert done[-1] == work_bytes(plan)
    assert len({n for n in done if 0 < n < work_bytes(plan)}) >= 3


class Killing:
    """Kills the Python workers of this engine's daemon, some times, once they are at work."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.killed: list[int] = []

    def __call__(self, progress: Progress) -> None:
        pids = worker_pids()
        if len(self.killed) < self.times and 0 < progress.bytes_done < progress.bytes_total:
            for pid in pids - set(self.killed):
                os.kill(pid, signal.SIGKILL)
                self.killed.append(pid)


@needs_proc
def test_a_killed_worker_costs_an_attempt_and_nothing_else(
    big: DirectoryOwner, engine: SparkEngine
) -> None:
    """`kill -9` in the middle: Spark tries again, the log is as it was until the commit."""
    [plan] = plans_of(big, "killed")
    before = {p.name: p.stat().st_mtime_ns for p in Path(plan.dir).glob("*.log")}
    kill = Killing(1)
    [receipt] = receipts_of(engine.submit([plan]), kill)
    assert kill.killed
    assert receipt.error is None
    assert receipt.pid not in kill.killed
    assert "-a0-" not in receipt.attempt_id
    assert {p.name: p.stat().st_mtime_ns for p in Path(plan.dir).glob("*.log")} == before
    folders = list(attempt_dir(Path(plan.dir), plan.round_id, "").iterdir())
    assert len(folders) == 2
    [result] = big.commit([receipt])
    assert result.error is None
    assert len(records_in(Path(plan.dir))) == 5000
    assert not attempt_dir(Path(plan.dir), plan.round_id, "").exists()


def test_a_cancelled_run_gives_failed_receipts(tmp_path: Path, engine: SparkEngine) -> None:
    make_big_log(tmp_path / "data", 300 << 20, 16 << 20)
    with DirectoryOwner(tmp_path / "data", {BIG: compacted()}, RealFs(), ManualClock(NOW)) as owner:
        [plan] = plans_of(owner, "cancelled")
        begun = threading.Event()

        def cancel(_: Progress) -> None:
            begun.set()
            run.cancel()

        start = time.monotonic()
        run = engine.submit([plan])
        [receipt] = receipts_of(run, cancel)
        assert begun.is_set()
        assert receipt.error == "big-0: cancelled"
        assert time.monotonic() - start < 60
        [again] = receipts_of(engine.submit([replace(plan, round_id="again")]))
        assert again.error is None
