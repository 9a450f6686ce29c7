"""How a split plan's jobs travel, what is seen of them meanwhile, and what is said of a failure."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.base.sizes import size_text
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.progress import PROGRESS_FILE, work_bytes
from lapse.lifecycle.round.split.drive import FilesHere, run_split_here
from lapse.lifecycle.round.split.requests import Stage, folder_of
from lapse.spark.rounds.split import (
    Cluster,
    RunTasks,
    bins_of,
    blame,
    describe_stage,
    run_split_plan,
)
from lapse.spark.rounds.split_task import ANSWERED, SplitBin, answers_to
from lapse.spark.rounds.watch import StageWatch
from lapse.testing.clock import ManualClock
from tests.reference.split_rounds import UNLIKE, files_of
from tests.support.lifecycle.round.split.splits import Driver, data, planned

FOUR = [(2 * n, data(2 * n, (b"a", b"%d" % n), (b"%d" % n, b"1"))) for n in range(4)]
OnWait = Callable[[], None]
Answers = tuple[list[bytes], str]


@pytest.fixture
def plan(tmp_path: Path) -> RoundPlan:
    return planned(tmp_path, FOUR, 8)


def cluster(run_tasks: RunTasks) -> Cluster:
    return Cluster(FilesHere(RealFs()), ManualClock(), 2, run_tasks)


def here(_: str, bins: list[bytes], on_wait: OnWait) -> Answers:
    """Tasks one after the other, as a Spark would give their answers."""
    on_wait()
    return list(answers_to(bins, 0, RealFs(), SystemClock())), "not asked for"


def test_it_gives_what_this_process_gives(plan: RoundPlan) -> None:
    told: list[int] = []
    receipt = run_split_plan(plan, cluster(here), told.append)
    expected = run_split_here(replace(plan, round_id="here"), RealFs(), ManualClock())
    unlike = {name: getattr(expected, name) for name in (*UNLIKE, "round_id")}
    assert replace(receipt, **unlike) == expected
    assert receipt.error is None
    assert files_of(plan, receipt) == files_of(replace(plan, round_id="here"), expected)
    assert told == sorted(told)
    assert told[-1] <= work_bytes(plan)
    assert receipt.attempt_id.startswith("split-"), "a commit reads it back"


def test_an_answer_too_few_is_none_for_all(plan: RoundPlan) -> None:
    """Which one is missing cannot be told by their order."""

    def lossy(description: str, bins: list[bytes], on_wait: OnWait) -> Answers:
        answers, _ = here(description, bins, on_wait)
        return answers[1:], "its task left no receipt"

    receipt = run_split_plan(plan, cluster(lossy), lambda _: None)
    assert receipt.error == "t-0: its task left no receipt"
    assert not folder_of(plan, "x").parent.exists()


def test_a_bug_is_this_plans_own(plan: RoundPlan) -> None:
    def broken(_: str, bins: list[bytes], __: OnWait) -> Answers:
        return [b"{}"] * sum(len(requests_in(one)) for one in bins), ""

    receipt = run_split_plan(plan, cluster(broken), lambda _: None)
    assert receipt.error is not None
    assert receipt.error.startswith("t-0: ValidationError: ")
    assert receipt.groups == ()


def requests_in(bin_: bytes) -> list[dict[str, dict[str, object]]]:
    some = msgspec.json.decode(bin_, type=SplitBin)
    return [msgspec.json.decode(bytes(one)) for one in some.requests]


def test_tasks_share_the_rounds_io(plan: RoundPlan) -> None:
    """Each slot a part of it; the receipt is the round's."""
    rates = set()

    def noting(description: str, bins: list[bytes], on_wait: OnWait) -> Answers:
        rates.update(one["plan"]["io_bytes_per_second"] for b in bins for one in requests_in(b))
        return here(description, bins, on_wait)

    limited = replace(plan, io_bytes_per_second=1e9)
    assert run_split_plan(limited, cluster(noting), lambda _: None).error is None
    assert rates == {5e8}


