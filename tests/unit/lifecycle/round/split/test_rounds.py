"""Which stage asks whom, and what a failure makes of a round; nothing is run here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lapse.lifecycle.round.choice import Split
from lapse.lifecycle.round.receipt import BadSpot
from lapse.lifecycle.round.split.parts import PartsReceipt
from lapse.lifecycle.round.split.requests import Answer, Blob, JudgedSegment, Merged, Scanned, Stage
from lapse.lifecycle.round.split.rounds import Job, Result, steps
from tests.support.lifecycle.round.split.splits import SEED, planned

SEGMENTS = [(0, b""), (10, b""), (20, b"")]
NO_PARTS = PartsReceipt(0, 0, 3)


def answer(by: str, done: Any, error: str | None = None, bad: BadSpot | None = None) -> Answer[Any]:
    return Answer(by, 1, 0.0, 0, done, error, bad)


def scanned(job: Job) -> list[Answer[Any]]:
    return [
        answer(
            f"s{r.index}", Scanned(r.index, 1, (), False, NO_PARTS, 0, Blob(f"s{r.index}", 1, 2))
        )
        for r in job.requests
    ]


def merged(job: Job) -> list[Answer[Any]]:
    return [answer(f"m{r.first}", Merged(r.first, NO_PARTS, 5)) for r in job.requests]


def judged(job: Job, *touched: int) -> list[Answer[Any]]:
    return [
        answer(f"j{r.index}", JudgedSegment(r.index in touched, Blob(f"j{r.index}", 3, 4), ()))
        for r in job.requests
    ]


def test_a_request_tells_nothing_of_other_segments(tmp_path: Path) -> None:
    """Of many producers each request would hold all, in the driver's memory at once."""
    plan = planned(
        tmp_path, SEGMENTS, 30, guarded_last_offsets=(29, 3, 9, 10, 20, 99), outcomes=((7, True),),
        guarded_markers=((8, 0),),
    )  # fmt: skip
    round_ = steps(plan, SEED, 1)
    job = next(round_)
    keys = [job]
    keys.append(job := round_.send(scanned(job)))
    for request in (r for job in keys for r in job.requests):
        told = request.plan
        assert (told.guarded_last_offsets, told.guarded_markers, told.outcomes) == ((), (), ())
    job = round_.send(merged(job))
    assert [r.plan.guarded_last_offsets for r in job.requests] == [(3, 9), (10,), (20, 29, 99)]
    job = round_.send(judged(job, 0, 2))
    assert [r.plan.guarded_last_offsets for r in job.requests] == [(3, 9), (20, 29, 99)]
    assert {r.plan.guarded_markers for r in job.requests} == {((8, 0),)}
    assert {r.plan.outcomes for r in job.requests} == {()}


@pytest.mark.parametrize(("tasks", "cuts"), [(1, [(0, 7)]), (3, [(0, 2), (2, 4), (4, 7)]), (99, 7)])
def test_a_round_from_stage_to_stage(tmp_path: Path, tasks: int, cuts: Any) -> None:
    plan = planned(tmp_path, SEGMENTS, 30, split=Split(7, 1, 1, 2))
    round_ = steps(plan, SEED, tasks)
    job = next(round_)
    assert job.stage is Stage.SCAN
    assert [(r.index, r.end, r.outcomes) for r in job.requests] == [
        (0, 10, None), (1, 20, None), (2, 30, None),
    ]  # fmt: skip
    assert [r.plan.segments for r in job.requests] == [(s,) for s in plan.segments]
    job = round_.send(scanned(job))
    assert job.stage is Stage.MERGE
    found = [(r.first, r.after) for r in job.requests]
    assert found == ([(n, n + 1) for n in range(cuts)] if isinstance(cuts, int) else cuts)
    assert all([run.attempt_id for run in r.runs] == ["s0", "s1", "s2"] for r in job.requests)
    merges = merged(job)
    job = round_.send(merges)
    assert job.stage is Stage.JUDGE
    assert [(r.index, r.latest, r.looked_at) for r in job.requests] == [
        (n, 29, True) for n in range(3)
    ]  # fmt: skip
    job = round_.send(judged(job, 1))
    assert job.stage is Stage.REWRITE
    assert [(r.first, r.bits) for r in job.requests] == [(1, (Blob("j1", 3, 4),))]
    assert job.finished == ("s0", "s1", "s2", *(a.attempt_id for a in merges))


def test_a_round_that_changes_nothing_ends_before_the_rewrite(tmp_path: Path) -> None:
    round_ = steps(planned(tmp_path, SEGMENTS, 30), SEED, 1)
    job = round_.send(merged(round_.send(scanned(next(round_)))))
    with pytest.raises(StopIteration) as end:
        round_.send(judged(job))
    assert end.value.value == Result(end_offset=30, entries=5)


@pytest.mark.parametrize(("dirty", "latest"), [(0, 29), (29, 29), (30, 29), (12, 29)])
def test_how_far_the_map_reaches(tmp_path: Path, dirty: int, latest: int) -> None:
    round_ = steps(planned(tmp_path, SEGMENTS, 30, dirty=dirty), SEED, 1)
    job = round_.send(merged(round_.send(scanned(next(round_)))))
    assert {r.latest for r in job.requests} == {latest}


@pytest.mark.parametrize("probe_always", [False, True])
def test_without_a_key_the_clean_part_counts_only_if_asked(
    tmp_path: Path, probe_always: bool
) -> None:
    round_ = steps(planned(tmp_path, SEGMENTS, 30, probe_always=probe_always), SEED, 1)
    job = round_.send(scanned(next(round_)))
    job = round_.send([answer("m", Merged(0, NO_PARTS, 0))])
    assert {r.looked_at for r in job.requests} == {probe_always}


def test_of_what_failed_the_lowest_place_counts(tmp_path: Path) -> None:
    spots = {n: BadSpot(10 * n, 10 * n, 0, f"bad {n}") for n in (1, 2)}
    round_ = steps(planned(tmp_path, SEGMENTS, 30), SEED, 1)
    next(round_)
    with pytest.raises(StopIteration) as end:
        round_.send([
            answer("a", None, "disk full"), answer("b", None, "two", spots[2]),
            answer("c", None, "one", spots[1]),
        ])  # fmt: skip
    assert end.value.value == Result(error="one", bad=spots[1])
    round_ = steps(planned(tmp_path, SEGMENTS, 30), SEED, 1)
    next(round_)
    with pytest.raises(StopIteration) as end:
        round_.send([answer("a", None, "disk full")])
    assert end.value.value == Result(error="disk full")
