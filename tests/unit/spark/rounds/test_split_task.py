"""What a task does with the requests of its bin, whatever happens to them; no Spark needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.lifecycle.round.split.requests import Answer, Stage, folder_of
from lapse.lifecycle.round.split.stages import decode_answer
from lapse.spark.rounds import split_task
from lapse.spark.rounds.split_task import ANSWERED, answers_to, encode_bin
from tests.support.lifecycle.round.split.splits import Driver, data, planned

TWO = [(0, data(0, (b"a", b"1"), (b"b", b"1"))), (2, data(2, (b"a", b"2")))]


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    made = Driver(planned(tmp_path, TWO, 3))
    made.until(Stage.SCAN)
    return made


def answered(driver: Driver, attempt: int = 0) -> list[Answer[Any]]:
    [job] = driver.jobs
    bins = [
        encode_bin(Stage.SCAN, "1-scan", n, [request]) for n, request in enumerate(job.requests)
    ]
    answers = answers_to(bins, attempt, RealFs(), SystemClock())
    return [decode_answer(Stage.SCAN, one) for one in answers]


def test_attempts_are_named_by_job_request_and_try(driver: Driver) -> None:
    """And what they answer is what the same requests give without having travelled."""
    first, second = answered(driver), answered(driver, 2)
    names = [a.attempt_id for a in (*first, *second)]
    assert [name.rpartition("-")[0] for name in names] == [
        "1-scan-0-a0", "1-scan-1-a0", "1-scan-0-a2", "1-scan-1-a2",
    ]  # fmt: skip
    assert len({name.rpartition("-")[2] for name in names}) == 4
    assert [len(name.rpartition("-")[2]) for name in names] == [8] * 4
    found = [a.done for a in driver.run(driver.jobs[0])]
    assert [(d.index, d.records, d.runs.size) for d in found] == [
        (a.done.index, a.done.records, a.done.runs.size) for a in first
    ]


def test_who_came_to_an_answer_leaves_a_marker(driver: Driver, tmp_path: Path) -> None:
    (tmp_path / f"{2:020d}.log").unlink()
    whole, broken = answered(driver)
    assert broken.done is None
    assert (folder_of(driver.plan, whole.attempt_id) / ANSWERED).exists()
    assert not (folder_of(driver.plan, broken.attempt_id) / ANSWERED).exists()


def test_a_bug_is_an_answer(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised, it would be tried three times more, and take the others of its job with it."""

    def broken(*_: object) -> None:
        raise MemoryError("no table that large")

    monkeypatch.setattr(split_task, "run_request", broken)
    for answer in answered(driver):
        assert (answer.done, answer.error) == (None, "t-0: MemoryError: no table that large")


def test_a_disk_that_is_full_once_the_work_is_done(driver: Driver) -> None:
    """The marker is no part of the answer's files, but without room for it the next stage fails."""

    class Full(RealFs):
        def write_file(self, path: Path, data: object) -> None:
            if path.name == ANSWERED:
                raise OSError(28, "No space left on device")
            super().write_file(path, data)  # type: ignore[arg-type]

    [bin_] = [encode_bin(Stage.SCAN, "1-scan", 0, driver.jobs[0].requests[:1])]
    [data_] = answers_to([bin_], 0, Full(), SystemClock())
    answer = decode_answer(Stage.SCAN, data_)
    assert answer.done is None
    assert "No space left on device" in (answer.error or "")
