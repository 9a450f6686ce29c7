"""Small logs and single stages of their split rounds."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lapse.base.fs import RealFs
from lapse.lifecycle.round.choice import Split
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.split.requests import Answer, Stage
from lapse.lifecycle.round.split.rounds import Job, Result, steps
from lapse.lifecycle.round.split.stages import run_request
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.testing.clock import ManualClock
from tests.reference import cleaning, rounds

NOW = 1_700_000_000_000
SEED = (7_676_543_210_987_654_321, -1_212_343_456_567_678_789)
SPLIT = Split(ranges=3, keys_a_range=10, chunk_entries=4, slots_max=64)
Pair = tuple[bytes, bytes | None]


def records(*pairs: Pair) -> list[NewRecord]:
    return [NewRecord(key, value, NOW) for key, value in pairs]


def data(offset: int, *pairs: Pair, producer: int = -1) -> bytes:
    """A batch; of a transaction where there is a producer."""
    spec = BatchSpec(offset, producer_id=producer, transactional=producer >= 0)
    return build_batch(records(*pairs), spec)


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    spec = BatchSpec(
        offset, producer_id=producer, producer_epoch=0, transactional=True, control=True
    )
    key = struct.pack(">hh", 0, int(commit))
    return build_batch([NewRecord(key, b"\0\0\0\0\0\1", NOW)], spec)


def planned(
    directory: Path, segments: Sequence[tuple[int, bytes]], upper: int, dirty: int = 0,
    segment_bytes: int = 1, **changes: Any,
) -> RoundPlan:  # fmt: skip
    """A split plan; each segment is a group of its own."""
    given = cleaning.Round(
        False, dirty, upper, tuple(segments), frozenset(), -1, NOW + 1000, NOW, 1 << 30
    )
    for base, content in segments:
        (directory / f"{base:020d}.log").write_bytes(content)
    plan = rounds.plan_of(given, directory, segment_bytes)
    return replace(plan, **{"split": SPLIT, **changes})


class Driver:
    """Runs the jobs of a plan one at a time, and keeps them with their answers.

    Attributes:
        result: once all are done.
    """

    def __init__(self, plan: RoundPlan, merge_tasks: int = 2) -> None:
        self.plan = plan
        self.jobs: list[Job] = []
        self.answers: list[list[Answer[Any]]] = []
        self.result: Result | None = None
        self._steps = steps(plan, SEED, merge_tasks)

    def until(self, stage: Stage | None) -> Job:
        """The first job of a stage that is not run yet; without one all are run."""
        while self.result is None:
            try:
                sent = self.answers[-1] if self.answers else None
                job = next(self._steps) if sent is None else self._steps.send(sent)
            except StopIteration as end:
                self.result = end.value
                break
            self.jobs.append(job)
            if job.stage is stage:
                return job
            self.run(job)
        return self.jobs[-1]

    def run(self, job: Job) -> list[Answer[Any]]:
        self.answers.append([self.ask(job.stage, request) for request in job.requests])
        return self.answers[-1]

    def ask(self, stage: Stage, request: Any, attempt_id: str | None = None) -> Answer[Any]:
        names = attempt_id or f"{stage.value}-{sum(map(len, self.answers))}-{id(request)}"
        return run_request(stage, request, names, RealFs(), ManualClock())
