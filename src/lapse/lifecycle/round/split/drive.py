"""The driver's side effects in a split round: run jobs, clean up, move the groups to one folder.

Each rewrite task writes to its attempt's folder; a commit needs the files of one attempt. So the
files named in the answers are renamed into a last folder, which no task knows. A failed round
removes its files: runs are large, and a full disk may be the reason for the failure.

What is done to files stands behind `SplitFiles`: a driver may be where no file is (`FilesHere` is
for one that is where they are).
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lapse.base.clock import Clock
from lapse.base.errors import LapseError
from lapse.base.fs import Fs
from lapse.lifecycle.round.engine import cleared_to, failed, in_words
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import (
    THIS_PROCESS,
    BadSpot,
    Receipt,
    Seconds,
    attempt_dir,
    attempt_file,
)
from lapse.lifecycle.round.split.requests import Answer, Stage, folder_of
from lapse.lifecycle.round.split.rounds import Job, Result, steps
from lapse.lifecycle.round.split.stages import run_request

RunJob = Callable[[Job], Sequence[Answer[Any]]]  # answers in the order of the requests


class SplitFiles(Protocol):
    """What becomes of the files of attempts, beside what tasks do. All raise LapseError."""

    def remove(self, plan: RoundPlan, attempts: Sequence[str]) -> None:
        """Of attempts whose files nobody needs any more."""

    def gather(self, plan: RoundPlan, attempt: str, files: Sequence[tuple[str, str]]) -> None:
        """Into the folder of `attempt`: files by the attempt that has each, and its name."""

    def clear(self, plan: RoundPlan) -> None:
        """Of all attempts at the round."""


class FilesHere:
    """Files where the driver is."""

    def __init__(self, fs: Fs) -> None:
        self._fs = fs

    def remove(self, plan: RoundPlan, attempts: Sequence[str]) -> None:
        """As `SplitFiles`."""
        for attempt in attempts:
            self._fs.remove_tree(folder_of(plan, attempt))

    def gather(self, plan: RoundPlan, attempt: str, files: Sequence[tuple[str, str]]) -> None:
        """As `SplitFiles`; whoever died over it goes on where he was."""
        folder = folder_of(plan, attempt)
        self._fs.make_dir(folder)
        for by, name in files:
            if not (folder / name).exists():
                self._fs.rename(folder_of(plan, by) / name, folder / name)

    def clear(self, plan: RoundPlan) -> None:
        """As `SplitFiles`."""
        self._fs.remove_tree(attempt_dir(Path(plan.dir), plan.round_id, ""))


def draw_seed() -> tuple[int, int]:
    """A random seed for the key hash of one round."""
    low, high = np.frombuffer(os.urandom(16), np.int64).tolist()
    return low, high


def run_split(
    plan: RoundPlan,
    attempt_id: str,
    files: SplitFiles,
    clock: Clock,
    run_job: RunJob,
    merge_tasks: int,
) -> Receipt:
    """Carry out a split plan; `attempt_id` names the folder that the new segments end up in."""
    seconds, bytes_read = dict.fromkeys(Stage, 0.0), 0
    jobs = steps(plan, draw_seed(), merge_tasks)
    try:
        answers: Sequence[Answer[Any]] | None = None
        while True:
            job = next(jobs) if answers is None else jobs.send(answers)
            if job.finished:
                files.remove(plan, job.finished)
            start = clock.monotonic()
            answers = run_job(job)
            seconds[job.stage] += clock.monotonic() - start
            bytes_read += sum(answer.bytes_read for answer in answers)
    except StopIteration as end:
        result: Result = end.value
    except (LapseError, OSError) as e:
        return _came_to_nothing(plan, attempt_id, files, in_words(plan, e))
    if result.error is not None:
        return _came_to_nothing(plan, attempt_id, files, result.error, result.bad)
    try:
        files.gather(plan, attempt_id, _files_of(result))
    except LapseError as e:
        return _came_to_nothing(plan, attempt_id, files, in_words(plan, e))
    mapping = sum(seconds[stage] for stage in (Stage.SCAN, Stage.MERGE, Stage.JUDGE))
    return Receipt(
        round_id=plan.round_id,
        attempt_id=attempt_id,
        name=plan.name,
        generation=plan.generation,
        pid=os.getpid(),
        now_ms=plan.now_ms,
        horizon_ms=plan.horizon_ms,
        end_offset=result.end_offset,
        groups=tuple(group for _, group in result.groups),
        map_entries=result.entries,
        records_read=result.records_read,
        records_written=result.records_written,
        bytes_read=bytes_read,
        bytes_written=result.bytes_written,
        seconds=Seconds(map=mapping, rewrite=seconds[Stage.REWRITE]),
        kind=plan.kind.value,
        saw_markers=bool(plan.outcomes),
        upper=plan.upper,
        log_start=cleared_to(plan, result.end_offset),
        plan=plan.variant,
    )


def _came_to_nothing(
    plan: RoundPlan, attempt_id: str, files: SplitFiles, error: str, bad: BadSpot | None = None
) -> Receipt:
    with contextlib.suppress(LapseError):  # a task that is dying may write yet: its owner sweeps
        files.clear(plan)
    return failed(plan, attempt_id, error, bad)


def _files_of(result: Result) -> list[tuple[str, str]]:
    return [
        (by, attempt_file(group.base_offset, file.kind))
        for by, group in result.groups
        for file in group.files
    ]


def run_split_here(plan: RoundPlan, fs: Fs, clock: Clock) -> Receipt:
    """All of it in this process, one request after the other."""
    attempt_id = f"{THIS_PROCESS}-{secrets.token_hex(4)}"
    count = 0

    def run_job(job: Job) -> list[Answer[Any]]:
        nonlocal count
        answers = []
        for request in job.requests:
            count += 1
            one = f"{attempt_id}-{job.stage.value}-{count}"
            answers.append(run_request(job.stage, request, one, fs, clock))
            if answers[-1].done is None:
                break  # the round has failed, whatever the others would say
        return answers

    return run_split(plan, attempt_id, FilesHere(fs), clock, run_job, merge_tasks=1)
