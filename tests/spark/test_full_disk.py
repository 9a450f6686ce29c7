"""A disk that is full under a task: its log's round fails and says so, the others go on."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lapse.base.ids import TopicPartition
from lapse.broker.control.owned_logs import OwnedLogs
from lapse.lifecycle.decide.select import decide
from lapse.lifecycle.round.choice import split_for
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.run import receipts_of
from lapse.log.directory import LogDirectory
from lapse.log.summary import FOLDER
from lapse.spark.rounds.engine import SparkEngine
from lapse.testing.clock import ManualClock
from tests.spark.chaotic import files_in
from tests.spark.processes import daemon_pids, needs_proc, worker_pids
from tests.support.lifecycle.rounds import (
    NOW,
    Hosted,
    compacted,
    env_of,
    make_logs,
    overwritten,
    plan_of,
)

ROOM = 4096  # bytes a file
LARGE, HUGE = TopicPartition("large", 0), TopicPartition("huge", 0)  # the latter by the split plan
# Every other record stays, so that each segment is written anew.
MUCH = [(f"u{n}" if n % 2 else f"k{n % 10}", f"v{n}" + "." * 40) for n in range(1600)]
TOPICS = {"large": MUCH, "huge": MUCH, "little1": overwritten(), "little2": overwritten()}


@contextmanager
def no_room() -> Iterator[None]:
    """No file of a worker may become longer: as on a disk that is full."""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)  # which all of them were begun with
    limit(ROOM, worker_pids() | daemon_pids())
    try:
        yield
    finally:
        limit(soft, daemon_pids())
        limit(soft, worker_pids())  # those, too, that a daemon has begun meanwhile


def limit(size: int, pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


@contextmanager
def hosted(path: Path) -> Iterator[OwnedLogs]:
    """As a broker has them."""
    env = env_of(ManualClock(NOW))
    config = compacted(internal_segment_bytes=30_000)
    configs = make_logs(path, TOPICS, config, env.clock)
    directory = LogDirectory.open(path, env)
    for partition in configs:
        directory.open_log(partition, config)
    yield OwnedLogs(Hosted(directory), env)  # type: ignore[arg-type]
    directory.close()


def plans_of(owner: OwnedLogs, prefix: str) -> list[RoundPlan]:
    split = {HUGE: split_for(400, 1 << 16)}
    due = [info for info in owner.logs() if decide(info, NOW).due]
    plans = [plan_of(info, f"{prefix}{n}", NOW) for n, info in enumerate(due)]
    return [replace(plan, split=split.get(plan.partition)) for plan in plans]


@needs_proc
def test_a_full_disk_in_a_task(tmp_path: Path, engine: SparkEngine) -> None:
    with hosted(tmp_path / "data") as owner:
        before = {info.facts.partition: files_in(Path(info.facts.dir)) for info in owner.logs()}
        plans = plans_of(owner, "full")
        with no_room():
            receipts = {r.name: r for r in receipts_of(engine.submit(plans))}
        for plan in plans:
            receipt, folder = receipts[plan.name], Path(plan.dir)
            full = plan.partition in (LARGE, HUGE)
            assert (receipt.error is None) != full
            assert (receipt.groups == ()) == full
            if full:
                assert receipt.error is not None
                assert receipt.error.startswith(f"{plan.name}: ")
                assert str(folder) in receipt.error
                assert "File too large; files of this process may not grow" in receipt.error
                assert not list((folder / FOLDER / plan.round_id).rglob("*"))
            [result] = owner.commit([receipt])
            assert (result.error is None) != full
            assert (files_in(folder) == before[plan.partition]) == full
            assert not (folder / FOLDER / plan.round_id).exists()
        again = plans_of(owner, "room")
        assert {plan.partition for plan in again} == {LARGE, HUGE}
        results = owner.commit(list(receipts_of(engine.submit(again))))
        assert [result.error for result in results] == [None, None]
