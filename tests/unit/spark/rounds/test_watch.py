"""How far a run is, by the folders that its attempts make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.ids import TopicPartition
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.progress import PROGRESS_FILE, LogProgress
from lapse.lifecycle.round.receipt import attempt_dir
from lapse.spark.rounds import watch as watch_module
from lapse.spark.rounds.bins import Bin
from lapse.spark.rounds.watch import LOOK_SECONDS_MIN, Watch
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW
from tests.unit.spark.rounds.test_bins import plan as plan_of

BYTES = 100


def plans_in(folder: Path, count: int) -> list[RoundPlan]:
    """Each reads so many bytes, and writes them again."""
    return [
        replace(
            plan_of(n, BYTES), partition=TopicPartition(f"t{n}", 0), round_id=f"r{n}",
            dir=str(folder / f"t{n}-0"),
        )
        for n in range(count)
    ]  # fmt: skip


def begin(plan: RoundPlan, attempt_id: str = "a0", done: int | None = None) -> None:
    folder = attempt_dir(Path(plan.dir), plan.round_id, attempt_id)
    folder.mkdir(parents=True, exist_ok=True)
    if done is not None:
        (folder / PROGRESS_FILE).write_bytes(b"%d" % done)


def watching(bins: Sequence[Sequence[RoundPlan]]) -> tuple[Watch, ManualClock]:
    clock = ManualClock(NOW)
    return Watch([Bin(tuple(plans)) for plans in bins], clock), clock


def test_nothing_has_begun(tmp_path: Path) -> None:
    watch, _ = watching([plans_in(tmp_path, 3)])
    now = watch.look()
    assert (now.bytes_done, now.bytes_total, now.under_way) == (0, 3 * 2 * BYTES, ())


def test_what_comes_before_the_last_that_has_begun_is_done(tmp_path: Path) -> None:
    plans = plans_in(tmp_path, 20)
    watch, clock = watching([plans[:12], plans[12:]])
    for last in range(12):
        begin(plans[last])
        clock.advance(1000)
        now = watch.look()
        assert now.bytes_done == last * 2 * BYTES
        assert now.under_way == (LogProgress(f"t{last}-0", f"r{last}", 0, 2 * BYTES),)
    for plan in plans[12:18]:
        begin(plan)
    clock.advance(1000)
    now = watch.look()
    assert now.bytes_done == (11 + 5) * 2 * BYTES
    assert [one.log for one in now.under_way] == ["t11-0", "t17-0"]


def test_a_look_at_many_logs_is_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 logs in a bin: some twenty are looked for, wherever the task is."""
    asked: list[int] = []
    begun = 0

    def has_begun(plan: RoundPlan) -> bool:
        number = int(plan.round_id[1:])
        asked.append(number)
        return number < begun

    monkeypatch.setattr(watch_module, "_has_begun", has_begun)
    watch, clock = watching([plans_in(tmp_path, 10_000)])
    for begun in (1, 2, 3, 1000, 1001, 7777, 9999, 10_000):
        clock.advance(1000)
        asked.clear()
        assert watch.look().bytes_done == (begun - 1) * 2 * BYTES
        assert len(asked) <= 30


def test_of_several_attempts_the_furthest_counts_and_nothing_goes_back(tmp_path: Path) -> None:
    plans = plans_in(tmp_path, 2)
    watch, clock = watching([plans])
    begin(plans[0], "a0", 70)
    begin(plans[0], "a1", 90)
    assert watch.look().bytes_done == 90
    begin(plans[0], "a1", 10)
    begin(plans[0], "a0", 0)
    clock.advance(1000)
    assert watch.look().bytes_done == 90
    begin(plans[0], "a0", 5 * BYTES)  # it counts what it writes, too
    clock.advance(1000)
    assert watch.look().bytes_done == 2 * BYTES


def test_a_round_that_was_swept_is_still_done(tmp_path: Path) -> None:
    plans = plans_in(tmp_path, 2)
    watch, clock = watching([plans])
    begin(plans[0], "a0", 2 * BYTES)
    begin(plans[1], "a0", BYTES)
    assert watch.look().bytes_done == 3 * BYTES
    for plan in plans:
        folder = attempt_dir(Path(plan.dir), plan.round_id, "")
        folder.rename(folder.with_name("gone"))
    clock.advance(1000)
    assert watch.look().bytes_done == 3 * BYTES


def test_a_marker_beside_the_attempts_is_none(tmp_path: Path) -> None:
    [plan] = plans_in(tmp_path, 1)
    watch, _ = watching([[plan]])
    begin(plan, "a0", 50)
    (attempt_dir(Path(plan.dir), plan.round_id, "") / "cancelled").write_bytes(b"")
    assert watch.look().bytes_done == 50


def test_it_does_not_look_all_the_time(tmp_path: Path) -> None:
    [plan] = plans_in(tmp_path, 1)
    watch, clock = watching([[plan]])
    watch.look()
    begin(plan, "a0", 50)
    assert watch.look().bytes_done == 0
    clock.advance(round(LOOK_SECONDS_MIN * 1000))
    assert watch.look().bytes_done == 50


def test_a_task_that_has_ended_is_done_whatever_its_folders_say(tmp_path: Path) -> None:
    """Its logs may be committed by now, and their folders swept."""
    plans = plans_in(tmp_path, 4)
    watch, clock = watching([plans[:2], plans[2:]])
    begin(plans[0])
    begin(plans[2], "a0", 50)
    watch.look()
    watch.ended("r1", "t1-0")
    clock.advance(1000)
    now = watch.look()
    assert now.bytes_done == 2 * 2 * BYTES + 50
    assert [one.log for one in now.under_way] == ["t2-0"]
