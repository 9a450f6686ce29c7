"""Looking through segments on Spark: as in this process, in one job, and dying workers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.progress import Progress
from lapse.lifecycle.round.run import receipts_of
from lapse.lifecycle.round.summarise import SummaryReceipt, SummaryRequest, requests_of
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.spark.rounds.engine import SparkEngine
from lapse.spark.rounds.task import summarise_one
from tests.spark.processes import worker_pids
from tests.spark.test_engine import owning
from tests.support.lifecycle.rounds import NOW, overwritten


def quiet(_: Progress) -> None:
    """Nobody watches."""


def all_requests(owner: DirectoryOwner) -> list[SummaryRequest]:
    """Every sealed segment, as if it had no summary."""
    facts = [info.facts for info in owner.logs()]
    unknown = [
        replace(log, segments=tuple(replace(s, summary=None) for s in log.segments))
        for log in facts
    ]
    return requests_of(unknown, records=True)


def inline(requests: Sequence[SummaryRequest]) -> list[SummaryReceipt]:
    return list(receipts_of(InlineEngine(RealFs(), SystemClock()).summarise(requests)))


def found(receipts: Sequence[SummaryReceipt]) -> list[SummaryReceipt]:
    """Without who did it."""
    return [replace(receipt, pid=0) for receipt in receipts]


def test_many_segments_of_many_logs_in_one_job(tmp_path: Path, engine: SparkEngine) -> None:
    """In few tasks, in order, and adopted by their owner."""
    topics = {f"t{n:02d}": overwritten(keys=3 + n, times=9) for n in range(30)}
    with owning(tmp_path / "data", topics) as owner:
        requests = all_requests(owner)
        assert len(requests) > 100
        seen: list[Progress] = []
        run = engine.summarise(requests)
        receipts = list(receipts_of(run, seen.append))
        assert found(receipts) == found(inline(requests))
        assert os.getpid() not in {r.pid for r in receipts}
        (job_id,) = run.job_ids
        status = engine._spark.statusTracker()
        (stage,) = status.getJobInfo(job_id).stageIds
        assert status.getStageInfo(stage).numTasks < 10
        assert owner.adopt_summaries(receipts) == [None] * len(requests)
        total = sum(r.size for r in requests)
        assert seen[-1] == Progress(total, total)


def test_nothing_to_look_through_is_no_job(engine: SparkEngine) -> None:
    run = engine.summarise([])
    assert list(receipts_of(run)) == []
    assert run.job_ids == ()


def test_one_segment_that_is_gone_fails_alone(tmp_path: Path, engine: SparkEngine) -> None:
    with owning(tmp_path / "data", {"a": overwritten(), "b": overwritten()}) as owner:
        requests = all_requests(owner)
        gone = next(i for i, r in enumerate(requests) if r.name == "b-0")
        os.unlink(Path(requests[gone].dir) / f"{requests[gone].base_offset:020d}.log")
        errors = [r.error for r in receipts_of(engine.summarise(requests))]
        assert "No such file" in str(errors[gone])
        assert [e for n, e in enumerate(errors) if n != gone] == [None] * (len(requests) - 1)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> list[SummaryRequest]:
    """Some seconds of work for two tasks: compressed segments, looked into again and again."""
    path = tmp_path_factory.mktemp("large")
    records = [NewRecord(b"%08d" % i, b"v" * 200, NOW) for i in range(20_000)]
    batch = build_batch(records, BatchSpec(codec=Codec.GZIP))
    batches = []
    for n in range(40):
        batches.append((n * 20_000).to_bytes(8, "big") + batch[8:])
    data = b"".join(batches)
    (path / f"{0:020d}.log").write_bytes(data)
    one = SummaryRequest(TopicPartition("large", 0), str(path), 1, 0, len(data), 1 << 40)
    return [replace(one, partition=TopicPartition("large", n)) for n in range(16)]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds workers by /proc")
def test_a_killed_worker_costs_an_attempt_and_nothing_else(
    large: list[SummaryRequest], engine: SparkEngine
) -> None:
    """`kill -9` in the middle: Spark tries again, and what comes out is the same."""
    killed: list[int] = []
    began = time.monotonic()

    def kill(_: Progress) -> None:
        if not killed and time.monotonic() - began > 0.4:
            for pid in worker_pids():
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    receipts = list(receipts_of(engine.summarise(large), kill))
    assert killed
    assert {r.pid for r in receipts} - set(killed)  # what one had finished before counts
    [expected] = found(inline(large[:1]))
    assert found(receipts) == [replace(expected, name=f"large-{n}") for n in range(16)]
    assert expected.summary is not None
    assert (expected.summary.records, expected.summary.tombstones) == (800_000, 0)
    assert expected.keys


def test_a_cancelled_look_gives_failed_receipts(
    large: list[SummaryRequest], engine: SparkEngine
) -> None:
    begun = threading.Event()

    def cancel(_: Progress) -> None:
        begun.set()
        run.cancel()

    run = engine.summarise(large)
    receipts = list(receipts_of(run, cancel))
    assert begun.is_set()
    assert [r.error for r in receipts] == [f"large-{n}: cancelled" for n in range(16)]
    [again] = receipts_of(engine.summarise(large[:1]))
    assert again.error is None


def test_after_two_deaths_only_headers_are_looked_at(tmp_path: Path) -> None:
    """What kills a worker is in a record; the job must not die of it. No Spark needed for that."""
    with owning(tmp_path / "data", {"a": overwritten()}) as owner:
        [request, *_] = all_requests(owner)
        full, flat = summarise_one(request, 1), summarise_one(request, 2)
        assert full.keys
        assert (flat.keys, flat.error) == ("", None)
        assert flat.summary is not None
        assert flat.summary.is_complete
