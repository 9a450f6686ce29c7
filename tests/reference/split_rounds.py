"""A plan carried out both ways, small and split, and compared; with tasks that die or run twice."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lapse.base.fs import AppendFile, Buffer, RealFs
from lapse.lifecycle.round.choice import Split
from lapse.lifecycle.round.engine import run_plan
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.progress import PROGRESS_FILE
from lapse.lifecycle.round.receipt import Receipt, attempt_dir
from lapse.lifecycle.round.split.drive import FilesHere, run_split
from lapse.lifecycle.round.split.requests import Answer
from lapse.lifecycle.round.split.rounds import Job
from lapse.lifecycle.round.split.stages import (
    decode_answer,
    decode_request,
    encode,
    run_request,
)
from lapse.testing.clock import ManualClock
from tests.reference import cleaning, rounds

UNLIKE = ("attempt_id", "seconds", "bytes_read", "plan")  # what the two ways need not say alike


class Killed(BaseException):
    """The end of a task, between two of its operations."""


class DyingFs(RealFs):
    """Dies before its `life`th operation; a write is done in part."""

    def __init__(self, life: int) -> None:
        self._left = life

    def live(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Killed

    def make_dir(self, path: Path) -> None:
        self.live()
        super().make_dir(path)

    def write_file(self, path: Path, data: Buffer) -> None:
        try:
            self.live()
        except Killed:
            super().write_file(path, bytes(data)[: len(data) // 2])
            raise
        super().write_file(path, data)

    def open_append(self, path: Path) -> AppendFile:
        self.live()
        return _DyingFile(super().open_append(path), self)


class _DyingFile:
    def __init__(self, file: AppendFile, fs: DyingFs) -> None:
        self._file, self._fs = file, fs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, *buffers: Buffer) -> None:
        data = b"".join(bytes(buffer) for buffer in buffers)
        try:
            self._fs.live()
        except Killed:
            self._file.write(data[: len(data) // 2])
            raise
        self._file.write(data)


class Chaos:
    """Runs jobs as an engine might: any order, tasks killed, tasks doubled, either answer kept."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._attempts = 0

    def run_job(self, job: Job) -> Sequence[Answer[Any]]:
        answers: dict[int, Answer[Any]] = {}
        order = list(range(len(job.requests)))
        self._random.shuffle(order)
        for n in order:
            data = encode(job.requests[n])
            if self._random.random() < 0.3:
                self._kill(job, data)
            both = [self._run(job, data) for _ in range(self._random.choice([1, 1, 2]))]
            answers[n] = self._random.choice(both)
        return [answers[n] for n in range(len(order))]

    def _name(self, job: Job) -> str:
        self._attempts += 1
        return f"{job.stage.value}-{self._attempts}"

    def _run(self, job: Job, data: bytes) -> Answer[Any]:
        request = decode_request(job.stage, data)
        done = run_request(job.stage, request, self._name(job), RealFs(), ManualClock())
        return decode_answer(job.stage, encode(done))

    def _kill(self, job: Job, data: bytes) -> None:
        fs = DyingFs(self._random.randrange(8))
        try:
            run_request(
                job.stage, decode_request(job.stage, data), self._name(job), fs, ManualClock()
            )
        except Killed:
            return


def small_plan(
    given: cleaning.Round, directory: Path, segment_bytes: int, **changes: Any
) -> RoundPlan:
    """Segments to files, and a plan whose map has room for every key."""
    for base, data in given.segments:
        (directory / f"{base:020d}.log").write_bytes(data)
    plan = rounds.plan_of(given, directory, segment_bytes)
    return replace(plan, map_entries_max=1 << 30, **changes)


def files_of(plan: RoundPlan, receipt: Receipt) -> dict[str, bytes]:
    folder = attempt_dir(Path(plan.dir), plan.round_id, receipt.attempt_id)
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.name != PROGRESS_FILE and not path.name.endswith("-image")
    }


def compare(plan: RoundPlan, split: Split, seed: int, merge_tasks: int = 3) -> Receipt:
    """The same bytes and the same receipt, however it is split and whatever dies."""
    small = run_plan(plan, "small", RealFs(), ManualClock())
    assert small.error is None, small.error
    plan = replace(plan, split=split)
    chaos = Chaos(seed)
    found = run_split(plan, "split", FilesHere(RealFs()), ManualClock(), chaos.run_job, merge_tasks)
    assert found.error is None, found.error
    assert found == replace(small, **{name: getattr(found, name) for name in UNLIKE})
    assert files_of(plan, found) == files_of(plan, small)
    return found
