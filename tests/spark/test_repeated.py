"""Tasks are killed and repeated at random: every receipt tells of the same bytes as a quiet run.

What a filter knows of transactions depends on the batches it has seen, so none may ever be filtered
twice in a round (G-5's trap): attempts share nothing, and begin anew.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.run import receipts_of
from lapse.log.directory import LogDirectory
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.spark.rounds.engine import Job, SparkEngine
from lapse.spark.rounds.task import encode_bin, run_bins
from lapse.testing.clock import ManualClock
from tests.spark.processes import daemon_pids, kill, needs_proc, worker_pids
from tests.spark.test_engine import decode, files_of, plans_of
from tests.support.lifecycle.rounds import NOW, compacted, env_of

pytestmark = pytest.mark.usefixtures("mended")

LOGS = tuple(TopicPartition(f"t{n}", 0) for n in range(3))
BATCHES = 24
BATCH_RECORDS = 1500
RUNS_MAX = 100


def make_logs(path: Path, chance: random.Random) -> None:
    """Plain batches, committed and aborted ones, tombstones, several codecs and segments."""
    config = compacted(segment_bytes=1 << 20, internal_segment_bytes=1 << 20)
    directory = LogDirectory.open(path, env_of(ManualClock(NOW)))
    for partition in LOGS:
        log = directory.create_log(partition, config)
        for n in range(BATCHES):
            keys = chance.sample(range(BATCH_RECORDS * 3), BATCH_RECORDS)
            records = [
                NewRecord(
                    b"%08d" % key, None if key % 50 == n % 50 else b"v%d" % n + b"." * 400, NOW
                )
                for key in keys
            ]
            txn = n % 3 > 0
            spec = BatchSpec(
                base_offset=log.log_end_offset, codec=Codec(chance.choice([0, 0, 3, 4])),
                producer_id=7 if txn else -1, producer_epoch=0 if txn else -1,
                base_sequence=n * BATCH_RECORDS if txn else -1, transactional=txn,
            )  # fmt: skip
            log.append_raw(build_batch(records, spec), now_ms=NOW)
            if n % 3 == 2:
                log.append_marker(7, 0, n % 2 == 0, 0, leader_epoch=0, now_ms=NOW)
        log.roll(NOW)
    directory.close()


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DirectoryOwner]:
    path = tmp_path_factory.mktemp("repeated") / "data"
    make_logs(path, random.Random(5))
    configs = dict.fromkeys(LOGS, compacted())
    with DirectoryOwner(path, configs, RealFs(), ManualClock(NOW)) as opened:
        yield opened


@pytest.fixture(scope="module")
def undisturbed(owner: DirectoryOwner) -> dict[str, tuple[object, dict[str, bytes]]]:
    """By log: the groups, and the files, of a run in this process."""
    plans = plans_of(owner, "quiet")
    receipts = receipts_of(InlineEngine(RealFs(), SystemClock()).submit(plans))
    return {
        plan.name: (receipt.groups, files_of(plan, receipt))
        for plan, receipt in zip(plans, receipts, strict=True)
    }


@contextmanager
def killing(after_s: float, killed: list[int], *, daemons: bool = False) -> Iterator[None]:
    """All workers die so long from now, or whoever forks them too."""

    def strike() -> None:
        pids = worker_pids() | (daemon_pids() if daemons else set())
        kill(pids)
        killed.extend(pids)

    timer = threading.Timer(after_s, strike)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def run_twice(engine: SparkEngine, plans: list[RoundPlan]) -> list[object]:
    """Each plan in two tasks of one job: two attempts at the same time."""
    job = Job("twice", run_bins, [encode_bin([plan]) for plan in (*plans, *plans)])
    return decode(engine._driver.submit(engine._collect, "twice", job).result())


@needs_proc
def test_killed_and_repeated_attempts_leave_the_same_bytes(
    owner: DirectoryOwner,
    undisturbed: dict[str, tuple[object, dict[str, bytes]]],
    engine: SparkEngine,
    scaled: Callable[[int], int],
    seed: int,
) -> None:
    chance = random.Random(seed)
    killed: list[int] = []
    runs = repeated = 0
    while runs < scaled(80) or not repeated:
        assert runs < RUNS_MAX, "no worker was at work when it was killed"
        runs += 1
        plans = plans_of(owner, f"r{runs}-")
        with killing(chance.uniform(0.0, 0.4), killed, daemons=chance.random() < 0.2):
            twice = chance.random() < 0.5
            receipts = (
                run_twice(engine, plans) if twice else list(receipts_of(engine.submit(plans)))
            )
        by_name = {plan.name: plan for plan in plans}
        assert len(receipts) == len(plans) * (1 + twice)
        assert len({r.attempt_id for r in receipts}) == len(receipts)
        for receipt in receipts:
            assert receipt.error is None
            groups, files = undisturbed[receipt.name]
            assert receipt.groups == groups != ()
            assert files_of(by_name[receipt.name], receipt) == files
        repeated += any("-a0-" not in r.attempt_id for r in receipts)
    assert killed
