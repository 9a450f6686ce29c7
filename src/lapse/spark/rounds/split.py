"""A split plan on Spark: a job for each stage, its requests dealt out to tasks, answers in order.

Which request follows from which answers `lifecycle.round.split.rounds` says, and `drive` what
becomes of the files; here is only how a job travels and what is said where it fails (how far it has
come: `watch`). A job that fails as a whole (a task died as often as Spark tries it, somebody
cancelled it) leaves its requests without an answer, and so the round comes to nothing, and no
other.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from lapse.base.clock import Clock
from lapse.base.sizes import size_text
from lapse.lifecycle.round.engine import failed
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.progress import work_bytes
from lapse.lifecycle.round.receipt import Receipt, attempt_dir
from lapse.lifecycle.round.split.drive import SplitFiles, run_split
from lapse.lifecycle.round.split.requests import Answer, MergeRequest, Stage
from lapse.lifecycle.round.split.rounds import Job
from lapse.lifecycle.round.split.stages import decode_answer
from lapse.spark.rounds.bins import BINS_PER_SLOT, SEGMENT_COST_BYTES, neighbours
from lapse.spark.rounds.split_task import ANSWERED, encode_bin
from lapse.spark.rounds.watch import StageWatch, attempts_of_stage

logger = logging.getLogger(__name__)

_NOBODY = "none"
_DOING = {
    Stage.SCAN: "scanning",
    Stage.MERGE: "merging",
    Stage.JUDGE: "judging",
    Stage.REWRITE: "rewriting",
}
_OF = {
    Stage.SCAN: "segments",
    Stage.MERGE: "hash ranges",
    Stage.JUDGE: "segments",
    Stage.REWRITE: "groups",
}

# (description, bins, called while waiting) → (answers, why there may be none)
RunTasks = Callable[[str, list[bytes], Callable[[], None]], tuple[list[bytes], str]]
OnBytes = Callable[[int], None]  # so many of the round's bytes are done


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a split round runs on.

    Attributes:
        files: beside what tasks do to them.
        task_slots: tasks that run at once.
        run_tasks: runs one job of `rounds.split_task.run_split_bins`.
        is_here: the folders of attempts can be looked at from this process.
    """

    files: SplitFiles
    clock: Clock
    task_slots: int
    run_tasks: RunTasks
    is_here: bool = True


def run_split_plan(plan: RoundPlan, cluster: Cluster, on_bytes: OnBytes) -> Receipt:
    """Carry out one split plan; whatever goes wrong with it stays with it."""
    attempt_id = f"split-{secrets.token_hex(4)}"
    jobs = _Jobs(plan, cluster, on_bytes)
    shared = replace(plan, io_bytes_per_second=plan.io_bytes_per_second / cluster.task_slots)
    merge_tasks = cluster.task_slots * BINS_PER_SLOT
    try:
        return run_split(shared, attempt_id, cluster.files, cluster.clock, jobs.run, merge_tasks)
    except Exception as e:  # one log's bug must not fail the others
        logger.exception("round %s over %s", plan.round_id, plan.name)
        return failed(plan, attempt_id, f"{plan.name}: {type(e).__name__}: {e}")


class _Jobs:
    """Runs the jobs of one round."""

    def __init__(self, plan: RoundPlan, cluster: Cluster, on_bytes: OnBytes) -> None:
        self._plan, self._cluster, self._on_bytes = plan, cluster, on_bytes
        self._numbers = count(1)
        self._bytes_done = 0

    def run(self, job: Job) -> Sequence[Answer[Any]]:
        prefix = f"{next(self._numbers)}-{job.stage.value}"
        folder = attempt_dir(Path(self._plan.dir), self._plan.round_id, "")
        watch = StageWatch(folder, prefix, self._cluster.clock)
        is_here = self._cluster.is_here
        collected, error = self._cluster.run_tasks(
            describe_stage(self._plan, job), bins_of(job, prefix, self._cluster.task_slots),
            lambda: self._tell(watch.look() if is_here else 0),
        )  # fmt: skip
        if len(collected) != len(job.requests):
            died = blame(folder, prefix, job) if is_here else ""
            text = f"{self._plan.name}: {error}{died}"
            return [Answer(_NOBODY, os.getpid(), 0.0, 0, None, text)] * len(job.requests)
        answers = [decode_answer(job.stage, data) for data in collected]
        self._bytes_done += sum(answer.bytes_read for answer in answers)
        self._tell(0)
        return answers

    def _tell(self, more_bytes: int) -> None:
        self._on_bytes(min(self._bytes_done + more_bytes, work_bytes(self._plan)))


def bins_of(job: Job, prefix: str, task_slots: int) -> list[bytes]:
    """A job's requests, in their order, as tasks get them."""
    costs = [SEGMENT_COST_BYTES + _bytes_of(request) for request in job.requests]
    return [
        encode_bin(job.stage, prefix, some.start, job.requests[some.start : some.stop])
        for some in neighbours(costs, task_slots)
    ]


def _bytes_of(request: Any) -> int:
    """What a request's task reads, about."""
    if isinstance(request, MergeRequest):
        split = request.plan.split
        assert split is not None
        runs_bytes = sum(run.parts.size for run in request.runs)
        return runs_bytes * (request.after - request.first) // split.ranges
    n_bytes: int = request.plan.bytes_to_read
    return n_bytes


def blame(folder: Path, prefix: str, job: Job) -> str:
    """What several attempts died over, in words; empty where there is no such request."""
    died = Counter(
        number
        for number, path in attempts_of_stage(folder, prefix)
        if not (path / ANSWERED).exists()
    )  # fmt: skip
    for number, times in died.most_common(1):
        if times > 1:
            place = _place_of(job.requests[number])
            return f"; {times} attempts died {_DOING[job.stage]} {place}"
    return ""


def _place_of(request: Any) -> str:
    if isinstance(request, MergeRequest):
        return f"hash ranges {request.first} to {request.after - 1}"
    return f"the segment at {request.plan.segments[0].base_offset}"


def describe_stage(plan: RoundPlan, job: Job) -> str:
    """What a Spark page or log calls the job."""
    size = size_text(plan.bytes_to_read)
    what = f"{len(job.requests)} {_OF[job.stage]}"
    if job.stage is Stage.MERGE and plan.split is not None:
        what = f"{plan.split.ranges} {_OF[job.stage]}"
    return f"cleaning {plan.name}, split: {_DOING[job.stage]} {what}, {size} in all"