def test_requests_keep_their_order_and_their_numbers(plan: RoundPlan) -> None:
    [*sizes] = (40 << 20 for _ in plan.segments)
    sized = zip(plan.segments, sizes, strict=True)
    wide = replace(plan, segments=tuple(structs.replace(s, size=n) for s, n in sized))
    job = Driver(wide).until(Stage.SCAN)
    bins = [msgspec.json.decode(one, type=SplitBin) for one in bins_of(job, "1-scan", 2)]
    assert [(b.stage, b.prefix, b.first, len(b.requests)) for b in bins] == [
        (Stage.SCAN, "1-scan", n, 1) for n in range(4)
    ]
    assert [one["index"] for b in bins_of(job, "1-scan", 2) for one in requests_in(b)] == [
        *range(4)
    ]
    merges = Driver(plan).until(Stage.MERGE)
    assert len(bins_of(merges, "2-merge", 2)) == 1, "small ones share a task"


def attempt(folder: Path, name: str, *, done: int | None = None, answered: bool = False) -> None:
    (folder / name).mkdir(parents=True)
    if done is not None:
        (folder / name / PROGRESS_FILE).write_bytes(b"%d" % done)
    if answered:
        (folder / name / ANSWERED).touch()


def test_the_furthest_attempt_at_each_request_counts(tmp_path: Path) -> None:
    clock = ManualClock()
    watch = StageWatch(tmp_path / "round", "1-scan", clock)
    assert watch.look() == 0
    for name, done in [
        ("1-scan-0-a0-x", 50), ("1-scan-0-a1-y", 20), ("1-scan-12-a0-z", 7),
        ("1-scan-2-a0-z", None), ("2-scan-0-a0-x", 1000), ("11-scan-0-a0-x", 1000),
        ("split-x", 1000),
    ]:  # fmt: skip
        attempt(tmp_path / "round", name, done=done)
    assert watch.look() == 0, "it does not look each time"
    clock.advance(1000)
    assert watch.look() == 57
    (tmp_path / "round" / "1-scan-0-a0-x" / PROGRESS_FILE).write_bytes(b"1")
    clock.advance(1000)
    assert watch.look() == 57, "it never goes back"


def test_who_died_more_than_once_is_named(tmp_path: Path, plan: RoundPlan) -> None:
    driver = Driver(plan)
    scans = driver.until(Stage.SCAN)
    folder = tmp_path / "round"
    assert blame(folder, "1-scan", scans) == ""
    attempt(folder, "1-scan-3-a0-x")
    assert blame(folder, "1-scan", scans) == "", "it was under way when the job ended"
    for n in range(4):
        attempt(folder, f"1-scan-0-a{n}-x", answered=True)  # begins each time its task does
        attempt(folder, f"1-scan-2-a{n}-x", answered=n == 1)
    assert blame(folder, "1-scan", scans) == "; 3 attempts died scanning the segment at 4"
    driver.run(scans)
    merges = driver.until(Stage.MERGE)
    for n in range(2):
        attempt(folder, f"2-merge-1-a{n}-x")
    assert blame(folder, "2-merge", merges) == "; 2 attempts died merging hash ranges 1 to 2"
    assert blame(folder, "3-judge", merges) == ""


def test_what_a_job_is_called(plan: RoundPlan) -> None:
    driver = Driver(plan)
    driver.until(None)
    names = [describe_stage(plan, job) for job in driver.jobs]
    size = size_text(plan.bytes_to_read)
    assert names == [
        f"cleaning t-0, split: scanning 4 segments, {size} in all",
        f"cleaning t-0, split: merging 3 hash ranges, {size} in all",
        f"cleaning t-0, split: judging 4 segments, {size} in all",
        f"cleaning t-0, split: rewriting 3 groups, {size} in all",
    ]


def test_seeds_stay_with_the_scans(plan: RoundPlan) -> None:
    """ADR-2: no answer, name of a job or later request has the hash's seed."""
    chance = random.Random(1)
    seen: dict[str, list[bytes]] = {}

    def noting(description: str, bins: list[bytes], on_wait: OnWait) -> Answers:
        answers, error = here(description, bins, on_wait)
        chance.shuffle(bins)
        seen.setdefault("asked", []).extend(bins)
        seen.setdefault("told", []).extend([description.encode(), *answers])
        return answers, error

    assert run_split_plan(plan, cluster(noting), lambda _: None).error is None
    scans = [b for b in seen["asked"] if b'"seed"' in b]
    [seed] = {tuple(one["seed"]) for b in scans for one in requests_in(b)}
    others = [b for b in seen["asked"] if b'"seed"' not in b]
    assert (len(scans), len(others) > 2) == (1, True)
    for half in seed:
        assert not any(str(half).encode() in text for text in (*others, *seen["told"]))
