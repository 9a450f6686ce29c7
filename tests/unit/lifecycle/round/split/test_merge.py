"""Whatever a table holds at once, a merge finds the same; it notices runs that are not whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lapse.base.fs import RealFs
from lapse.lifecycle.round.choice import Split
from lapse.lifecycle.round.split import merge
from lapse.lifecycle.round.split.parts import PartsReader
from lapse.lifecycle.round.split.requests import (
    Answer,
    Merged,
    Stage,
    folder_of,
    runs_file,
    superseded_file,
)
from lapse.lifecycle.round.split.stages import run_request
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.round.split.splits import Driver, data, planned

KEYS = 40


def three_segments() -> list[tuple[int, bytes]]:
    """Each key in each of them; the middle one twice."""
    pairs = [(b"k%d" % n, b"v") for n in range(KEYS)]
    return [
        (0, data(0, *pairs)),
        (KEYS, data(KEYS, *pairs) + data(2 * KEYS, *pairs)),
        (3 * KEYS, data(3 * KEYS, *pairs[: KEYS // 2])),
    ]


def superseded(driver: Driver, answers: list[Answer[Merged]]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    for answer in answers:
        assert answer.done is not None, answer.error
        path = folder_of(driver.plan, answer.attempt_id) / superseded_file(answer.done.first)
        reader = PartsReader(path, answer.done.parts, 0, answer.done.parts.keys)
        for index in range(answer.done.parts.keys):
            for part in reader.parts(index):
                found[index] |= set(part.view(np.uint32).tolist())
    return found


@pytest.mark.parametrize("slots_max", [2, 3, 7, 1 << 12])
@pytest.mark.parametrize("ranges", [1, 2, 9])
def test_any_table_will_do(tmp_path: Path, slots_max: int, ranges: int) -> None:
    split = Split(ranges, keys_a_range=1, chunk_entries=7, slots_max=slots_max)
    upper = 3 * KEYS + KEYS // 2
    driver = Driver(planned(tmp_path, three_segments(), upper, dirty=KEYS, split=split))
    job = driver.until(Stage.MERGE)
    assert len(job.requests) == min(ranges, 2)
    answers = driver.run(job)
    assert superseded(driver, answers) == {
        0: set(range(KEYS)), 1: set(range(KEYS + KEYS // 2)), 2: set(),
    }  # fmt: skip
    assert sum(a.done.entries for a in answers) == KEYS


def test_a_clean_record_supersedes_nothing(tmp_path: Path) -> None:
    driver = Driver(planned(tmp_path, three_segments(), 4 * KEYS, dirty=3 * KEYS))
    answers = driver.run(driver.until(Stage.MERGE))
    half = set(range(KEYS // 2))
    assert superseded(driver, answers) == {0: half, 1: half | {n + KEYS for n in half}, 2: set()}
    assert sum(a.done.entries for a in answers) == KEYS // 2


def test_hashes_that_hardly_differ_get_a_larger_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a range is cut no finer, memory gives way: a round must come to its end."""
    monkeypatch.setattr(merge, "_RANGES_MAX", 4)
    split = Split(1, keys_a_range=1, chunk_entries=7, slots_max=2)
    driver = Driver(planned(tmp_path, three_segments(), 4 * KEYS, split=split))
    answers = driver.run(driver.until(Stage.MERGE))
    found = superseded(driver, answers)
    assert (found[0], len(found[1])) == (set(range(KEYS)), KEYS + KEYS // 2)
    assert sum(a.done.entries for a in answers) == KEYS


def told(driver: Driver, answers: list[Answer[Merged]]) -> list[int]:
    """How many numbers each merge has left, those that are told twice too."""
    sizes = []
    for answer in answers:
        assert answer.done is not None, answer.error
        path = folder_of(driver.plan, answer.attempt_id) / superseded_file(answer.done.first)
        reader = PartsReader(path, answer.done.parts, 0, answer.done.parts.keys)
        keys = range(answer.done.parts.keys)
        sizes.append(sum(sum(reader.sizes(index)) for index in keys) // 4)
    return sizes


def test_a_range_of_as_many_keys_as_expected_is_gone_through_once(tmp_path: Path) -> None:
    """A table that is begun too small runs full: all is read again, and told again."""
    pairs = [(b"k%d" % n, b"v") for n in range(500)]
    segments = [(0, data(0, *pairs)), (500, data(500, *pairs[:20])), (520, data(520, *pairs[:20]))]
    split = Split(1, keys_a_range=500, chunk_entries=7000, slots_max=1 << 12)
    driver = Driver(planned(tmp_path, segments, 540, split=split))
    assert told(driver, driver.run(driver.until(Stage.MERGE))) == [40]


def test_a_merge_pays_for_what_it_reads(tmp_path: Path) -> None:
    """16 bytes an entry of its runs, no more: the budget is the log's operator's."""
    content = data(0, *((b"%d" % n, b"v") for n in range(100)))
    split = Split(1, keys_a_range=100, chunk_entries=7000, slots_max=1 << 12)
    plan = planned(tmp_path, [(0, content)], 100, split=split, io_bytes_per_second=100)
    driver = Driver(plan)
    [request] = driver.until(Stage.MERGE).requests
    clock = ManualClock()
    assert run_request(Stage.MERGE, request, "x", RealFs(), clock).error is None
    assert clock.monotonic() == pytest.approx(1600 / 100)


@pytest.mark.parametrize("what", ["flipped", "short", "gone"])
def test_runs_that_are_not_what_their_answer_says(tmp_path: Path, what: str) -> None:
    driver = Driver(planned(tmp_path, three_segments(), 4 * KEYS), merge_tasks=1)
    [request] = driver.until(Stage.MERGE).requests
    run = request.runs[1]
    path = folder_of(driver.plan, run.attempt_id) / runs_file(1)
    content = bytearray(path.read_bytes())
    content[3] ^= 4
    if what == "gone":
        path.unlink()
    else:
        path.write_bytes(content if what == "flipped" else content[:-9])
    answer = driver.ask(Stage.MERGE, request)
    assert answer.done is None
    assert "1-runs" in str(answer.error)
    assert answer.bad is None  # the log itself is sound
    assert driver.ask(Stage.MERGE, replace(request, runs=request.runs[:1])).error is None
