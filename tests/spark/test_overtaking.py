"""Rounds with a deadline beside a long job without one, and one log's round called off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lapse.base.fs import RealFs
from lapse.lifecycle.decide.select import Due
from lapse.lifecycle.round.cancel import cancel_round
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.progress import Progress
from lapse.lifecycle.round.receipt import Receipt, attempt_dir
from lapse.lifecycle.round.run import receipts_of
from lapse.spark.rounds.engine import SparkEngine
from tests.spark.test_engine import owning, plans_of
from tests.spark.test_split import SPLIT
from tests.support.lifecycle.rounds import overwritten

BULK_LOGS = 48  # six tasks of eight


def taking(plan: RoundPlan, seconds: float, *due: Due) -> RoundPlan:
    """Held back by its io budget."""
    rate = 2 * plan.bytes_to_read / seconds
    return replace(plan, io_bytes_per_second=rate, due=tuple(d.value for d in due))


def has_begun(plan: RoundPlan) -> bool:
    return attempt_dir(Path(plan.dir), plan.round_id, "").exists()


def test_a_run_with_a_deadline_ends_before_tasks_of_another_have_begun(
    tmp_path: Path, engine: SparkEngine
) -> None:
    """L6, in Spark's fair scheduler. Without pools it would come after all tasks that wait."""
    topics = {f"t{n:02d}": overwritten(keys=3, times=20) for n in range(BULK_LOGS + 1)}
    with owning(tmp_path / "data", topics) as owner:
        *bulk, urgent = plans_of(owner, "r")
        bulk = [taking(plan, 0.1, Due.RATIO) for plan in bulk]
        urgent = taking(urgent, 0.001, Due.MAX_LAG)
        overtook: list[Receipt] = []
        begun: list[int] = []
        job_ids: list[tuple[int, ...]] = []

        def overtake(_: Progress) -> None:
            if not overtook and any(has_begun(plan) for plan in bulk):
                short = engine.submit([urgent])
                overtook.extend(receipts_of(short))
                begun.append(sum(map(has_begun, bulk)))
                job_ids.append(short.job_ids)

        long = engine.submit(bulk)
        receipts = list(receipts_of(long, overtake))
        assert [r.error for r in (*overtook, *receipts)] == [None] * (BULK_LOGS + 1)
        assert 0 < begun[0] < BULK_LOGS - 8
        [ids] = job_ids
        assert len(ids) == len(long.job_ids) == 1
        assert ids != long.job_ids
        assert all(r.error is None for r in owner.commit([*overtook, *receipts]))


def test_a_split_round_keeps_no_urgent_one_waiting(tmp_path: Path, engine: SparkEngine) -> None:
    """Its jobs come one after the other; a run beside it begins and ends meanwhile."""
    topics = {"slow": overwritten(keys=30, times=40), "urgent": overwritten()}
    with owning(tmp_path / "data", topics) as owner:
        slow, urgent = plans_of(owner, "r")
        slow = taking(replace(slow, split=SPLIT), 5.0)
        urgent = taking(urgent, 0.001, Due.MAX_LAG)
        long = engine.submit([slow])
        while not has_begun(slow):
            assert isinstance(long.poll(), Progress)
        [receipt] = receipts_of(engine.submit([urgent]))
        assert receipt.error is None
        assert isinstance(long.poll(), Progress), "the split round is not over"
        long.cancel()
        [cancelled] = receipts_of(long)
        assert cancelled.error == "slow-0: cancelled"


def test_one_round_of_a_job_is_called_off(tmp_path: Path, engine: SparkEngine) -> None:
    """While it is under way: the others of the job come through."""
    topics = {"slow": overwritten(keys=5, times=40), "other": overwritten()}
    with owning(tmp_path / "data", topics) as owner:
        other, slow = sorted(plans_of(owner, "r"), key=lambda plan: plan.name)
        slow = taking(slow, 5.0)
        seen: list[Progress] = []

        def call_off(progress: Progress) -> None:
            mine = [one for one in progress.under_way if one.log == slow.name]
            if mine and mine[0].bytes_done:
                seen.append(progress)
                cancel_round(RealFs(), Path(slow.dir), slow.round_id)

        receipts = {r.name: r for r in receipts_of(engine.submit([other, slow]), call_off)}
        assert seen
        assert receipts["slow-0"].error == "slow-0: cancelled by hand"
        assert receipts["other-0"].error is None
