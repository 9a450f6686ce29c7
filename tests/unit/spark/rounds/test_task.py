"""What a task does with one plan, whatever happens to it; no Spark needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import attempt_dir
from lapse.spark.rounds import task
from lapse.spark.rounds.task import encode_bin, run_one
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW, compacted, make_logs, overwritten, plan_of

CLOCK = SystemClock()


@pytest.fixture
def plan(tmp_path: Path) -> Iterator[RoundPlan]:
    clock = ManualClock(NOW)
    configs = make_logs(tmp_path / "data", {"a": overwritten()}, compacted(), clock)
    with DirectoryOwner(tmp_path / "data", configs, RealFs(), clock) as owner:
        yield plan_of(owner.logs()[0], "r", NOW)


def test_plans_travel_whole(plan: RoundPlan) -> None:
    assert msgspec.json.decode(encode_bin([plan, plan]), type=tuple[RoundPlan, ...]) == (plan, plan)


def died(plan: RoundPlan, attempt_id: str) -> None:
    """An attempt that began and never got through."""
    attempt_dir(Path(plan.dir), plan.round_id, attempt_id).mkdir(parents=True)


def test_a_plan_over_which_two_workers_died_is_given_up(plan: RoundPlan) -> None:
    died(plan, "p0-a0-x")
    assert run_one(plan, "p0-a1-x", 1, RealFs(), CLOCK).error is None
    died(plan, "p0-a2-x")
    receipt = run_one(plan, "p0-a3-x", 3, RealFs(), CLOCK)
    assert receipt.error == "a-0: 2 workers died over this log"
    assert not attempt_dir(Path(plan.dir), "r", "p0-a3-x").exists()


def test_who_got_through_before_a_neighbour_killed_the_worker_is_not_given_up(
    plan: RoundPlan,
) -> None:
    for attempt in range(4):
        receipt = run_one(plan, f"p0-a{attempt}-x", attempt, RealFs(), CLOCK)
        assert receipt.error is None
        assert receipt.groups


def test_a_bug_fails_its_own_log_only(plan: RoundPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise MemoryError("no map that large")

    monkeypatch.setattr(task, "run_plan", broken)
    receipt = run_one(plan, "x", 0, RealFs(), CLOCK)
    assert receipt.error == "a-0: MemoryError: no map that large"
    assert receipt.groups == ()
