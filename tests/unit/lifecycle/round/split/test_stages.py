"""Requests and answers travel as bytes, whole; what goes wrong with an attempt is its answer."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import Buffer, RealFs
from lapse.lifecycle.round.split.requests import Answer, Stage, runs_file
from lapse.lifecycle.round.split.stages import (
    decode_answer,
    decode_request,
    encode,
    run_request,
)
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.round.split.splits import Driver, data, marker, planned


def a_log() -> list[tuple[int, bytes]]:
    return [
        (0, data(0, (b"a", b"1"), (b"b", b"1"), producer=1)),
        (2, marker(2, 1, commit=True) + data(3, (b"a", b"2"))),
    ]


def test_every_stage_says_the_same_through_bytes(tmp_path: Path) -> None:
    driver = Driver(planned(tmp_path, a_log(), 4))
    driver.until(None)
    assert driver.result is not None
    assert [job.stage for job in driver.jobs] == [
        Stage.SCAN, Stage.SCAN, Stage.MERGE, Stage.JUDGE, Stage.REWRITE,
    ]  # fmt: skip
    driver = Driver(planned(tmp_path, a_log(), 4))  # the files of the one above are cleared away
    for number in range(5):
        job = driver.until(None if number > 4 else _stage_of(number))
        for n, request in enumerate(job.requests):
            data_ = encode(request)
            assert msgspec.json.decode(data_, type=type(request)) == request
            name = f"{number}-{n}"
            read = decode_request(job.stage, data_)
            told = encode(run_request(job.stage, read, name, RealFs(), ManualClock()))
            answer: Answer[Any] = decode_answer(job.stage, told)
            assert answer == run_request(job.stage, request, name, AsIf(), ManualClock())
            assert (answer.attempt_id, answer.pid) == (name, os.getpid())
            assert str(tmp_path).encode() not in told  # no paths
        driver.run(job)


def _stage_of(number: int) -> Stage:
    return [Stage.SCAN, Stage.SCAN, Stage.MERGE, Stage.JUDGE, Stage.REWRITE][number]


class AsIf(RealFs):
    """Begins each file anew, as an attempt finds its folder empty."""

    def open_append(self, path: Path) -> Any:
        path.unlink(missing_ok=True)
        return super().open_append(path)


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    class Full(RealFs):
        def write_file(self, path: Path, data: Buffer) -> None:  # noqa: ARG002
            raise StorageError(f"writing {path}: No space left on device")

    driver = Driver(planned(tmp_path, [(0, data(0, (b"a", b"1")))], 1))
    [request] = driver.until(Stage.SCAN).requests
    answer = run_request(Stage.SCAN, request, "x", Full(), ManualClock())
    assert (answer.done, answer.bad) == (None, None)
    assert str(answer.error).startswith("t-0: writing ")
    assert str(answer.error).endswith("0-bits: No space left on device")


def test_what_could_not_be_written_is_not_paid_for(tmp_path: Path) -> None:
    """A disk that is full is told of at once, not when the budget would have allowed for it."""

    class Full(RealFs):
        def write_file(self, path: Path, data: Buffer) -> None:
            if path.name.endswith("-bits"):
                raise StorageError(f"writing {path}: No space left on device")
            super().write_file(path, data)

    plan = planned(tmp_path, [(0, data(0, (b"a", b"1")))], 1, io_bytes_per_second=0.001)
    [request] = Driver(plan).until(Stage.JUDGE).requests
    clock = ManualClock()
    answer = run_request(Stage.JUDGE, request, "x", Full(), clock)
    assert str(answer.error).endswith("0-bits: No space left on device")
    assert (answer.seconds, clock.monotonic()) == (0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system what is open")
@pytest.mark.parametrize("damaged", [False, True])
def test_no_stage_leaves_a_file_open(tmp_path: Path, damaged: bool) -> None:
    """A worker lives for many rounds, and may have so many files open."""
    before = sorted(os.listdir("/proc/self/fd"))
    driver = Driver(planned(tmp_path, a_log(), 4))
    for number in range(5):
        job = driver.until(_stage_of(number))
        if damaged and number == 4:
            path = tmp_path / f"{0:020d}.log"
            path.write_bytes(path.read_bytes()[:-1])
        driver.run(job)
        assert sorted(os.listdir("/proc/self/fd")) == before, job.stage
    assert (driver.answers[-1][0].error is None) is not damaged


def test_the_io_budget_holds(tmp_path: Path) -> None:
    content = data(0, *((b"%d" % n, b"v" * 90) for n in range(10)))
    plan = planned(tmp_path, [(0, content)], 10, io_bytes_per_second=len(content) / 2)
    [request] = Driver(plan).until(Stage.SCAN).requests
    clock = ManualClock()
    answer = run_request(Stage.SCAN, request, "x", RealFs(), clock)
    assert clock.monotonic() >= 2
    assert answer.seconds == clock.monotonic()
    assert answer.bytes_read == len(content)


def test_the_io_budget_holds_for_what_stages_leave_each_other(tmp_path: Path) -> None:
    """A merge reads no log, and yet it may read as much."""
    content = data(0, *((b"%d" % n, b"v") for n in range(100)))
    plan = planned(tmp_path, [(0, content)], 100, io_bytes_per_second=100)
    driver = Driver(plan)
    [request] = driver.until(Stage.MERGE).requests[:1]
    clock = ManualClock()
    answer = run_request(Stage.MERGE, request, "x", RealFs(), clock)
    assert answer.error is None
    run_bytes = sum(path.stat().st_size for path in tmp_path.rglob(runs_file(0)))
    assert run_bytes > 1000
    assert clock.monotonic() >= run_bytes / 100 / 4
