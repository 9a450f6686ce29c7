"""Split rounds as Spark jobs: the small plan's bytes, whatever dies; failures that stay alone."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark import TaskContext

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round.choice import split_for
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.progress import Progress, work_bytes
from lapse.lifecycle.round.receipt import Receipt, attempt_dir
from lapse.lifecycle.round.run import Run, receipts_of
from lapse.lifecycle.round.split.drive import FilesHere
from lapse.spark.rounds.engine import Job, SparkEngine
from lapse.spark.rounds.split import Cluster, OnBytes, run_split_plan
from lapse.spark.rounds.split_task import answers_to, run_split_bins
from lapse.testing.clock import ManualClock
from tests.reference.split_rounds import UNLIKE
from tests.spark.processes import needs_proc
from tests.spark.test_engine import (
    files_of,
    owning,
    plans_of,
)
from tests.spark.test_repeated import LOGS, killing, make_logs
from tests.support.lifecycle.rounds import NOW, compacted, overwritten, records_in

pytestmark = pytest.mark.usefixtures("mended")

SPLIT = split_for(4500, 1 << 17)  # a log's keys in two ranges, a segment's records in three chunks
HERE = (*UNLIKE, "pid", "round_id")  # and what a round in this process need not say alike
STAGES = 5  # of a log with transactions, which is scanned twice


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DirectoryOwner]:
    """Transactions over segments, tombstones, several codecs."""
    path = tmp_path_factory.mktemp("split") / "data"
    make_logs(path, random.Random(11))
    configs = dict.fromkeys(LOGS, compacted())
    with DirectoryOwner(path, configs, RealFs(), ManualClock(NOW)) as opened:
        yield opened


@pytest.fixture(scope="module")
def small(owner: DirectoryOwner) -> dict[str, tuple[Receipt, dict[str, bytes]]]:
    """By log: what the small plan gives, in this process."""
    plans = plans_of(owner, "small")
    receipts = receipts_of(InlineEngine(RealFs(), SystemClock()).submit(plans))
    return {
        plan.name: (receipt, files_of(plan, receipt))
        for plan, receipt in zip(plans, receipts, strict=True)
    }


def split_plans_of(owner: DirectoryOwner, prefix: str) -> list[RoundPlan]:
    return [replace(plan, split=SPLIT) for plan in plans_of(owner, prefix)]


def like_here(receipt: Receipt, here: Receipt) -> Receipt:
    return replace(receipt, **{name: getattr(here, name) for name in HERE})


def left_of(plan: RoundPlan) -> list[str]:
    """Attempts whose files are still there; their folder comes and goes beside this."""
    try:
        return sorted(os.listdir(attempt_dir(Path(plan.dir), plan.round_id, "")))
    except FileNotFoundError:
        return []


def test_the_bytes_and_the_receipt_of_the_small_plan(
    owner: DirectoryOwner, small: dict[str, tuple[Receipt, dict[str, bytes]]], engine: SparkEngine
) -> None:
    """A run of both kinds; one process or many makes no difference either."""
    plans = split_plans_of(owner, "spark")
    plans[1] = replace(plans[1], split=None)
    seen: list[Progress] = []
    run = engine.submit(plans)
    receipts = list(receipts_of(run, seen.append))
    assert [r.name for r in receipts] == [plans[n].name for n in (1, 0, 2)], "small ones first"
    by_name = {plan.name: plan for plan in plans}
    for receipt in receipts:
        plan = by_name[receipt.name]
        expected, files = small[receipt.name]
        assert receipt.error is None
        assert receipt.plan == plan.variant
        assert like_here(receipt, expected) == expected
        assert expected.groups != ()
        assert files_of(plan, receipt) == files
        left = [name for name in left_of(plan) if name != receipt.attempt_id]
        assert not any("scan" in name or "merge" in name for name in left), "runs are gone"
    assert len(run.job_ids) == 1 + 2 * STAGES
    plan = replace(plans[0], round_id="here")
    [here] = receipts_of(InlineEngine(RealFs(), SystemClock()).submit([plan]))
    assert files_of(plan, here) == small[plan.name][1]
    done = [p.bytes_done for p in seen]
    assert done == sorted(done)
    assert {p.bytes_total for p in seen} == {done[-1]} == {sum(map(work_bytes, plans))}
    assert any(work_bytes(plans[1]) < n < done[-1] for n in done), "it moves on the way"


def test_it_is_committed_and_swept(tmp_path: Path, engine: SparkEngine) -> None:
    """What readers find is the newest of each key, and another round finds nothing to do."""
    pairs = overwritten(keys=30, times=8)
    with owning(tmp_path / "data", {"t": pairs}) as owner:
        [plan] = split_plans_of(owner, "r")
        [receipt] = receipts_of(engine.submit([plan]))
        [result] = owner.commit([receipt])
        assert (result.error, result.groups > 0) == (None, True)
        assert left_of(plan) == []
        [info] = owner.logs()
        assert info.facts.cleaner_checkpoint == plan.upper
    assert dict(records_in(tmp_path / "data" / "t-0").values()) == dict(pairs)


def run_twice(
    engine: SparkEngine, plan: RoundPlan, chance: random.Random, on_bytes: OnBytes
) -> Receipt:
    """Each task of each stage twice in its job, at the same time; either answer may count."""

    def run_tasks(
        description: str, bins: list[bytes], on_wait: Callable[[], None]
    ) -> tuple[list[bytes], str]:
        job = Job(description, run_split_bins, [*bins, *bins])
        answers, error = engine._run_job(job, Run(lambda _: iter(())), on_wait)
        half = len(answers) // 2
        both = zip(answers[:half], answers[half:], strict=True)
        return [chance.choice(two) for two in both], error

    cluster = Cluster(FilesHere(RealFs()), SystemClock(), engine.task_slots, run_tasks)
    return run_split_plan(plan, cluster, on_bytes)


@needs_proc
def test_killed_and_repeated_attempts_leave_the_same_bytes(
    owner: DirectoryOwner,
    small: dict[str, tuple[Receipt, dict[str, bytes]]],
    engine: SparkEngine,
    scaled: Callable[[int], int],
    seed: int,
) -> None:
    chance = random.Random(seed)
    killed: list[int] = []
    runs, repeated = 0, False

    def look(_: object) -> None:
        nonlocal repeated
        repeated |= any("-a1-" in name for name in left_of(plan))

    while runs < scaled(60) or not repeated:
        assert runs < 60, "no worker was at work when it was killed"
        runs += 1
        plan = chance.choice(split_plans_of(owner, f"r{runs}-"))
        with killing(chance.uniform(0.05, 0.8), killed, daemons=chance.random() < 0.2):
            if chance.random() < 0.5:
                receipt = run_twice(engine, plan, chance, look)
            else:
                [receipt] = receipts_of(engine.submit([plan]), look)
        expected, files = small[plan.name]
        assert like_here(receipt, expected) == expected
        assert files_of(plan, receipt) == files
    assert killed


# --- failures ------------------------------------------------------------------------------------


def test_a_place_that_cannot_be_read_fails_its_log_alone(
    tmp_path: Path, engine: SparkEngine
) -> None:
    with owning(tmp_path / "data", {"a": overwritten(), "b": overwritten()}) as owner:
        plans = split_plans_of(owner, "r")
        place = plans[0].segments[2].base_offset
        path = tmp_path / "data" / "a-0" / f"{place:020d}.log"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        bad, good = receipts_of(engine.submit(plans))
        assert bad.bad is not None
        assert (bad.bad.segment_base, good.error) == (place, None)
        assert left_of(plans[0]) == []
        results = owner.commit([bad, good])
        assert results[0].bad is not None
        assert (results[0].bad.segment_base, results[1].error) == (place, None)


class DeadlyFs(RealFs):
    """Kills its process once it has begun with the first segment."""

    def make_dir(self, path: Path) -> None:
        super().make_dir(path)
        if path.name.startswith("1-scan-0-"):
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_task_that_dies_for_good_ends_its_round_and_no_other(
    owner: DirectoryOwner, engine: SparkEngine
) -> None:
    fs = DeadlyFs()

    def die(bins: Iterable[bytes]) -> Iterator[bytes]:
        context = TaskContext.get()
        assert context is not None
        yield from answers_to(bins, context.attemptNumber(), fs, SystemClock())

    def run_tasks(
        description: str, bins: list[bytes], on_wait: Callable[[], None]
    ) -> tuple[list[bytes], str]:
        return engine._run_job(Job(description, die, bins), Run(lambda _: iter(())), on_wait)

    [plan, other, *_] = split_plans_of(owner, "dead")
    cluster = Cluster(FilesHere(RealFs()), SystemClock(), engine.task_slots, run_tasks)
    receipt = run_split_plan(plan, cluster, lambda _: None)
    assert receipt.error is not None
    assert receipt.error.startswith(f"{plan.name}: the Spark job failed: ")
    assert receipt.error.endswith("; 4 attempts died scanning the segment at 0")
    assert receipt.attempt_id != "none", "it is this log's doing"
    assert left_of(plan) == []
    [receipt] = receipts_of(engine.submit([other]))
    assert receipt.error is None


def test_a_cancelled_round_leaves_nothing(owner: DirectoryOwner, engine: SparkEngine) -> None:
    """In the second stage, and the log that was to come next is not begun."""
    plans = split_plans_of(owner, "cancelled")[:2]

    def cancel(progress: Progress) -> None:
        if progress.bytes_done >= plans[0].bytes_to_read // 2:
            run.cancel()

    run = engine.submit(plans)
    receipts = list(receipts_of(run, cancel))
    assert [r.error for r in receipts] == ["t0-0: cancelled", "t1-0: cancelled"]
    assert len(run.job_ids) >= 2
    assert left_of(plans[1]) == []
    [again] = receipts_of(engine.submit([replace(plans[0], round_id="again")]))
    assert again.error is None
